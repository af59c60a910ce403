"""Cover: measures given kernels, to add them to what an earlier campaign found on the platform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from latfarm_predictors.kernels.kernel import Kernel
from pydantic import Field

from latfarm_controller.campaigns.kernels.padding import PaddingCampaign, PaddingOptions
from latfarm_controller.campaigns.kernels.survey import KernelCampaign, KernelOptions
from latfarm_controller.campaigns.options import (
    CampaignOptions,
    SettingsChange,
    read_graphs,
    read_options,
    read_rules,
)
from latfarm_controller.campaigns.plans import Plan
from latfarm_controller.campaigns.profiles.insight import Insight, InsightChoice, chosen_insight


class CoverOptions(CampaignOptions):
    """Configuration of a campaign that measures given kernels.

    Attributes:
        base: id of the earlier campaign, whose kernels and networks the new bundle contains too.
        kernels: the kernels, as graphs in JSON form.
        rules: the fusion rules that the earlier campaign found, in JSON form.
        call_overhead_ms: latency of an empty model, as the earlier campaign found it.
        insight: how the earlier campaign obtained the times of kernels. If it was between pads,
            each kernel is measured once alone as well.
        passes: how often each kernel is measured.
        seed: random seed of the order of measurements.
        settings: changes of the measurement settings.
        padding: how kernels are measured between pads.
    """

    base: str = Field(min_length=1)
    kernels: list[dict[str, Any]] = Field(min_length=1)
    rules: dict[str, Any]
    call_overhead_ms: float = Field(ge=0)
    insight: Insight = "single"
    passes: int = Field(default=2, ge=1)
    seed: int = 0
    settings: SettingsChange = SettingsChange()
    padding: PaddingOptions = PaddingOptions(repeats=2, most_repeats=6, single=False)


class CoverCampaign(KernelCampaign):
    """A kernel survey of given kernels, which are measured between pads as well if asked for."""

    kind = "cover"
    stages: tuple[str, ...] = ("kernels",)

    def __init__(self, platform: str, options: CoverOptions) -> None:
        self._given = [Kernel(g) for g in read_graphs(self.kind, "kernels", options.kernels)]
        padded = options.insight == "padded"
        survey = read_options(
            KernelOptions,
            self.kind,
            {
                "count": len(self._given),
                "passes": 1 if padded else options.passes,
                "seed": options.seed,
                "profile": options.insight == "profile",
                "settings": options.settings,
            },
        )
        super().__init__(platform, survey, read_rules(self.kind, options.rules))
        self.call_overhead_ms = options.call_overhead_ms
        self._cover = options
        self._padding: PaddingCampaign | None = None
        if padded:
            self.stages = ("kernels", "padding")

    def _batches(self) -> Iterator[Sequence[Kernel]]:
        """All kernels at once, since nothing depends on an answer."""
        yield self._given
        self._stopped = "count"

    def plan(self) -> Plan:
        """The kernels alone, then between pads if asked for."""
        yield from super().plan()
        if self._cover.insight == "padded":
            self._padding = PaddingCampaign(
                self.platform, self._cover.padding, self.rules, self.samples()
            )
            self._padding.call_overhead_ms = self.call_overhead_ms
            yield from self._padding.plan()

    def outcome(self) -> Mapping[str, Any]:
        """The outcome of a kernel survey, with the insight and the earlier campaign."""
        source = self._padding or self
        insight = InsightChoice("auto", self._cover.insight, f"as campaign {self._cover.base}")
        found = {sample.kernel.kernel_id: sample.insight for sample in source.samples()}
        return {
            **super().outcome(),
            "base": self._cover.base,
            "insight": insight.to_json(found),
            **({} if self._padding is None else {"padding": self._padding.outcome()}),
        }


def cover_config(
    base: str, outcome: Mapping[str, Any], kernels: Sequence[Kernel]
) -> dict[str, Any]:
    """The configuration that measures kernels as an earlier campaign measured its own.

    Args:
        base: the earlier campaign's id.
        outcome: its outcome.
        kernels: the kernels to measure.
    """
    insight = chosen_insight(outcome)
    if insight is None:
        # Campaigns from before the choice was recorded used a profile wherever there was one.
        insight = "profile" if outcome.get("fusion", {}).get("profile") == "yes" else "single"
    return {
        "base": base,
        "kernels": [kernel.graph.to_json() for kernel in kernels],
        "rules": dict(outcome["rules"]),
        "call_overhead_ms": float(outcome.get("call_overhead_ms", 0.0)),
        "insight": insight,
    }
