"""Which networks a predictor is calibrated with: many families, drawn as those are that judge it.

An interval holds as often as it says only for networks like those that calibrated it. So most draws
redraw the channels and windows of every layer, like the networks that judge predictors
(`zoo.draws.variants`); these are less regular than published networks, and so are the networks that
an architecture search asks about. The draws differ in the families:

- "judged" has the families that judge, each as often as the others (`zoo.draws.judged_mix`).
- "convolutional" and "transformers" have those of one class alone, for who asks about no other.
- "variants" has all families, each as often as the others. Families for tiny images are left out,
  because none of them judges: their networks take a small part of the time of the others, and
  kernels on maps of a few pixels are harder to predict.
- "scaled" has all families, and changes the width and the resolution of whole networks, evenly
  spread over numbers of operations. It is for who asks about networks as published.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals

from latfarm_controller import zoo
from latfarm_controller.errors import UsageError
from latfarm_controller.zoo.draws.judged_mix import MIXES, calibrating_families, is_tiny
from latfarm_controller.zoo.draws.variants import variant

Draw = Literal["variants", "scaled", "judged", "convolutional", "transformers"]
"""How calibration networks are drawn, as described above."""
DRAWS: tuple[Draw, ...] = get_args(Draw)
VARIANTS, SCALED = DRAWS[:2]
LEAST_FAMILIES = 6
"""Number of zoo families that a calibration needs."""
WIDTHS = (0.35, 0.5, 0.75, 1.0, 1.25, 1.5)
"""Factors on the numbers of channels to choose from."""
RESOLUTIONS = (96, 128, 160, 192, 224, 256)
"""Heights and widths of images to choose from, in pixels."""
TOKENS = (32, 64, 128, 192, 256, 384)
"""Lengths of the sequences of language models to choose from."""
_ANY_WILL_DO = 0.45
"""Distances from the aim below this one, in logarithms of operations, all count as equal: a fifth
of a decade. So chance varies width and resolution."""
_FIRST_SEED = 1_000_000_007
"""Seeds of variants begin here, far from those of networks that judge predictors, so that no
network does both."""
_SEEDS_A_DRAW = 100_000
"""Difference between the first seeds of two draws."""
_PATIENCE = 40
"""Number of variants of a family that are drawn in vain before the family is given up."""
_JUDGED_PATIENCE = 300
"""The same number for families that judge, none of which may be missing by chance: 3 % of VGG's
variants have at most 2e9 multiply-adds, as networks that judge have."""
_OUT_OF_REACH = 2.0
"""A family is given up after `_PATIENCE` variants if all of them miss the limits of multiply-adds
by more than this factor."""
_MOST_OPTIONS = 8
"""Number of widths and resolutions that are tried until one gives a new network."""


@dataclass(frozen=True)
class _Base:
    """A family, and the multiply-adds of its network as published."""

    family: zoo.Family
    macs: float


@dataclass(frozen=True)
class _Wanted:
    """Which variants are taken.

    Attributes:
        macs: least and most multiply-adds.
        patience: number of variants of a family that are drawn in vain before it is given up.
        exclude: hashes of networks that must not be drawn.
    """

    macs: tuple[float, float]
    patience: int
    exclude: frozenset[str]


def calibration_networks(
    count: int,
    *,
    exclude_lineages: Collection[str] = (),
    seed: int = 0,
    macs: tuple[float, float] = (6e7, 6e9),
    draw: Draw = VARIANTS,
    exclude: Collection[str] = (),
) -> list[Graph]:
    """`count` networks of many families, each family of the draw as often as the others.

    Variants are drawn until their multiply-adds lie within `macs`. No seed of a variant is one of
    a network that judges.

    With "scaled", the numbers of operations to aim at lie evenly, by their logarithms, between the
    limits of `macs`. Each aim is given to the family that has had the fewest turns and can come
    closest to it. Not every family reaches every number of operations, so that an aim is met as
    closely as width and resolution allow.

    Args:
        count: how many networks.
        exclude_lineages: lineages whose families are left out.
        seed: random seed of the order in which families get their turn, and of drawn families.
        macs: least and most multiply-adds of a network. At 20 per nanosecond, 6e7 to 6e9 of them
            take 3 to 300 ms.
        draw: how networks are drawn, see the module.
        exclude: hashes of networks that must not be drawn.

    Raises:
        UsageError: fewer than six families are left (or fewer than `count`, if that is less);
            families for tiny images count for scaled networks alone.
    """
    families = zoo.calibration_families(exclude_lineages)
    if draw != SCALED:
        families = {name: each for name, each in families.items() if not is_tiny(each)}
    if len(families) < min(LEAST_FAMILIES, count):
        raise UsageError(
            f"calibration needs {LEAST_FAMILIES} zoo families, and without the lineages "
            f"{', '.join(sorted(exclude_lineages))} there are {len(families)}"
        )
    if draw in MIXES:
        named = calibrating_families(draw, exclude_lineages)
        return _variants(count, named, _Wanted(macs, _JUDGED_PATIENCE, frozenset(exclude)), seed)
    if draw == VARIANTS:
        wanted = _Wanted(macs, _PATIENCE, frozenset(exclude))
        return _variants(count, [(name,) for name in families], wanted, seed)
    return _scaled_networks(count, list(families.values()), macs, frozenset(exclude), seed)


def _scaled_networks(
    count: int,
    families: Sequence[zoo.Family],
    macs: tuple[float, float],
    exclude: frozenset[str],
    seed: int,
) -> list[Graph]:
    """Networks of other widths and resolutions, as near to evenly spread operations as they come.

    Args:
        count: how many networks.
        families: the families to take turns.
        macs: least and most multiply-adds of a network.
        exclude: hashes of networks that must not be drawn.
        seed: random seed.
    """
    random = Random(seed)
    bases = [
        _Base(family, float(graph_totals(family.build(seed=seed)).macs)) for family in families
    ]
    random.shuffle(bases)
    low, high = math.log(macs[0]), math.log(macs[1])
    aims = [low + (high - low) * (i + 0.5) / count for i in range(count)]
    turns = dict.fromkeys((base.family.name for base in bases), 0)
    chosen: dict[str, tuple[float, Graph]] = {}
    # The extremes come first: few families reach them, and these must not have had their turn.
    for aim in sorted(aims, key=lambda a: -abs(a - (low + high) / 2)):
        best = min(bases, key=lambda b: (turns[b.family.name] + _miss(b, aim), b.family.name))
        turns[best.family.name] += 1
        graph = _nearest(best, aim, random, exclude.union(chosen), seed + turns[best.family.name])
        if graph is not None:
            chosen[hash_of(graph)] = (aim, graph)
    return [graph for _, graph in sorted(chosen.values(), key=lambda pair: pair[0])]


def _variants(
    count: int, turns: Sequence[tuple[str, ...]], wanted: _Wanted, seed: int
) -> list[Graph]:
    """Variants of families that take turns.

    Args:
        count: how many networks.
        turns: for each turn, the names of the families that it may go to. One without variants
            that are wanted is given up, and so is a turn without families.
        wanted: which variants are taken.
        seed: random seed.
    """
    random = Random(seed)
    waiting = [list(names) for names in turns]
    random.shuffle(waiting)
    numbers = itertools.count(_FIRST_SEED + seed * _SEEDS_A_DRAW)
    found: dict[str, Graph] = {}
    while waiting and len(found) < count:
        for names in list(waiting):
            while names:
                name = random.choice(names) if len(names) > 1 else names[0]
                label = f"{name}-calibration-{len(found)}"
                graph = _new_variant(name, numbers, label, wanted, found)
                if graph is not None:
                    found[hash_of(graph)] = graph
                    break
                names.remove(name)
            else:
                waiting.remove(names)
            if len(found) == count:
                break
    return list(found.values())


def _new_variant(
    name: str, numbers: Iterator[int], label: str, wanted: _Wanted, taken: Collection[str]
) -> Graph | None:
    """The next variant of a family that is wanted and not taken; None after some patience."""
    nearest = math.inf
    for tried, number in enumerate(itertools.islice(numbers, wanted.patience)):
        if tried == _PATIENCE and nearest > _OUT_OF_REACH:
            return None
        try:
            graph = variant(name, number, label=label)
        except GraphError:
            continue  # its windows are larger than its maps
        macs = max(graph_totals(graph).macs, 1)
        nearest = min(nearest, max(wanted.macs[0] / macs, macs / wanted.macs[1]))
        if wanted.macs[0] <= macs <= wanted.macs[1]:
            key = hash_of(graph)
            if key not in taken and key not in wanted.exclude:
                return graph
    return None


def _scaled(base: _Base, width: float, resolution: int) -> float:
    """The logarithm of a network's operations.

    These grow with the square of the width, and with the number of pixels or tokens.
    """
    axes = 1 if base.family.task == "language" else 2
    grown = axes * math.log(resolution / base.family.resolution)
    return math.log(base.macs) + 2 * math.log(width) + grown


def _options(base: _Base) -> list[tuple[float, int]]:
    """All widths and resolutions of a family."""
    # The first layers of networks for tiny images do not shrink the map: they keep tiny images.
    sizes = (base.family.resolution,) if is_tiny(base.family) else RESOLUTIONS
    if base.family.task == "language":
        sizes = TOKENS
    return [(width, size) for width in WIDTHS for size in sizes]


def _miss(base: _Base, aim: float) -> float:
    """How far, in logarithms of operations, the family's nearest option is from the aim."""
    return min(abs(_scaled(base, *option) - aim) for option in _options(base))


def _nearest(
    base: _Base, aim: float, random: Random, taken: Collection[str], seed: int
) -> Graph | None:
    """A network of the family that is close to the aim, and none of those taken."""
    options = _options(base)
    random.shuffle(options)
    options.sort(key=lambda option: max(_ANY_WILL_DO, abs(_scaled(base, *option) - aim)))
    for width, resolution in options[:_MOST_OPTIONS]:
        try:
            graph = base.family.build(width=width, resolution=resolution, seed=seed)
        except GraphError:
            continue  # the image is too small for this network
        if hash_of(graph) not in taken:
            return graph
    return None
