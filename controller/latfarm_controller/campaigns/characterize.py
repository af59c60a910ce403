"""Characterise a platform: call overhead, fusion rules, kernels and calibration networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules, with_units
from pydantic import Field

from latfarm_controller.campaigns.fusion.campaign import FusionCampaign, FusionOptions
from latfarm_controller.campaigns.kernels.heads import HeadsCampaign
from latfarm_controller.campaigns.kernels.padding import PaddingCampaign, PaddingOptions
from latfarm_controller.campaigns.kernels.padding_profile import WithinPadsCampaign
from latfarm_controller.campaigns.kernels.survey import SETTINGS as KERNEL_SETTINGS
from latfarm_controller.campaigns.kernels.survey import KernelCampaign, KernelOptions
from latfarm_controller.campaigns.networks.calibration import VARIANTS, Draw
from latfarm_controller.campaigns.networks.campaign import NetworkCampaign, NetworkOptions
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
from latfarm_controller.campaigns.sampling.by_name import (
    SamplerName,
    StoredSamplerName,
    kernel_families,
)
from latfarm_controller.campaigns.sampling.latfarm import Guide
from latfarm_controller.campaigns.sampling.sibling import StartedFrom, sibling_of

LEAST_MEASUREMENTS = 40
"""Least budget of a characterisation: fewer measurements leave nothing for kernels."""
PADDED_FACTOR = 6.0
"""Board time of a kernel alone and between pads, with its padding-only models, over that of the
kernel alone: a rough estimate."""

FIRST, FIRST_FROM_SIBLING = 100, 50
"""Representative kernels before the first batch of a sampler that has batches: without a sibling
platform, and with one, which makes some of them unnecessary."""

KERNELS_A_NETWORK, MOST_NETWORKS = 7, 60
"""By default, one network is profiled for each so many kernels in the budget, up to so many
networks."""
MOST_HEADS = 400
"""By default, one head is profiled for each kernel in the budget, up to so many. A head takes about
as long as a kernel."""


class CharacterizeOptions(CampaignOptions):
    """Configuration of a characterisation.

    Attributes:
        budget: largest number of kernels to measure.
        calibration: number of calibration networks.
        calibration_draw: how they are drawn, see `networks.calibration`. Within a budget of
            measurements or minutes it is "judged" unless another one is asked for.
        seed: random seed of all draws and of the order of measurements.
        sampler: the sampler that chooses the kernels.
        guide: how the sampler `latfarm` picks layers of networks.
        started_from: the bundle of a sibling platform. Its latencies choose the kernels (with the
            sampler `latfarm`), and the measurements correct them.
        rules: fusion rules in JSON form, used instead of detecting the platform's own.
        board_minutes: largest time that the boards may measure kernels; None: no limit.
        target: measuring kernels ends when this share of some kernels that are kept back is
            predicted within 10 %; None: never for this reason.
        held_out: networks, in JSON form, that the predictor will be judged by; none of their
            kernels is measured.
        exclude_kernels: ids of kernels that must not be measured.
        exclude_lineages: lineages whose families are left out of drawn networks.
        exclude_kernel_lineages: lineages whose families are left out of drawn kernels as well. The
            samplers `random` and `annette` draw from no families.
        fusion: the configuration of fusion detection.
        prior_share: share of the kernels that the sampler `nn-meter` draws before its first
            iteration; None: as many as the other samplers.
        kernel_passes: how often each kernel is measured.
        kernel_settings: changes of the settings for kernels.
        insight: how the times of kernels are obtained; "auto": the best that the platform offers,
            see `profiles.insight`. If this is between pads, each kernel is measured once alone as
            well.
        context: number of networks that are drawn and profiled if the platform's profile shows
            single kernels; None: depending on the budget. Each gives the times of about twenty
            kernels as networks run them.
        heads: number of heads of networks that are profiled if, besides, kernels alone differ from
            kernels between pads; None: depending on the budget.
        padding: how kernels are measured between pads.
        network_passes: how often each calibration network is measured.
        network_settings: changes of the settings for networks.
        least_macs: least multiply-adds of a drawn network.
        most_macs: most multiply-adds of a drawn network.
        energy_ms: for each kernel and network, the duration in ms of running it back to back, so
            that a board's power rails show its energy; 0: no energies.
        measurements: largest number of measurements of all stages together. With it or with
            `budget_minutes`, stages are planned by `characterize_in_budget`, and `budget` and
            `kernel_passes` do not matter. None, as in campaigns from before it existed: each stage
            takes what it wants.
        budget_minutes: longest board time of all stages together, in minutes; None: no limit.
        keep_fusion_tests: whether all pairs are measured by times as well, after all other stages
            and outside the budget, to score how well times alone tell fusion.
    """

    budget: int = Field(default=450, ge=1, description="largest number of kernels to measure")
    calibration: int = Field(default=20, ge=1)
    calibration_draw: Draw = VARIANTS
    seed: int = 0
    sampler: StoredSamplerName = "prior"
    guide: Guide = "variance"
    started_from: StartedFrom | None = None
    rules: dict[str, Any] | None = None
    board_minutes: float | None = Field(default=None, gt=0)
    target: float | None = Field(default=None, gt=0, le=1)
    held_out: list[dict[str, Any]] = Field(default_factory=list)
    exclude_kernels: list[str] = Field(default_factory=list)
    exclude_lineages: list[str] = Field(default_factory=list)
    exclude_kernel_lineages: list[str] = Field(default_factory=list)
    prior_share: float | None = Field(default=None, gt=0, lt=1)
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
    measurements: int | None = Field(default=None, ge=LEAST_MEASUREMENTS)
    budget_minutes: float | None = Field(default=None, gt=0)
    keep_fusion_tests: bool = False

    @property
    def profiled_networks(self) -> int:
        """How many networks are profiled: as asked for, or depending on the budget."""
        usual = min(self.budget // KERNELS_A_NETWORK, MOST_NETWORKS)
        return usual if self.context is None else self.context

    @property
    def profiled_heads(self) -> int:
        """How many heads are profiled: as asked for, or depending on the budget."""
        usual = min(self.budget, MOST_HEADS)
        return usual if self.heads is None else self.heads

    @property
    def chosen_sampler(self) -> SamplerName:
        """The sampler: with a sibling platform `latfarm` replaces `prior`, which cannot use one."""
        started = self.started_from is not None and self.sampler == "prior"
        return "latfarm" if started else self.sampler

    @property
    def first_kernels(self) -> int:
        """Representative kernels before the first batch; fewer with a sibling platform."""
        return FIRST if self.started_from is None else FIRST_FROM_SIBLING

    def with_energy(self, change: SettingsChange) -> SettingsChange:
        """A stage's settings, which ask for energies if this configuration does."""
        if not self.energy_ms or change.energy_ms is not None:
            return change
        return change.model_copy(update={"energy_ms": self.energy_ms})


