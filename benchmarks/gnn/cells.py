"""NNLQP's NASBench-201 networks whose cells were inferred from their file numbers.

The folder `nnlqp_cells` in LATFARM_BENCH_DATA holds `cells.csv`: index, cell, latency_ms, stage. It
is no part of this repository. The latencies are those of NNLQP's data set (gtx1660, TensorRT 7.1,
fp32). Its graphs are not public, and the cells are inferred: so is every figure that rests on them.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from latfarm_controller.zoo.cnn import nasbench201
from latfarm_controller.zoo.design import Design
from latfarm_predictors.features.table import Array
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

from benchmarks.gnn.networks import BenchNetwork, Source

PLATFORM = "gtx1660-trt7.1-fp32"
NOTE = "NNLQP's cells are inferred from file numbers, not given"
TRAIN, TEST = "train", "test"
RESOLUTION = 32
"""Height and width of the benchmark's images in pixels (CIFAR-10)."""
TREND = tuple(range(len(nasbench201.OPS)))
"""The features of a cell that count ops; the others tell the op of each edge."""
GROUPS = (0,) * len(TREND) + (1,) * 6 * len(TREND)
"""The group of each feature of a cell: counts, and edges."""
_EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""Source and target of each edge of a cell, in the order in which a `Cell` names its ops."""


def read_cells(folder: Path) -> tuple[Source, Source]:
    """The published split: networks to train on, and networks that judge.

    Cells whose output does not depend on their input have no latency to predict, and are left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: a row is no cell, or its latency is not positive; the message names the line.
    """
    parts: dict[str, list[BenchNetwork]] = {TRAIN: [], TEST: []}
    path = folder / "nnlqp_cells" / "cells.csv"
    dropped = 0
    with path.open(newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                latency_ms = float(row["latency_ms"])
                cell = nasbench201.cell_from_text(row["cell"])
                part = parts[row["stage"]]
            except (KeyError, ValueError) as error:
                raise ValueError(f"{path}, line {line}: {error}") from error
            if not 0 < latency_ms < float("inf"):
                raise ValueError(f"{path}, line {line}: a latency of {latency_ms} ms")
            if not connected(cell):
                dropped += 1
                continue
            graph = network_of(cell, f"cell-{row['index']}")
            part.append(BenchNetwork(graph, "nasbench201", (latency_ms,), cell_features(cell)))
    facts = {"file": path.name, "disconnected_cells_left_out": dropped}
    return (
        Source("nnlqp-cells-train", PLATFORM, NOTE, parts[TRAIN], facts=facts),
        Source("nnlqp-cells-test", PLATFORM, NOTE, parts[TEST], facts=facts),
    )


def network_of(cell: nasbench201.Cell, name: str) -> Graph:
    """The benchmark's network of a cell."""
    b = GraphBuilder(name)
    x = b.input((1, 3, RESOLUTION, RESOLUTION))
    return b.build([nasbench201.network(b, x, Design(), cell)])


def connected(cell: nasbench201.Cell) -> bool:
    """Whether the output of a cell depends on its input."""
    return 3 in _reached(cell, forwards=True)


def cell_features(cell: nasbench201.Cell) -> tuple[float, ...]:
    """What a simple model reads of a cell: how often each op is used, and which op each edge has.

    Edges that no path from input to output takes count as without an op: they are never run.
    """
    useful = _reached(cell, forwards=True) & _reached(cell, forwards=False)
    ops = [
        op if source in useful and target in useful else "none"
        for (source, target), op in zip(_EDGES, cell, strict=True)
    ]
    counts = [float(ops.count(op)) for op in nasbench201.OPS]
    places = [float(op == known) for op in ops for known in nasbench201.OPS]
    return (*counts, *places)


def _reached(cell: nasbench201.Cell, *, forwards: bool) -> set[int]:
    """The nodes of a cell that its input reaches, or from which its output is reached."""
    reached = {0} if forwards else {3}
    edges = list(zip(_EDGES, cell, strict=True))
    for (source, target), op in edges if forwards else reversed(edges):
        begin, end = (source, target) if forwards else (target, source)
        if op != "none" and begin in reached:
            reached.add(end)
    return reached


def features_of(source: Source) -> Array:
    """The features of all cells of a source, shape (n, 35)."""
    return np.array([each.features for each in source.networks], dtype=np.float64)
