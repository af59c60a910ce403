"""The builder caches windows; the cached values equal canonical attributes and shape inference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.canonical import same_pads
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.windows import slide, spread

SIZES = st.integers(1, 7)
PAIRS = st.one_of(SIZES, st.tuples(SIZES, SIZES))
STRIDES = st.one_of(st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(1, 3)))
PADS = st.one_of(
    st.sampled_from(("same", "valid")),
    st.integers(0, 3),
    st.tuples(*[st.integers(0, 3)] * 4),
)
MAPS = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 16), st.integers(1, 16))


def two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def spelled_out(
    op: str, shape: tuple[int, ...], kernel: Any, stride: Any, pads: Any, dilation: Any
) -> Graph:
    """The same network through `GraphBuilder.op`, which has no cache."""
    b = GraphBuilder("one")
    x = b.input(shape)
    sizes, strides, dilations = two(kernel), two(stride), two(dilation)
    if pads == "same":
        sides = [
            same_pads(n, k, s, d)
            for n, k, s, d in zip(shape[2:], sizes, strides, dilations, strict=True)
        ]
        filled = tuple(a for a, _ in sides) + tuple(z for _, z in sides)
    elif pads == "valid":
        filled = (0, 0, 0, 0)
    else:
        filled = (pads,) * 4 if isinstance(pads, int) else pads
    attrs: dict[str, Any] = {"kernel_shape": sizes, "strides": strides, "pads": filled}
    if op == "Conv":
        weight = b.weight((6, shape[1], *sizes))
        attrs |= {"dilations": dilations, "group": 1}
        return b.build([b.op("Conv", [x, weight], attrs)])
    return b.build([b.op(op, [x], attrs)])


def by_method(
    op: str, shape: tuple[int, ...], kernel: Any, stride: Any, pads: Any, dilation: Any
) -> Graph:
    b = GraphBuilder("one")
    x = b.input(shape)
    if op == "Conv":
        return b.build([b.conv(x, 6, kernel, stride, pads, dilation=dilation)])
    pool = b.max_pool if op == "MaxPool" else b.avg_pool
    return b.build([pool(x, kernel, stride, pads)])


@given(st.sampled_from(("Conv", "MaxPool", "AveragePool")), MAPS, PAIRS, STRIDES, PADS, STRIDES)
@settings(max_examples=400, deadline=None)
def test_methods_make_what_the_op_makes(
    op: str, shape: tuple[int, ...], kernel: Any, stride: Any, pads: Any, dilation: Any
) -> None:
    if op != "Conv":
        dilation = 1
    try:
        wanted = spelled_out(op, shape, kernel, stride, pads, dilation)
    except GraphError:
        with pytest.raises(GraphError):
            by_method(op, shape, kernel, stride, pads, dilation)
        return
    found = by_method(op, shape, kernel, stride, pads, dilation)
    assert found == wanted
    assert hash_of(found) == hash_of(wanted)
    for node in found.nodes:
        for value in node.attrs.values():
            assert isinstance(value, int) or {type(one) for one in value} == {int}  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(2, 6, 9), (2, 6, 9, 8), (1, 6, 5, 6, 7)])
def test_windows_slide_over_any_number_of_axes(shape: tuple[int, ...]) -> None:
    b = GraphBuilder("any")
    x = b.conv(b.input(shape), 4, 3, 2, groups=2)
    assert b.type_of(x).shape == (shape[0], 4, *(-(-n // 2) for n in shape[2:]))
    assert b.type_of(b.max_pool(x, 2, 1)).shape[2:] == tuple(n - 1 for n in b.type_of(x).shape[2:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4, 3, 8, 8), 9, 1, "valid"), "larger than its padded input"),
        (((4, 3, 8, 8), 0, 1, "valid"), "at least 1"),
        (((4, 3, 8, 8), 3, 0, "valid"), "at least 1"),
        (((4, 3, 8, 8), 3, (1, -1), "same"), "at least 1"),
        (((4, 3, 8, 8), (3, 3, 3), 1, "same"), "should have 2 numbers"),
        (((4, 3, 8, 8), 3, 1, (1, 1)), "should have 4 numbers"),
        (((4, 3, 8, 8), (3.0, 3.0), 1, "same"), "whole numbers"),
        (((4, 3, 8, 8), 3, 1, "half"), "whole numbers"),
        (((4, 3), 3, 1, "same"), "no spatial axes"),
    ],
)
def test_windows_that_do_not_fit_are_refused(arguments: Any, message: str) -> None:
    shape, kernel, stride, pads = arguments
    for op in ("Conv", "MaxPool", "AveragePool"):
        with pytest.raises(GraphError, match=message):
            by_method(op, shape, kernel, stride, pads, 1)


def test_a_refused_window_does_not_change_the_cached_one() -> None:
    """3.0 equals 3 as a key, so the cached value for 3 must not be found for 3.0."""
    with pytest.raises(GraphError):
        slide("MaxPool", (1, 1, 23, 23), [3.0, 3.0], 1, "same")  # type: ignore[list-item]
    attrs, made = slide("MaxPool", (1, 1, 23, 23), [3, 3], 1, "same")
    assert made == (23, 23)
    assert all(type(pad) is int for pad in attrs["pads"])  # type: ignore[union-attr]
    assert [type(one) for one in spread(True, 2)] == [int, int]


def test_nodes_do_not_share_attributes() -> None:
    b = GraphBuilder("twins")
    x = b.input((1, 4, 8, 8))
    graph = b.build([b.max_pool(b.max_pool(b.conv(b.conv(x, 4, 3), 4, 3), 3, 1, 1), 3, 1, 1)])
    attrs = [node.attrs for node in graph.nodes]
    assert attrs[0] == attrs[1]
    assert attrs[2] == attrs[3]
    assert len({id(one) for one in attrs}) == 4


def test_groups_must_divide_both_sides() -> None:
    b = GraphBuilder("groups")
    x = b.input((1, 6, 8, 8))
    for channels, groups in ((6, 4), (4, 3), (6, 0), (6, -2)):
        with pytest.raises(GraphError, match="do not divide"):
            b.conv(x, channels, 3, groups=groups)
    with pytest.raises(GraphError, match="integers of at least 1"):
        b.conv(x, 0, 3)
    with pytest.raises(GraphError, match="no channels"):
        b.batch_norm(b.input((4,)))
