"""Characterise a platform within a budget of measurements and of board time.

The stages go from what tells most to what tells least per measurement. A profiled network shows how
it is fused and what twenty of its kernels take; so networks come first where the runtime profiles.
Fusion tests follow for the pairs of ops that networks left open. Kernels are measured alone in one
pass: those that add most to what the networks showed. The calibration networks are kept for the
end, and no stage can take their share. A purse (`budget.purse`) bounds all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.budget.purse import Limits, Purse
from latfarm_controller.campaigns.budget.shares import (
    DEFAULT_MEASUREMENTS,
    FUSION_TIME,
    LEAST_KERNELS,
    PROBES_TIME,
    PROFILED_TIME,
    REPEATS_SHARE,
    SENTINEL_EVERY,
    shares_of,
)
from latfarm_controller.campaigns.characterize import CharacterizeCampaign, CharacterizeOptions
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign
from latfarm_controller.campaigns.fusion.few_tests import FewFusionCampaign
from latfarm_controller.campaigns.kernels.heads import HeadsCampaign
from latfarm_controller.campaigns.kernels.padding import PaddingCampaign
from latfarm_controller.campaigns.kernels.probes import ProbesCampaign
from latfarm_controller.campaigns.kernels.survey import SETTINGS as KERNEL_SETTINGS
from latfarm_controller.campaigns.kernels.survey import KernelCampaign
from latfarm_controller.campaigns.networks.calibration import Draw
from latfarm_controller.campaigns.networks.campaign import SETTINGS as NETWORK_SETTINGS
from latfarm_controller.campaigns.networks.campaign import NetworkCampaign
from latfarm_controller.campaigns.options import read_graphs
from latfarm_controller.campaigns.plans import Plan
from latfarm_controller.campaigns.profiles.alone_or_inside import compared_kernels
from latfarm_controller.campaigns.profiles.branches_in_networks import branches_in_networks
from latfarm_controller.campaigns.profiles.context import SETTINGS as CONTEXT_SETTINGS
from latfarm_controller.campaigns.profiles.context import ContextCampaign
from latfarm_controller.campaigns.profiles.fusion_in_networks import seen_in_networks
from latfarm_controller.campaigns.profiles.insight import choose
from latfarm_controller.campaigns.profiles.profiled_networks import places_of
from latfarm_controller.campaigns.sampling.base import Excluded
from latfarm_controller.zoo.draws.judged_mix import JUDGED

MOST_KNOWN = 250
"""Largest number of kernels of each family, seen in profiled networks, that the sampler is shown:
its Gaussian processes take longer with the cube of their number."""
PADDED_COST = 3.5
"""Measurements for a kernel between pads over those for a kernel alone: the kernel alone, its
padded model, and its share of padding-only models."""
PROFILED = "profiled networks"
"""The line of the account for profiled networks."""
HEADS_SHARE = 0.6
"""Where kernels alone tell little, the share of their measurements that goes to heads of networks;
the rest goes to further profiled networks."""


class CharacterizeInBudget(CharacterizeCampaign):
    """Runs the stages within a budget; each is planned from what the earlier ones found."""

    stages: tuple[str, ...] = ("overhead", "fusion", "kernels", "networks")

    def __init__(self, platform: str, options: CharacterizeOptions) -> None:
        super().__init__(platform, options)
        measurements = options.measurements or DEFAULT_MEASUREMENTS
        minutes = options.budget_minutes
        self.purse = Purse(measurements, None if minutes is None else 60_000.0 * minutes)
        self.shares = shares_of(
            measurements, options.calibration, options.network_passes, options.context
        )
        tested = options.fusion
        if self._rules is not None:
            tested = tested.model_copy(update={"pairs": []})
        self._few = self.fusion = FewFusionCampaign(platform, tested, options.exclude_lineages)
        self._all_tests = (
            FusionCampaign(platform, options.fusion) if options.keep_fusion_tests else None
        )
        self._scored = False
        self.probes: ProbesCampaign | None = None

    def plan(self) -> Plan:
        """Profiled networks, open fusion tests, kernels that add to them, calibration networks."""
        kept = self._limits()
        yield from self.purse.within(self._few.look(), "call overhead", kept)
        whole = self.fusion.profiles and self._options.insight in ("auto", "profile")
        if whole:
            self.stages = ("overhead", "context", "fusion", "probes", "kernels", "networks")
            yield from self._profiled_networks()
        limits = self._limits(self.shares.fusion, FUSION_TIME)
        yield from self.purse.within(self._few.tests(), "fusion", limits)
        if whole:
            yield from self._probes()
        yield from self._choose_insight()
        if self.probes is not None and self.probes.differs:
            yield from self._more_networks()
        else:
            yield from self._kernels()
        yield from self._calibration(profile=whole)
        if self._all_tests is not None:
            # They go on counting repeats where the budget's own tests ended.
            self._all_tests.asker = self._few.asker
            yield from self._all_tests.plan()
            self._scored = True

    @property
    def _calibration_draw(self) -> Draw:
        """How calibration networks are drawn: like those that judge, if nothing else is asked."""
        given = "calibration_draw" in self._options.model_fields_set
        return self._options.calibration_draw if given else JUDGED

    def _limits(self, most: float | None = None, time_share: float | None = None) -> Limits:
        """The limits of a stage that leaves the share of the calibration networks untouched."""
        minutes = self._options.budget_minutes
        all_ms = 60_000.0 * minutes if minutes is not None else 0.0
        keep_ms = self.shares.kept_ms(all_ms, self._network_ms())
        found = Limits(keep=self.shares.kept, keep_ms=keep_ms)
        return Limits(
            most=found.most if most is None else most,
            most_ms=time_share * all_ms if time_share and all_ms else found.most_ms,
            keep=found.keep,
            keep_ms=found.keep_ms,
        )

    def _network_ms(self) -> float | None:
        """What a calibration network takes in all its sessions, as profiled networks tell it."""
        told = self.purse.spent(PROFILED)
        if not told.measurements:
            return None
        sessions = self._network_options.settings.apply(NETWORK_SETTINGS).sessions
        return told.board_ms / told.measurements * sessions / CONTEXT_SETTINGS.sessions

    def _profiled_networks(self) -> Plan:
        options = self._options
        self.context = ContextCampaign(
            self.platform,
            self.shares.profiled,
            seed=options.seed,
            macs=(options.least_macs, options.most_macs),
            exclude_lineages=options.exclude_lineages,
            exclude=self._held_out,
        )
        limits = self._limits(time_share=PROFILED_TIME)
        yield from self.purse.within(self.context.plan(), PROFILED, limits)
        self._few.seen = seen_in_networks(self.context.profiled)
        self._few.branches = branches_in_networks(self.context.profiled, self._few.rules())

    def _inside(self) -> list[KernelSample]:
        """The kernels that take time in profiled networks, without those not to be measured.

        Their times are without the call, as those of the probes that they are compared with, and
        as what the sampler believes of kernels alone.
        """
        if self.context is None:
            return []
        rules, call_ms = self._used_rules(), self.fusion.call_overhead_ms
        held_out = read_graphs(self.kind, "held_out", self._options.held_out)
        barred = Excluded.of(held_out, rules, self._options.exclude_kernels)
        return [
            sample
            for network in places_of(self.context.profiled, rules, call_ms)
            for sample in network
            if sample.latency_ms > 0 and sample.kernel not in barred
        ]

    def _probes(self) -> Plan:
        """Some kernels of the profiled networks alone, to see whether these times agree."""
        inside = self._inside()
        chosen = compared_kernels(inside, self.shares.probes, self._options.seed)
        self.probes = ProbesCampaign(
            self.platform,
            chosen,
            inside,
            self._kernel_options.settings.apply(KERNEL_SETTINGS),
        )
        yield from self.purse.within(
            self.probes.plan(), "probes", self._limits(time_share=PROBES_TIME)
        )

    def _choose_insight(self) -> Plan:
        """The insight; transfers are measured where the profile does not account for calls."""
        shown = list(self.fusion.profiled)
        if self.probes is not None:
            shown += self.probes.profiled
        asked = self._options.insight
        told = (self.fusion.profile, shown, self.fusion.call_overhead_ms)
        chosen = choose(asked, *told, self.fusion.transfers.boundary_share)
        if chosen.chosen != "profile" and self.fusion.transfers.boundary_share is None:
            rounds = self._few.transfer_rounds()
            yield from self.purse.within(rounds, "fusion", self._limits())
            chosen = choose(asked, *told, self.fusion.transfers.boundary_share)
        self._insight = chosen

    def _kernels(self) -> Plan:
        """Kernels alone in one pass, between pads as well if that is the insight."""
        assert self._insight is not None
        padded = self._insight.chosen == "padded"
        left = self.purse.left - self.shares.kept
        count = self.shares.kernels(left / PADDED_COST if padded else left)
        count = max(count, min(LEAST_KERNELS, self.shares.kernels(left)))
        if count < 1:
            return
        given = self._options.model_fields_set
        options = self._kernel_options.model_copy(
            update={
                "count": count,
                "passes": 1,
                "sampler": self._options.sampler if "sampler" in given else "latfarm",
                "initial": min(self._options.first_kernels, count),
                "profile": self._insight.chosen == "profile" and self.fusion.profiles,
                "repeat_share": REPEATS_SHARE,
                "sentinel_every": SENTINEL_EVERY,
            }
        )
        known = _thinned(self._inside(), self._options.seed)
        limits = self._limits()
        self.kernels = KernelCampaign(
            self.platform, options, self._used_rules(), known=known, affords=self._affords
        )
        self.kernels.call_overhead_ms = self.fusion.call_overhead_ms
        if not padded:
            yield from self.purse.within(self.kernels.plan(), "kernels", limits)
            return
        self.stages = ("overhead", "fusion", "kernels", "padding", "networks")
        yield from self.purse.within(self.kernels.plan(), "kernels", self._limits(count * 1.2))
        few = self._options.padding.model_copy(update={"repeats": 1, "most_repeats": 2})
        self.padding = PaddingCampaign(
            self.platform, few, self._used_rules(), self.kernels.samples()
        )
        self.padding.call_overhead_ms = self.kernels.call_overhead_ms
        yield from self.purse.within(self.padding.plan(), "padding", limits)

    def _affords(self) -> float:
        """How many more kernels the purse allows; 0 once the time that is not kept was spent."""
        limits = self._limits()
        if self.purse.left_ms <= limits.keep_ms:
            return 0.0
        return self.purse.left - limits.keep

    def _more_networks(self) -> Plan:
        """Heads and further networks, where kernels take another time alone than inside them."""
        assert self.context is not None
        left = self.purse.left - self.shares.kept
        heads = int(HEADS_SHARE * left) if self._options.heads is None else self._options.heads
        self.stages = ("overhead", "context", "fusion", "probes", "heads", "networks")
        self.heads = HeadsCampaign(
            self.platform,
            heads,
            self._used_rules(),
            seed=self._options.seed,
            exclude_lineages=self._options.exclude_lineages,
            settings=self._kernel_options.settings.apply(KERNEL_SETTINGS),
        )
        yield from self.purse.within(self.heads.plan(), "heads", self._limits())
        rest = self.context.more(max(0, int(self.purse.left - self.shares.kept)))
        yield from self.purse.within(rest, PROFILED, self._limits())

    def _calibration(self, *, profile: bool) -> Plan:
        """The calibration networks, from what was kept for them."""
        chosen = self._network_options.model_copy(
            update={
                "calibration": self.shares.calibration,
                "passes": self.shares.calibration_passes,
                "profile": profile,
            }
        )
        if self.kernels is not None and self.kernels.told_no_energy:
            silent = chosen.settings.model_copy(update={"energy_ms": None})
            chosen = chosen.model_copy(update={"settings": silent})
        self.networks = NetworkCampaign(self.platform, chosen)
        yield from self.purse.within(self.networks.plan(), "calibration")

    def outcome(self) -> Mapping[str, Any]:
        """See `CharacterizeCampaign.outcome`; besides, where the budget went."""
        tests = self._all_tests
        return {
            **super().outcome(),
            "spent": self.purse.to_json(),
            "shares": self.shares.to_json(),
            **({} if self.probes is None else {"alone": self.probes.outcome()}),
            **({} if tests is None or not self._scored else {"fusion_tests": tests.outcome()}),
        }


def _thinned(samples: Sequence[KernelSample], seed: int) -> list[KernelSample]:
    """One sample of each kernel, and at most `MOST_KNOWN` of each family of workloads."""
    once = {sample.kernel.kernel_id: sample for sample in samples if sample.latency_ms > 0}
    families: dict[str, list[KernelSample]] = {}
    for sample in once.values():
        families.setdefault(workload(sample.kernel).family, []).append(sample)
    random = Random(f"known {seed}")
    return [
        sample
        for members in families.values()
        for sample in random.sample(members, min(MOST_KNOWN, len(members)))
    ]
