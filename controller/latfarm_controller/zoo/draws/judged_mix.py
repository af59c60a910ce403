"""The families that judge predictors, and which families calibrate in the same mix.

Intervals keep their promise for networks like those that calibrated them. So calibration networks
are drawn from the families that judge, each as often as the others, with other members of each
family. A family of a lineage that must not be seen has stand-ins: families of the same folder of
the zoo, so that the shares of mobile networks, of other convolutional networks and of transformers
stay as they are among the networks that judge.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from latfarm_controller.zoo import calibration_families, find
from latfarm_controller.zoo.draws import dataset
from latfarm_controller.zoo.family import Family

Mix = Literal["judged", "convolutional", "transformers"]
"""What will be asked about: all networks that judge, those of nn-Meter's dataset, or transformers
and hybrids."""
MIXES: tuple[Mix, ...] = get_args(Mix)
JUDGED, CONVOLUTIONAL, TRANSFORMERS = MIXES
TINY_IMAGE = 64
"""Largest resolution of a tiny image, in pixels."""


def is_tiny(family: Family) -> bool:
    """Whether a family was published for tiny images. No such family judges."""
    return family.task != "language" and family.resolution <= TINY_IMAGE


def judged_families(mix: Mix = JUDGED) -> tuple[str, ...]:
    """The names of the families that judge; each judges with as many networks as the others."""
    networks = tuple(name for name in dataset.FAMILIES if not is_tiny(find(name)[0]))
    return {
        JUDGED: (*networks, *dataset.TRANSFORMERS),
        CONVOLUTIONAL: networks,
        TRANSFORMERS: dataset.TRANSFORMERS,
    }[mix]


def calibrating_families(
    mix: Mix = JUDGED, exclude_lineages: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """For each family that judges, the names of those that may calibrate in its place.

    That is the family itself; or, where its lineage is left out, the sampled families of its folder
    of the zoo. Where that has none either, it is all sampled families of the same task, and at last
    none.

    Args:
        mix: what will be asked about.
        exclude_lineages: names of lineages, no family of which may calibrate.

    Raises:
        UsageError: no family of the zoo is left.
    """
    barred = frozenset(exclude_lineages)
    left = {n: f for n, f in calibration_families(barred).items() if not is_tiny(f)}
    found = []
    for name in judged_families(mix):
        family = find(name)[0]
        found.append((name,) if not family.lineage & barred else _stand_ins(family, left))
    return found


def _stand_ins(family: Family, left: Mapping[str, Family]) -> tuple[str, ...]:
    """The families that may calibrate for one that is left out."""
    same = tuple(name for name, each in left.items() if each.folder == family.folder)
    return same or tuple(name for name, each in left.items() if each.task == family.task)
