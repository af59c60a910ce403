"""Check that different forms of a network have one network hash, and similar networks others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of, normal_form
from latfarm_predictors.graph.graph import AttrValue, Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of

Spelling = Callable[[GraphBuilder, str], str]
"""Adds one form of a network behind a tensor; returns the name of its result."""
MAP = (2, 4, 6, 6)
"""Shape of a small feature map: batch, channels, height, width."""


@dataclass(frozen=True)
class SpellingCase:
    """Forms of one network, and similar networks that are not the same.

    Attributes:
        name: of the case.
        same: forms of one network.
        other: networks that must have other hashes.
        shape: of the tensor to which they are applied.
    """

    name: str
    same: Sequence[Spelling]
    other: Sequence[Spelling] = ()
    shape: tuple[int, ...] = MAP


def network(spelling: Spelling, shape: Sequence[int]) -> Graph:
    """A graph with this form between a Tanh and an Exp, which no rule changes."""
    b = GraphBuilder("network")
    x = b.input(shape)
    return b.build([b.op("Exp", [spelling(b, b.tanh(x))])])


def check(case: SpellingCase) -> None:
    """Assert that all forms, and only they, have one network hash, and that normal forms are valid.

    Raises:
        AssertionError: one of these does not hold.
    """
    forms = [network(spelling, case.shape) for spelling in case.same]
    first = network_hash_of(forms[0])
    for index, graph in enumerate(forms):
        assert network_hash_of(graph) == first, (
            f"spelling {index}: {ops(graph)} is not {ops(forms[0])}"
        )
        normal = normal_form(graph)
        assert hash_of(normal) == first
        assert hash_of(normal_form(normal)) == first
        assert macs_of(normal) == macs_of(graph)
        assert [normal.type_of(t) for t in normal.outputs] == [
            graph.type_of(t) for t in graph.outputs
        ]
    assert len({hash_of(graph) for graph in forms}) > 1, "spellings do not differ"
    others = [network_hash_of(network(spelling, case.shape)) for spelling in case.other]
    assert first not in others
    assert len(set(others)) == len(others)


def ops(graph: Graph) -> list[str]:
    """The ops of the normal form of a graph, in order."""
    return [node.op for node in normal_form(graph).nodes]


def number(b: GraphBuilder, x: str, value: float, shape: Sequence[int] = ()) -> str:
    """Add a constant of one known value, of the element type of `x`."""
    return b.weight(shape, b.type_of(x).dtype, (value,))


def with_number(op: str, value: float, shape: Sequence[int] = ()) -> Spelling:
    """An op with a known constant as its second operand."""
    return lambda b, x: b.op(op, [x, number(b, x, value, shape)])


def with_weight(op: str, shape: Sequence[int]) -> Spelling:
    """An op with a weight as its second operand."""
    return lambda b, x: b.op(op, [x, b.weight(shape)])


def chain(*steps: Spelling) -> Spelling:
    """Several forms in a row."""

    def run(b: GraphBuilder, x: str) -> str:
        for step in steps:
            x = step(b, x)
        return x

    return run


def unary(op: str, **attrs: AttrValue) -> Spelling:
    """An op of one operand."""
    return lambda b, x: b.op(op, [x], attrs)


def plain(_: GraphBuilder, x: str) -> str:
    """No op: the result is the tensor itself."""
    return x


def clip(lower: float | None, upper: float | None) -> Spelling:
    """Clip with constant bounds, None for absent ones."""

    def run(b: GraphBuilder, x: str) -> str:
        bounds = ["" if v is None else number(b, x, v) for v in (lower, upper)]
        return b.op("Clip", [x, *bounds] if bounds[1] else [x, bounds[0]])

    return run
