"""Which networks to calibrate with: many families, spread evenly over the latencies of interest."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals

from latfarm_controller import zoo
from latfarm_controller.errors import UsageError

LEAST_FAMILIES = 6
WIDTHS = (0.35, 0.5, 0.75, 1.0, 1.25, 1.5)
RESOLUTIONS = (96, 128, 160, 192, 224, 256)


@dataclass(frozen=True)
class _Base:
    family: zoo.Family
    macs: float


def calibration_networks(
    count: int,
    *,
    exclude_lineages: Collection[str] = (),
    seed: int = 0,
    macs: tuple[float, float] = (6e7, 6e9),
) -> list[Graph]:
    """`count` networks of at least six families, widths and resolutions apart.

    The operations aimed at lie evenly between the logarithms of `macs`; each is given to the family
    that has had the fewest turns and reaches it best. Published sizes of thin networks stay out of
    reach of many operations, so what is aimed at is met as closely as width and resolution let it.

    Args:
        count: how many.
        exclude_lineages: lines whose families are left out.
        seed: of the order in which families get their turn, and of drawn families.
        macs: least and most multiply-adds of a network; at 20 per nanosecond 3 to 300 ms.

    Raises:
        UsageError: fewer than six families are left (or fewer than `count`, if that is less).
    """
    random = Random(seed)
    families = zoo.calibration_families(exclude_lineages)
    if len(families) < min(LEAST_FAMILIES, count):
        raise UsageError(
            f"calibration needs {LEAST_FAMILIES} zoo families, and without the lineages "
            f"{', '.join(sorted(exclude_lineages))} there are {len(families)}"
        )
    bases = [
        _Base(family, float(graph_totals(family.build(seed=seed)).macs))
        for family in families.values()
    ]
    random.shuffle(bases)
    low, high = math.log(macs[0]), math.log(macs[1])
    aims = [low + (high - low) * (i + 0.5) / count for i in range(count)]
    turns = dict.fromkeys((base.family.name for base in bases), 0)
    chosen: dict[str, tuple[float, Graph]] = {}
    # The extremes first: few families reach them, and they must not have had their turn before.
    for aim in sorted(aims, key=lambda a: -abs(a - (low + high) / 2)):
        best = min(bases, key=lambda b: (turns[b.family.name] + _miss(b, aim), b.family.name))
        turns[best.family.name] += 1
        graph = _nearest(best, aim, random, set(chosen), seed + turns[best.family.name])
        if graph is not None:
            chosen[hash_of(graph)] = (aim, graph)
    return [graph for _, graph in sorted(chosen.values(), key=lambda pair: pair[0])]


def _scaled(base: _Base, width: float, resolution: int) -> float:
    # Convolutions dominate: operations grow with both squares.
    return (
        math.log(base.macs)
        + 2 * math.log(width)
        + 2 * math.log(resolution / base.family.resolution)
    )


def _options(base: _Base) -> list[tuple[float, int]]:
    # Networks for tiny images keep to tiny images: their first layers do not shrink the map.
    small = base.family.resolution <= 64
    sizes = (base.family.resolution,) if small else RESOLUTIONS
    return [(width, size) for width in WIDTHS for size in sizes]


def _miss(base: _Base, aim: float) -> float:
    """How far, in logarithms of operations, the family's nearest option is from the aim."""
    return min(abs(_scaled(base, *option) - aim) for option in _options(base))


def _nearest(
    base: _Base, aim: float, random: Random, taken: Collection[str], seed: int
) -> Graph | None:
    options = _options(base)
    random.shuffle(options)
    # Within a fifth of a decade any option will do, so that chance varies width and resolution.
    options.sort(key=lambda option: max(0.45, abs(_scaled(base, *option) - aim)))
    for width, resolution in options[:8]:
        try:
            graph = base.family.build(width=width, resolution=resolution, seed=seed)
        except GraphError:
            continue  # too small an image for this network
        if hash_of(graph) not in taken:
            return graph
    return None
