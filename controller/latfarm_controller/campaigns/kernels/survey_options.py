"""The configuration of a kernel survey."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from latfarm_controller.campaigns.budget.shares import BATCH
from latfarm_controller.campaigns.options import CampaignOptions, SettingsChange
from latfarm_controller.campaigns.sampling.by_name import StoredSamplerName
from latfarm_controller.campaigns.sampling.latfarm import Guide
from latfarm_controller.campaigns.sampling.sibling import StartedFrom


class KernelOptions(CampaignOptions):
    """Configuration of a kernel survey.

    Attributes:
        count: largest number of kernels.
        passes: how often each kernel is measured, at different times.
        seed: random seed of the draw and of the order of measurements.
        sampler: the sampler that chooses the kernels.
        guide: how the sampler `latfarm` picks layers of networks.
        started_from: the bundle of a sibling platform that the sampler `latfarm` starts from.
        board_minutes: largest time that the boards may measure; None: no limit.
        target: the survey ends when this share of the kernels that are kept back from the sampler
            is predicted within 10 %; None: never for this reason.
        held_out: share of kernels that is kept back from the sampler, if there is a target.
        initial: number of kernels before the first batch of a sampler that has batches.
        prior_share: share of the kernels that the sampler `nn-meter` draws before its first
            iteration, instead of `initial`; None: `initial` counts.
        batch: number of kernels in a batch.
        families: names of the zoo families to draw from; empty: all that calibration may use. The
            samplers `random` and `annette` draw from none.
        rules: fusion rules in JSON form; without them the usual rules hold.
        exclude: ids of kernels that must not be measured.
        exclude_graphs: networks, in JSON form, whose kernels must not be measured.
        sentinel_every: number of kernels between two measurements of the sentinel.
        remeasure: largest share of measurements that is repeated because of drift.
        profile: ask for layer times in the first pass; only for platforms that have a profiler.
        repeat_share: largest share of kernels that is measured once more after all passes, because
            their runs spread most.
        settings: changes of the measurement settings.
    """

    count: int = Field(default=450, ge=1)
    passes: int = Field(default=2, ge=1)
    seed: int = 0
    sampler: StoredSamplerName = "prior"
    guide: Guide = "variance"
    started_from: StartedFrom | None = None
    board_minutes: float | None = Field(default=None, gt=0)
    target: float | None = Field(default=None, gt=0, le=1)
    held_out: float = Field(default=0.2, gt=0, lt=1)
    initial: int = Field(default=100, ge=1)
    prior_share: float | None = Field(default=None, gt=0, lt=1)
    batch: int = Field(default=BATCH, ge=2)
    families: list[str] = Field(default_factory=list)
    rules: dict[str, Any] | None = None
    exclude: list[str] = Field(default_factory=list)
    exclude_graphs: list[dict[str, Any]] = Field(default_factory=list)
    sentinel_every: int = Field(default=10, ge=1)
    remeasure: float = Field(default=0.25, ge=0, le=1)
    profile: bool = False
    repeat_share: float = Field(default=0.0, ge=0, le=1)
    settings: SettingsChange = SettingsChange()

    @model_validator(mode="after")
    def _counts_fit(self) -> KernelOptions:
        if self.sampler in ("latfarm", "nn-meter") and self.initial > self.count:
            raise ValueError(f"initial {self.initial} exceeds count {self.count}")
        if self.families and self.sampler in ("random", "annette"):
            raise ValueError(f"sampler {self.sampler!r} cannot draw from families")
        if self.prior_share is not None and self.sampler != "nn-meter":
            raise ValueError(f"sampler {self.sampler!r} has no prior_share; 'nn-meter' has one")
        if self.started_from is not None and self.sampler != "latfarm":
            raise ValueError(f"sampler {self.sampler!r} cannot start from a bundle; 'latfarm' can")
        return self
