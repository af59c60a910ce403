"""The zoo: families of networks, published and synthetic, each built by a short function.

```
build("mobilenet-v2")                              as published
build("mobilenet-v2", width=0.5, resolution=160)   half the channels, smaller images
build("synthetic@17")                              the network that seed 17 draws
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from latfarm_predictors.graph.graph import Graph

from latfarm_controller import nearest_names
from latfarm_controller.errors import UsageError
from latfarm_controller.zoo.families import FAMILIES
from latfarm_controller.zoo.family import Family

__all__ = ["Family", "build", "calibration_families", "families", "find"]


def families() -> Mapping[str, Family]:
    """All families by their names."""
    return FAMILIES


def calibration_families(exclude_lineages: Collection[str] = ()) -> Mapping[str, Family]:
    """The `sampled` families without those of some lineages.

    Args:
        exclude_lineages: names of lineages, for example "vgg" or "resnet"; a family that belongs to
            one of them is left out.

    Raises:
        UsageError: no family is left.
    """
    barred = frozenset(exclude_lineages)
    kept = {
        name: family
        for name, family in FAMILIES.items()
        if family.sampled and not family.lineage & barred
    }
    if not kept:
        raise UsageError(f"no family is left without the lineages {', '.join(sorted(barred))}")
    return kept


def find(name: str) -> tuple[Family, int]:
    """The family and the seed that a name stands for: "family" or "family@seed".

    Raises:
        UsageError: there is no such family, or the seed is no number, or the family is not drawn.
    """
    stem, at, seed = name.partition("@")
    family = FAMILIES.get(stem)
    if family is None:
        near = nearest_names.hint(stem, FAMILIES)
        raise UsageError(f"no zoo family {stem!r}{near or '; latfarm zoo list shows all of them'}")
    if at and not (family.drawn and seed.isdecimal()):
        hint = (
            "must be a number" if family.drawn else "needs a drawn family (nasbench201, synthetic)"
        )
        raise UsageError(f"{name!r}: the seed after @ {hint}")
    return family, int(seed) if at else 0


def build(name: str, *, width: float = 1.0, resolution: int | None = None, batch: int = 1) -> Graph:
    """A network of the zoo, as published unless the arguments say otherwise.

    Args:
        name: "family", or "family@seed" for drawn families.
        width: factor on the numbers of channels.
        resolution: height and width of the image in pixels, or tokens of a sequence.
        batch: batch size of the input.

    Raises:
        UsageError: there is no such family.
        GraphError: the resolution is too small for the network.
    """
    family, seed = find(name)
    return family.build(width=width, resolution=resolution, batch=batch, seed=seed)