class CharacterizeCampaign(PlannedCampaign):
    """Runs the stages one after the other; each is planned from what the earlier ones found."""

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
            # The cost of a call, and whether the runtime profiles, must still be found out.
            fusion = fusion.model_copy(update={"pairs": []})
        self.fusion = FusionCampaign(platform, fusion)
        # The options of later stages are checked now, before anything is measured.
        network_options = read_options(
            NetworkOptions,
            self.kind,
            {
                "calibration": options.calibration,
                "draw": self._calibration_draw,
                "exclude": sorted(self._held_out),
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
                "prior_share": options.prior_share,
                "families": kernel_families(
                    options.chosen_sampler, options.exclude_kernel_lineages
                ),
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

    @property
    def _calibration_draw(self) -> Draw:
        """How calibration networks are drawn."""
        return self._options.calibration_draw

    def plan(self) -> Plan:
        """Fusion with the call overhead, then kernels as its rules cut them, then networks."""
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
        # A profile that does not explain a kernel's own call may still show a network's shares.
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
        """The kernels that were measured alone, between pads."""
        self.padding = PaddingCampaign(
            self.platform, self._options.padding, self._used_rules(), kernels.samples()
        )
        self.padding.call_overhead_ms = kernels.call_overhead_ms
        yield from self.padding.plan()

    def _within_pads(self, kernels: KernelCampaign) -> Plan:
        """Profiles of kernels between pads, if those of kernels alone differ."""
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
        """Profiles of whole networks, see `profiles.context`."""
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
        """Profiles of heads, if kernels between pads were found to differ from kernels alone."""
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
        """Add a stage before the last one, the calibration networks."""
        *earlier, last = self.stages
        self.stages = (*earlier, stage, last)

    def _insights(self) -> dict[str, str]:
        """The insight that the time of each kernel rests on, by the kernel's id."""
        source = self.padding or self.kernels
        samples = [] if source is None else source.samples()
        return {sample.kernel.kernel_id: sample.insight for sample in samples}

    def _used_rules(self) -> FusionRules:
        if self._rules is None:
            return with_units(self.fusion.rules())
        return replace(self._rules, platform=self.platform)

    def outcome(self) -> Mapping[str, Any]:
        """Rules, call overhead, counts and sentinels; then the outcome of each stage."""
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
