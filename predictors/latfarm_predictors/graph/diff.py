"""The differences between two graphs: their ops are aligned one by one, without names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from latfarm_predictors.graph.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Change:
    """A run of ops that both graphs have, or that only one of them has.

    `side` is "same", "left" (only in the first graph) or "right" (only in the second); `ops` are
    one line each, as "Conv group=1 kernel_shape=[3,3] : 1x3x224x224, 32x3x3x3 -> 1x32x112x112".
    """

    side: Literal["same", "left", "right"]
    ops: tuple[str, ...]


def describe_node(graph: Graph, node: Node) -> str:
    """A node in one line: op, attributes, and types of operands and results, without names."""
    attrs = "".join(f" {name}={_value(value)}" for name, value in sorted(node.attrs.items()))
    given = ", ".join(_operand(graph, tensor) for tensor in node.inputs)
    made = ", ".join(_operand(graph, tensor) for tensor in node.outputs if tensor)
    return f"{node.op}{attrs} : {given} -> {made}"


def diff_graphs(left: Graph, right: Graph) -> list[Change]:
    """The ops of two graphs in execution order, aligned by their longest common runs.

    Connections are not compared: two graphs whose ops agree one by one may still be connected
    differently. Only their hashes show that.
    """
    first = [describe_node(left, node) for node in left.nodes]
    second = [describe_node(right, node) for node in right.nodes]
    changes: list[Change] = []
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            changes.append(Change("same", tuple(first[a0:a1])))
            continue
        if a1 > a0:
            changes.append(Change("left", tuple(first[a0:a1])))
        if b1 > b0:
            changes.append(Change("right", tuple(second[b0:b1])))
    return changes


def unified(changes: list[Change], context: int = 2) -> Iterator[str]:
    """The changes as lines of a unified diff: "- " first graph, "+ " second graph, "  " both.

    Of long runs of equal ops only the `context` ops beside each change are shown.
    """
    for index, change in enumerate(changes):
        if change.side != "same":
            mark = "-" if change.side == "left" else "+"
            yield from (f"{mark} {op}" for op in change.ops)
            continue
        before = 0 if index == 0 else context
        after = 0 if index == len(changes) - 1 else context
        if len(change.ops) <= before + after:
            yield from (f"  {op}" for op in change.ops)
            continue
        yield from (f"  {op}" for op in change.ops[:before])
        yield f"  ... {len(change.ops) - before - after} equal ops"
        yield from (f"  {op}" for op in change.ops[len(change.ops) - after :])


def _operand(graph: Graph, tensor: str) -> str:
    if not tensor:
        return "none"
    kind = graph.type_of(tensor)
    sizes = "x".join(str(size) for size in kind.shape) or "scalar"
    dtype = "" if kind.dtype == "float32" else f" {kind.dtype}"
    weight = graph.weights.get(tensor)
    values = ""
    if weight is not None and weight.values is not None:
        shown = ",".join(f"{value:g}" for value in weight.values[:8])
        values = f"={shown}{',...' if len(weight.values) > 8 else ''}"
    return f"{sizes}{dtype}{values}"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(_value(item) for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
