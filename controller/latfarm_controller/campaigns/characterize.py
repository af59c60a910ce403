"""Characterise a platform: call overhead, fusion rules, kernels and calibration networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from pydantic import Field

from latfarm_controller.campaigns.fusion.fusion import FusionCampaign, FusionOptions
from latfarm_controller.campaigns.kernels.heads import HeadsCampaign
from latfarm_controller.campaigns.kernels.kernels import SETTINGS as KERNEL_SETTINGS
from latfarm_controller.campaigns.kernels.kernels import KernelCampaign, KernelOptions
from latfarm_controller.campaigns.kernels.padding import PaddingCampaign, PaddingOptions
from latfarm_controller.campaigns.kernels.padding_profile import WithinPadsCampaign
from latfarm_controller.campaigns.networks.networks import NetworkCampaign, NetworkOptions
from latfarm_controller.campaigns.options import (
    CampaignOptions,
    SettingsChange,
    read_graphs,
    read_options,
    read_rules,
)
from latfarm_controller.campaigns.plans import Plan, PlannedCampaign
from latfarm_controller.campaigns.profiles.context import ContextCampaign
from latfarm_controller.campaigns.profiles.insight import Asked, InsightChoice, choose
from latfarm_controller.campaigns.sampling.latfarm import Guide
from latfarm_controller.campaigns.sampling.sampling import SamplerName
from latfarm_controller.campaigns.sampling.sibling import StartedFrom, sibling_of

PADDED_FACTOR = 6.0
"""About how much board time a kernel takes with pads, and what they take alone, over its own."""

FIRST, FIRST_FROM_SIBLING = 100, 50
"""Representative kernels before the first batch of a sampler that has batches."""

KERNELS_A_NETWORK, MOST_NETWORKS = 7, 60
"""By default one network is profiled for so many kernels, up to so many."""
MOST_HEADS = 400
"""And a head for each kernel, up to so many: it takes about as long as one does."""


class CharacterizeOptions(CampaignOptions):
    """Configuration of a characterisation.

    `rules` (as JSON) are taken for the platform's instead of detecting them. The kernels' budget is
    `budget` of them and, where given, `board_minutes`; with a `target` they end as soon as that
    share of some kept back is predicted within 10 %. `held_out` are networks (as JSON) that the
    predictor will be judged on: none of their exact kernels is measured. `exclude_lineages` keeps
    their relatives out of the calibration networks. The parts' own configurations (`fusion`,
    `kernels`, `networks`) hold what is not named here.

    `insight`: how kernels are isolated; "auto": the best that the platform offers, see `insight`.
    Between pads each is measured once alone, too, and `padding` holds how often between pads.

    `started_from` names the bundle of a sibling board: its latencies choose the kernels (by sampler
    `latfarm`), and are scaled and put right by what is measured. `guide` says what that sampler
    picks layers of networks by.

    Where the platform's profile tells kernels apart, `context` networks are drawn and profiled too:
    each tells what some twenty kernels take where they run in earnest. Where, besides, kernels
    alone were seen to be another thing than between pads, so are the `heads` of others (`heads`).

    With `energy_ms` each kernel and network also runs back to back for so long, so that the power
    rails of a board tell what it takes.
    """

    budget: int = Field(default=450, ge=1, description="kernels to measure")
    calibration: int = Field(default=20, ge=1)
    seed: int = 0
    sampler: SamplerName = "prior"
    guide: Guide = "variance"
    started_from: StartedFrom | None = None
    rules: dict[str, Any] | None = None
    board_minutes: float | None = Field(default=None, gt=0)
    target: float | None = Field(default=None, gt=0, le=1)
    held_out: list[dict[str, Any]] = Field(default_factory=list)
    exclude_kernels: list[str] = Field(default_factory=list)
    exclude_lineages: list[str] = Field(default_factory=list)
    fusion: FusionOptions = FusionOptions()
    kernel_passes: int = Field(default=2, ge=1)
    kernel_settings: SettingsChange = SettingsChange()
    insight: Asked = "auto"
    context: int | None = Field(default=None, ge=0)
    heads: int | None = Field(default=None, ge=0)
    padding: PaddingOptions = PaddingOptions(repeats=2, most_repeats=4, single=False)
    network_passes: int = Field(default=2, ge=1)
    network_settings: SettingsChange = SettingsChange()
    least_macs: float = Field(default=6e7, gt=0)
    most_macs: float = Field(default=6e9, gt=0)
    energy_ms: float = Field(default=0, ge=0, le=600_000)

    @property
    def profiled_networks(self) -> int:
        """How many networks are profiled: what is asked for, or as the budget."""
        usual = min(self.budget // KERNELS_A_NETWORK, MOST_NETWORKS)
        return usual if self.context is None else self.context

    @property
    def profiled_heads(self) -> int:
        """How many heads are profiled: what is asked for, or as the budget."""
        usual = min(self.budget, MOST_HEADS)
        return usual if self.heads is None else self.heads

    @property
    def chosen_sampler(self) -> SamplerName:
        """The sampler; only ours can start from a sibling."""
        started = self.started_from is not None and self.sampler == "prior"
        return "latfarm" if started else self.sampler

    @property
    def first_kernels(self) -> int:
        """Representative kernels before the first batch: a sibling tells some of it already."""
        return FIRST if self.started_from is None else FIRST_FROM_SIBLING

    def with_energy(self, change: SettingsChange) -> SettingsChange:
        """A part's settings, asking for energies where this does and the part says nothing."""
        if not self.energy_ms or change.energy_ms is not None:
            return change
        return change.model_copy(update={"energy_ms": self.energy_ms})


