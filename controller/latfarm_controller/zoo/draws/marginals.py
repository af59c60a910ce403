"""How often networks use each map size, channel count, kernel size and stride: nn-Meter's prior P.

nn-Meter, section 5.2: "we collect the configurations from 24 state-of-the-art CNN models and get
the possibility distribution of each kernel dimension". Here the configurations come from the
zoo's families as published, or from files like those in nn-Meter's repository.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from latfarm_predictors.graph.graph import Graph, Node

from latfarm_controller.errors import UsageError
from latfarm_controller.zoo import families as zoo_families
from latfarm_controller.zoo.family import Family

DIMENSIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "conv": ("hw", "cin", "cout", "kernel", "stride"),
        "dwconv": ("hw", "cin", "kernel", "stride"),
        "fc": ("cin", "cout"),
        "pool": ("hw", "cin", "kernel", "stride"),
    }
)
"""The dimensions of each kind of kernel: `hw` is the height and width of the input, `cin` and
`cout` are channels in and out. Depthwise convolutions and pools keep their number of channels."""
CHANNELS = frozenset({"cin", "cout"})
"""The dimensions that are numbers of channels."""
_LEAST_RESOLUTION = 65
"""Least resolution, in pixels, of the families that nn-Meter could have collected."""

_FILES = {"conv": "conv.csv", "dwconv": "dwconv.csv", "fc": "fc.csv", "pool": "pooling.csv"}
_COLUMNS = {"hw": "input_h", "cin": "cin", "cout": "cout", "kernel": "ks", "stride": "stride"}
"""The column of each dimension in nn-Meter's files."""

Marginals = Mapping[str, Mapping[str, tuple[int, ...]]]
"""The values of all layers, sorted, for each kind of kernel and each of its dimensions."""


def zoo_marginals(families: Mapping[str, Family] | None = None) -> Marginals:
    """The marginals of the layers of `families` as published.

    Only square kernels on square maps count, as nn-Meter encodes them; grouped convolutions are
    left out.

    Args:
        families: the families; by default `published_classifiers()`.
    """
    chosen = published_classifiers() if families is None else families
    rows: dict[str, list[tuple[int, ...]]] = {kind: [] for kind in DIMENSIONS}
    for family in chosen.values():
        graph = family.build()
        for node in graph.nodes:
            found = configuration(graph, node)
            if found is not None:
                rows[found[0]].append(found[1])
    return _columns(rows)


def published_classifiers() -> Mapping[str, Family]:
    """Families like those that nn-Meter collected: classifiers of images, not drawn ones."""
    return {
        name: family
        for name, family in zoo_families().items()
        if family.task == "classification"
        and not family.drawn
        and family.resolution >= _LEAST_RESOLUTION
    }


def configuration(graph: Graph, node: Node) -> tuple[str, tuple[int, ...]] | None:
    """A node's kind of kernel and its values in the order of `DIMENSIONS`; or None."""
    if node.op == "Gemm":
        rows, columns = graph.type_of(node.inputs[1]).shape
        sizes = (columns, rows) if node.attrs["transB"] else (rows, columns)
        return ("fc", sizes) if node.inputs[1] in graph.weights else None
    if node.op not in ("Conv", "MaxPool", "AveragePool"):
        return None
    shape = graph.type_of(node.inputs[0]).shape
    kernel, strides = node.attrs["kernel_shape"], node.attrs["strides"]
    if not isinstance(kernel, tuple) or not isinstance(strides, tuple) or len(shape) != 4:
        return None
    if shape[2] != shape[3] or kernel[0] != kernel[1] or strides[0] != strides[1]:
        return None
    hw, channels, size, stride = shape[2], shape[1], int(kernel[0]), int(strides[0])
    if node.op != "Conv":
        return "pool", (hw, channels, size, stride)
    made = graph.type_of(node.outputs[0]).shape[1]
    if node.attrs["group"] == 1:
        return "conv", (hw, channels, made, size, stride)
    if node.attrs["group"] == channels == made:
        return "dwconv", (hw, channels, size, stride)
    return None


def csv_marginals(folder: Path) -> Marginals:
    """The marginals of the files conv.csv, dwconv.csv, fc.csv and pooling.csv.

    Each row is a layer. The columns are input_h, input_w, cin, cout, ks, stride and groups; those
    of fc.csv are cin and cout.

    Raises:
        UsageError: a file is missing, lacks a column, or contains something else than numbers.
    """
    rows: dict[str, list[tuple[int, ...]]] = {}
    for kind, dimensions in DIMENSIONS.items():
        path = folder / _FILES[kind]
        try:
            with path.open(newline="", encoding="utf-8") as stream:
                rows[kind] = [
                    tuple(int(line[_COLUMNS[name]]) for name in dimensions)
                    for line in csv.DictReader(stream)
                    if kind != "conv" or int(line.get("groups") or 1) == 1
                ]
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path}: contains no valid configurations of {kind} layers: {error}"
            ) from error
        if not rows[kind] or min(min(row) for row in rows[kind]) < 1:
            raise UsageError(f"{path}: every size must be given and be at least 1")
    return _columns(rows)


def _columns(rows: Mapping[str, Sequence[tuple[int, ...]]]) -> Marginals:
    """The marginals of layers, given by kind as values in the order of `DIMENSIONS`."""
    return {
        kind: {
            name: tuple(sorted(row[index] for row in rows[kind]))
            for index, name in enumerate(dimensions)
        }
        for kind, dimensions in DIMENSIONS.items()
        if rows[kind]
    }


def distances(ours: Marginals, theirs: Marginals) -> dict[str, dict[str, float]]:
    """The distance of two priors, from 0 (equal) to 1, in each dimension that both have.

    For kernel sizes, strides and maps it is the total variation, half the sum of |p - q|. Channels
    have hundreds of values; their distance is Kolmogorov's, the largest difference of the
    distribution functions.
    """
    found: dict[str, dict[str, float]] = {}
    for kind, dimensions in DIMENSIONS.items():
        if kind in ours and kind in theirs:
            found[kind] = {
                name: (_kolmogorov if name in CHANNELS else _total_variation)(
                    ours[kind][name], theirs[kind][name]
                )
                for name in dimensions
            }
    return found


def _total_variation(first: Sequence[int], second: Sequence[int]) -> float:
    p, q = Counter(first), Counter(second)
    values = p.keys() | q.keys()
    return sum(abs(p[v] / len(first) - q[v] / len(second)) for v in sorted(values)) / 2


def _kolmogorov(first: Sequence[int], second: Sequence[int]) -> float:
    def below(values: Sequence[int], at: int) -> float:
        return bisect_right(values, at) / len(values)

    return max(abs(below(first, v) - below(second, v)) for v in {*first, *second})


def quantile(values: Sequence[int], share: float) -> float:
    """The quantile of sorted values at `share` (0 to 1), linear between neighbours."""
    at = share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])
