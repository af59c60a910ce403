"""The samplers by their names."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from latfarm_controller import zoo
from latfarm_controller.campaigns.sampling.annette import AnnetteSampler
from latfarm_controller.campaigns.sampling.base import Sampler, SamplingTask
from latfarm_controller.campaigns.sampling.latfarm import Guide, LatfarmSampler
from latfarm_controller.campaigns.sampling.nn_meter import NnMeterSampler
from latfarm_controller.campaigns.sampling.prior import PriorSampler
from latfarm_controller.campaigns.sampling.random import RandomSampler
from latfarm_controller.zoo.draws.marginals import published_classifiers

if TYPE_CHECKING:
    from latfarm_predictors.models.sibling import Sibling

SamplerName = Literal["prior", "latfarm", "random", "annette", "nn-meter"]
"""`prior`: representative kernels of the zoo, all drawn at once. `latfarm`: the same in batches,
half of each batch chosen by what was measured. `random`, `annette` and `nn-meter`: as published."""


def _current_name(name: Any) -> Any:
    # Campaigns stored before `latfarm` was the sampler's only name may call it `adaptive`. They
    # must resume, and it is the same sampler.
    return "latfarm" if name == "adaptive" else name


StoredSamplerName = Annotated[SamplerName, BeforeValidator(_current_name)]
"""The sampler's name as a campaign's configuration holds it."""


def make_sampler(
    name: SamplerName,
    task: SamplingTask,
    *,
    target: float | None = None,
    guide: Guide = "variance",
    sibling: Sibling | None = None,
) -> Sampler:
    """A fresh sampler; the same arguments and samples make it draw the same kernels.

    Args:
        name: which sampler.
        task: what is asked of it.
        target: share of its test set that `nn-meter` wants to be accurate before it ends.
        guide: by what `latfarm` picks layers of networks.
        sibling: the sibling platform that `latfarm` starts from.

    Raises:
        UsageError: the task names a zoo family that does not exist.
    """
    if name == "prior":
        return PriorSampler(task)
    if name == "random":
        return RandomSampler(task)
    if name == "annette":
        return AnnetteSampler(task)
    if name == "nn-meter":
        return NnMeterSampler(task, target=target)
    return LatfarmSampler(task, guide=guide, sibling=sibling)


def kernel_families(name: SamplerName, exclude_lineages: Collection[str]) -> list[str]:
    """Names of the families that a sampler draws from, without those of some lineages.

    Args:
        name: which sampler.
        exclude_lineages: names of lineages.

    Returns:
        An empty list where nothing is left out: no lineage is named, or the sampler draws from no
        families.

    Raises:
        UsageError: no family is left.
    """
    if not exclude_lineages or name in ("random", "annette"):
        return []
    kept = zoo.calibration_families(exclude_lineages)
    if name != "nn-meter":
        return list(kept)
    barred = frozenset(exclude_lineages)
    collected = published_classifiers().items()
    return [family for family, found in collected if not found.lineage & barred]