class CharacterizeCampaign(PlannedCampaign):
    """The stages one after the other; each is planned from what the one before found."""

    kind = "characterize"
    stages: tuple[str, ...] = ("overhead", "fusion", "kernels", "networks")

    def __init__(self, platform: str, options: CharacterizeOptions) -> None:
        super().__init__(platform)
        self._options = options
        held_out = read_graphs(self.kind, "held_out", options.held_out)
        self._held_out = frozenset(hash_of(graph) for graph in held_out)
        self._rules = None if options.rules is None else read_rules(self.kind, options.rules)
        fusion = options.fusion
        if self._rules is not None:
            # What a call costs and whether the runtime profiles is still to be found out.
            fusion = fusion.model_copy(update={"pairs": []})
        self.fusion = FusionCampaign(platform, fusion)
        # Both are checked now, before anything is measured, not when their turn comes.
        network_options = read_options(
            NetworkOptions,
            self.kind,
            {
                "calibration": options.calibration,
                "passes": options.network_passes,
                "seed": options.seed,
                "exclude_lineages": options.exclude_lineages,
                "least_macs": options.least_macs,
                "most_macs": options.most_macs,
                "settings": options.with_energy(options.network_settings),
            },
        )
        self._kernel_options = read_options(
            KernelOptions,
            self.kind,
            {
                "count": options.budget,
                "passes": options.kernel_passes,
                "seed": options.seed,
                "sampler": options.chosen_sampler,
                "guide": options.guide,
                "started_from": options.started_from,
                "board_minutes": options.board_minutes,
                "target": options.target,
                "initial": min(options.first_kernels, options.budget),
                "exclude": options.exclude_kernels,
                "exclude_graphs": options.held_out,
                "settings": options.with_energy(options.kernel_settings),
            },
        )
        sibling_of(options.started_from, platform)
        self._network_options = network_options
        self.networks = NetworkCampaign(platform, network_options)
        self.kernels: KernelCampaign | None = None
        self.padding: PaddingCampaign | None = None
        self.within_pads: WithinPadsCampaign | None = None
        self.context: ContextCampaign | None = None
        self.heads: HeadsCampaign | None = None
        self._insight: InsightChoice | None = None

    def plan(self) -> Plan:
        """Fusion (with the overhead), then kernels cut by its rules, then networks."""
        yield from self.fusion.plan()
        self._insight = choose(
            self._options.insight,
            self.fusion.profile,
            self.fusion.profiled,
            self.fusion.call_overhead_ms,
            self.fusion.transfers.boundary_share,
        )
        profile = self._insight.chosen == "profile" and self.fusion.profiles
        options = self._kernel_options.model_copy(update={"profile": profile})
        if self._insight.chosen == "padded":
            self.stages = ("overhead", "fusion", "kernels", "padding", "networks")
            minutes = options.board_minutes
            options = options.model_copy(
                update={
                    "passes": 1,
                    "board_minutes": None if minutes is None else minutes / PADDED_FACTOR,
                }
            )
        self.kernels = KernelCampaign(self.platform, options, self._used_rules())
        self.kernels.call_overhead_ms = self.fusion.outcome()["call_overhead_ms"]
        yield from self.kernels.plan()
        if self._insight.chosen == "padded":
            yield from self._padding(self.kernels)
        elif profile:
            yield from self._within_pads(self.kernels)
        # A profiler that cannot tell a kernel's own call can tell the shares of a whole network.
        whole = self.fusion.profiles and self._options.insight in ("auto", "profile")
        if whole:
            yield from self._in_context()
            yield from self._heads()
        chosen = self._network_options.model_copy(update={"profile": whole})
        if self.kernels.told_no_energy:
            silent = chosen.settings.model_copy(update={"energy_ms": None})
            chosen = chosen.model_copy(update={"settings": silent})
        self.networks = NetworkCampaign(self.platform, chosen)
        yield from self.networks.plan()

    def _padding(self, kernels: KernelCampaign) -> Plan:
        self.padding = PaddingCampaign(
            self.platform, self._options.padding, self._used_rules(), kernels.samples()
        )
        self.padding.call_overhead_ms = kernels.call_overhead_ms
        yield from self.padding.plan()

    def _within_pads(self, kernels: KernelCampaign) -> Plan:
        """Profiles of kernels between pads, where those of kernels alone are not the same."""
        self.within_pads = WithinPadsCampaign(
            self.platform,
            self._used_rules(),
            kernels.samples(),
            kernels.call_overhead_ms or 0.0,
            settings=self._kernel_options.settings.apply(KERNEL_SETTINGS),
            seed=self._options.seed,
        )
        self.stages = ("overhead", "fusion", "kernels", "padding", "networks")
        yield from self.within_pads.plan()

    def _in_context(self) -> Plan:
        """Profiles of whole networks; see `context`."""
        options = self._options
        count = options.profiled_networks
        if not count:
            return
        self.context = ContextCampaign(
            self.platform,
            count,
            seed=options.seed,
            macs=(options.least_macs, options.most_macs),
            exclude_lineages=options.exclude_lineages,
            exclude=self._held_out,
        )
        self._before_networks("context")
        yield from self.context.plan()

    def _heads(self) -> Plan:
        """Profiles of heads, where what stands around a kernel was seen to matter."""
        options = self._options
        within = self.within_pads
        count = options.profiled_heads
        if not count or within is None or not within.differs:
            return
        self.heads = HeadsCampaign(
            self.platform,
            count,
            self._used_rules(),
            seed=options.seed,
            exclude_lineages=options.exclude_lineages,
            settings=self._kernel_options.settings.apply(KERNEL_SETTINGS),
        )
        self._before_networks("heads")
        yield from self.heads.plan()

    def _before_networks(self, stage: str) -> None:
        """One stage more, the last before the calibration networks."""
        *earlier, last = self.stages
        self.stages = (*earlier, stage, last)

    def _insights(self) -> dict[str, str]:
        """What the time of each kernel rests on, by its id."""
        source = self.padding or self.kernels
        samples = [] if source is None else source.samples()
        return {sample.kernel.kernel_id: sample.insight for sample in samples}

    def _used_rules(self) -> FusionRules:
        if self._rules is None:
            return self.fusion.rules()
        return replace(self._rules, platform=self.platform)

    def outcome(self) -> Mapping[str, Any]:
        """Rules, call overhead, counts and sentinels on top; each stage's own outcome below."""
        fusion = self.fusion.outcome()
        kernels = self.kernels.outcome() if self.kernels is not None else {}
        networks = self.networks.outcome()
        return {
            "rules": self._used_rules().to_json(),
            "call_overhead_ms": fusion["call_overhead_ms"],
            "kernels_measured": kernels.get("kernels", 0),
            "networks_measured": len(networks["networks"]),
            **{name: kernels[name] for name in ("call_overhead_mj", "energy") if name in kernels},
            **(
                {}
                if self._insight is None
                else {"insight": self._insight.to_json(self._insights())}
            ),
            **({} if self.padding is None else {"padding": self.padding.outcome()}),
            **({} if self.within_pads is None else {"within_pads": self.within_pads.outcome()}),
            **({} if self.context is None else {"context": self.context.outcome()}),
            **({} if self.heads is None else {"heads": self.heads.outcome()}),
            **(
                {}
                if self._options.started_from is None
                else {"started_from": self._options.started_from.to_json()}
            ),
            "sentinel": kernels.get("sentinel", []),
            "void": kernels.get("void", []),
            "fusion": fusion,
            "kernels": kernels,
            "networks": networks,
        }
