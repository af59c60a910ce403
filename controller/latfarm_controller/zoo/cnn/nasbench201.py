"""NAS-Bench-201 (Dong and Yang 2020): a cell of four nodes, repeated 15 times."""

from __future__ import annotations

import random

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.design import Design

OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""The benchmark's names of the ops of an edge."""
CELLS = len(OPS) ** 6
"""Number of different cells."""
Cell = tuple[str, str, str, str, str, str]
"""The ops of the edges 0-1, 0-2, 1-2, 0-3, 1-3 and 2-3 between the four nodes."""


def cell_of(seed: int) -> Cell:
    """The cell that a seed draws, uniformly among connected cells.

    Cells whose output does not depend on their input are not worth measuring.
    """
    draw = random.Random(f"nasbench201 {seed}")
    while True:
        cell: Cell = tuple(draw.choice(OPS) for _ in range(6))  # type: ignore[assignment]
        if connected(cell):
            return cell


def cell_from_text(text: str) -> Cell:
    """A cell from the benchmark's notation: "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|...".

    Raises:
        ValueError: the text is no such cell.
    """
    edges = [edge for edge in text.replace("+", "|").split("|") if edge]
    ops = [edge.rpartition("~")[0] for edge in edges]
    sources = [edge.rpartition("~")[2] for edge in edges]
    if sources != ["0", "0", "1", "0", "1", "2"] or any(op not in OPS for op in ops):
        raise ValueError(f"{text!r} is not a cell of NAS-Bench-201")
    return tuple(ops)  # type: ignore[return-value]


def connected(cell: Cell) -> bool:
    """Whether the output of a cell depends on its input."""
    first, second, inner, *last = (op != "none" for op in cell)
    reached = (True, first, second or (first and inner))
    return any(edge and node for edge, node in zip(last, reached, strict=True))


def nasbench201(b: GraphBuilder, x: str, design: Design) -> str:
    """The network of the cell that `design.seed` draws."""
    return network(b, x, design, cell_of(design.seed))


def network(b: GraphBuilder, x: str, design: Design, cell: Cell) -> str:
    """The benchmark's network of a cell (section 2.1): five cells each with 16, 32, 64 channels."""
    x = b.batch_norm(b.conv(x, design.channels(16), 3))
    for stage in range(3):
        if stage:
            x = _reduction(b, x, design.channels(16 * 2**stage))
        for _ in range(5):
            x = _cell(b, x, cell)
    x = b.global_avg_pool(b.relu(b.batch_norm(x)))
    return b.fc(b.flatten(x), design.classes(10))


def _cell(b: GraphBuilder, x: str, cell: Cell) -> str:
    """A cell: each node sums its edges; nodes without input or without a reader are left out."""
    edges = dict(zip(((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)), cell, strict=True))
    useful = {3}
    for target in (3, 2):
        if target in useful:
            useful |= {s for (s, t), op in edges.items() if t == target and op != "none"}
    nodes: dict[int, str] = {0: x}
    for target in (1, 2, 3):
        if target not in useful:
            continue
        parts = [
            _edge(b, nodes[source], op)
            for (source, at), op in edges.items()
            if at == target and op != "none" and source in nodes
        ]
        if not parts:
            continue
        total = parts[0]
        for part in parts[1:]:
            total = b.add(total, part)
        nodes[target] = total
    return nodes[3]


def _edge(b: GraphBuilder, x: str, op: str) -> str:
    """The op of an edge."""
    if op == "skip_connect":
        return x
    if op == "avg_pool_3x3":
        return b.avg_pool(x, 3, 1, 1)
    return _relu_conv_bn(b, x, b.type_of(x).shape[1], 3 if op == "nor_conv_3x3" else 1)


def _relu_conv_bn(b: GraphBuilder, x: str, channels: int, kernel: int, stride: int = 1) -> str:
    return b.batch_norm(b.conv(b.relu(x), channels, kernel, stride, kernel // 2))


def _reduction(b: GraphBuilder, x: str, channels: int) -> str:
    """A residual block with stride 2; its shortcut is a pool and a 1x1 convolution."""
    y = _relu_conv_bn(b, x, channels, 3, 2)
    y = _relu_conv_bn(b, y, channels, 3)
    high, wide = b.type_of(x).shape[2:]
    # The convolution rounds the size of an odd map up: the pool must pad to give the same size.
    side = b.avg_pool(x, 2, 2, (0, 0, high % 2, wide % 2))
    return b.add(y, b.conv(side, channels, 1))
