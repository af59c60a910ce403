"""What fusion detection can be told: which pairs, how often each is measured, what is believed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from latfarm_controller.campaigns.options import CampaignOptions, SettingsChange

Method = Literal["latfarm", "paper"]


class FusionOptions(CampaignOptions):
    """Configuration of fusion detection.

    `pairs`: "core", "all", or pairs of operator names. `method`: by which of two ways times are
    read: ours, or inequation 1 as nn-Meter prints it, at the first of the sizes, whatever a call or
    a transfer costs. `undecided`: how a pair that neither profile nor times settle is used for
    splitting: by the larger likelihood, or always fused, or separate. `chains`: whether our method
    counts kernels along chains of tiny ops first, see `fusion_chains`. `blind`: whether a pair that
    a profile has settled is measured on as any other, to judge how times alone fare.
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
