"""The configuration of fusion detection."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from latfarm_controller.campaigns.options import CampaignOptions, SettingsChange

Method = Literal["latfarm", "paper"]
"""How times become answers. `latfarm`: our method, which accounts for the cost of calls, for costly
transfers and for spread. `paper`: inequation 1 as nn-Meter prints it, at the first size."""


class FusionOptions(CampaignOptions):
    """Configuration of fusion detection.

    Attributes:
        pairs: the pairs of operators to test: "core" (those that occur in convolutional networks),
            "all", or pairs of operator names.
        method: how times become answers.
        sizes: the sizes of test models, the smaller one first.
        rounds: how often each pair is measured at least.
        max_rounds: how often a pair is measured at most while its times are undecided.
        alpha: the threshold of inequation 1.
        gate: a pair is undecided unless the cheaper op's time exceeds this many standard errors.
        sureness: a pair is undecided unless inequation 1 holds or fails by this many standard
            errors.
        undecided: how networks are split at a pair that neither profile nor times settle: by the
            larger likelihood, always fused, or always separate.
        chains: whether our method first counts kernels along chains of tiny ops (see `chains`).
        profile: whether the runtime's profiler is asked.
        blind: whether pairs that a profile has settled are measured like all others, to judge how
            well times alone do.
        settings: changes of the measurement settings.
    """

    method: Method = "latfarm"
    pairs: Literal["core", "all"] | list[tuple[str, str]] = "core"
    sizes: list[Literal["small", "large"]] = Field(default=["small", "large"], min_length=1)
    rounds: int = Field(default=3, ge=2)
    max_rounds: int = Field(default=6, ge=2)
    alpha: float = Field(default=0.5, gt=0, lt=1)
    gate: float = Field(default=5.0, gt=0)
    sureness: float = Field(default=2.0, gt=0)
    undecided: Literal["likelihood", "fuse", "separate"] = "likelihood"
    chains: bool = True
    profile: bool = True
    blind: bool = False
    settings: SettingsChange = SettingsChange()
