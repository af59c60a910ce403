from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.shapes import supported_ops
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.families import FAMILIES, family_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel, extract
from latfarm_predictors.kernels.workload import Workload, configuration, workload
from latfarm_predictors.testing.graphs import graphs


def work(make: Callable[[GraphBuilder, str], str], shape: tuple[int, ...]) -> Workload:
    b = GraphBuilder("work")
    graph = b.build([make(b, b.input(shape))])
    return workload(extract(graph, graph.nodes))


def test_convolution() -> None:
    w = work(
        lambda b, x: b.relu(b.conv(x, 24, (3, 5), (2, 1), bias=True)),
        (2, 8, 15, 13),
    )
    assert w == Workload(
        family="conv",
        type="Conv+Relu",
        dtype="float32",
        batch=2,
        in_h=15,
        in_w=13,
        in_channels=8,
        out_h=8,
        out_w=13,
        out_channels=24,
        kernel_h=3,
        kernel_w=5,
        stride_h=2,
        stride_w=1,
        dilation_h=1,
        dilation_w=1,
        groups=1,
        macs=2 * 24 * 8 * 13 * 8 * 15,
        input_bytes=4 * 2 * 8 * 15 * 13,
        output_bytes=4 * 2 * 24 * 8 * 13,
        weight_bytes=4 * (24 * 8 * 15 + 24),
        inputs=1,
        fused_ops=1,
    )


@pytest.mark.parametrize(
    ("make", "family", "macs"),
    [
        (lambda b, x: b.conv(x, 16, 3, groups=4), "grouped_conv", 2 * 16 * 36 * 2 * 9),
        (lambda b, x: b.depthwise(x, 3), "dwconv", 2 * 8 * 36 * 9),
        (lambda b, x: b.conv_transpose(x, 4, 4, 2), "conv", 2 * 8 * 36 * 4 * 16),
        (lambda b, x: b.fc(b.reshape(x, (4, -1)), 5), "fc", 4 * 144 * 5),
        (lambda b, x: b.matmul(x, b.weight((6, 7))), "fc", 2 * 8 * 6 * 7 * 6),
        (lambda b, x: b.matmul(x, b.transpose(x, (0, 1, 3, 2))), "matmul", 2 * 8 * 6 * 6 * 6),
        (lambda b, x: b.relu(b.add(x, x)), "eltwise", 0),
        (lambda b, x: b.max_pool(x, 3), "pool", 0),
        (lambda b, x: b.global_avg_pool(x), "global_pool", 0),
        (lambda b, x: b.batch_norm(x), "norm", 0),
        (lambda b, x: b.lrn(x, 5), "lrn", 0),
        (lambda b, x: b.softmax(x), "softmax", 0),
        (lambda b, x: b.concat([x, x]), "concat", 0),
        (lambda b, x: b.reduce_mean(x, [1]), "reduce", 0),
        (lambda b, x: b.resize(x, 2), "move", 0),
        (lambda b, x: b.flatten(x), "move", 0),
    ],
)
def test_families_and_macs(
    make: Callable[[GraphBuilder, str], str], family: str, macs: int
) -> None:
    found = work(make, (2, 8, 6, 6))
    assert (found.family, found.macs) == (family, macs)
    assert configuration(found)["family"] == family


def test_every_known_op_has_a_family() -> None:
    kind = TensorType("float32", (1, 4, 4, 4))
    for op in supported_ops():
        node = Node("n", op, ("x",), ("y",), {"group": 1})
        graph = Graph("g", ("x",), ("y",), (node,), {}, {"x": kind, "y": kind})
        assert family_of(graph, node) in FAMILIES
        assert family_of(graph, node) != "other", op


@pytest.mark.parametrize("op", ["GatherElements", "GatherND", "ScatterND", "Trilu"])
def test_ops_that_only_move_data_are_moves_though_their_shapes_come_from_the_file(op: str) -> None:
    """Exports of RoBERTa have GatherElements; kernels that move data stand in for it."""
    kind = TensorType("float32", (4, 4))
    node = Node("n", op, ("x",), ("y",))
    graph = Graph("g", ("x",), ("y",), (node,), {}, {"x": kind, "y": kind})
    assert op not in supported_ops()
    assert family_of(graph, node) == "move"


def test_unknown_ops_are_other() -> None:
    kind = TensorType("float32", (3, 4))
    node = Node("n", "Frobnicate", ("x",), ("y",))
    graph = Graph("g", ("x",), ("y",), (node,), {}, {"x": kind, "y": kind})
    found = workload(Kernel(graph))
    assert (found.family, found.batch, found.in_channels, found.macs) == ("other", 3, 4, 0)
    assert configuration(found) == {
        "family": "other",
        "batch": 3,
        "in_h": 1,
        "in_w": 1,
        "in_channels": 4,
    }


def test_matrices() -> None:
    found = work(lambda b, x: b.matmul(x, b.transpose(x, (0, 1, 3, 2))), (2, 8, 6, 5))
    assert (found.batch, found.in_channels, found.out_channels, found.groups) == (96, 5, 6, 16)
    assert configuration(found)["matrices"] == 16
    found = work(lambda b, x: b.matmul(x, b.weight((5,))), (3, 5))
    assert (found.batch, found.in_channels, found.out_channels, found.macs) == (3, 5, 1, 15)


def test_the_main_op_is_the_one_that_multiplies() -> None:
    found = work(lambda b, x: b.conv(b.pad(x, (1, 1, 1, 1)), 4, 3, pads="valid"), (1, 8, 6, 6))
    assert (found.family, found.in_h, found.fused_ops) == ("conv", 8, 1)
    found = work(lambda b, x: b.relu(b.reshape(x, (1, -1))), (1, 8, 6, 6))
    assert (found.family, found.fused_ops) == ("eltwise", 0)


def test_kernels_differ_by_their_window_over_channels() -> None:
    three = work(lambda b, x: b.lrn(x, 3), (1, 8, 6, 6))
    five = work(lambda b, x: b.lrn(x, 5), (1, 8, 6, 6))
    assert (five.kernel_h, five.kernel_w) == (5, 1)
    assert three != five


@pytest.mark.parametrize(
    ("make", "shape", "contiguous"),
    [
        # a channel shuffle copies maps, heads are moved as wholes, keys are turned value by value
        (lambda b, x: b.transpose(x, (0, 2, 1, 3, 4)), (1, 4, 6, 7, 5), 35),
        (lambda b, x: b.transpose(x, (0, 2, 1, 3)), (1, 49, 3, 32), 32),
        (lambda b, x: b.transpose(x, (0, 2, 3, 1)), (1, 49, 3, 32), 1),
        (lambda b, x: b.transpose(x, (0, 3, 2, 1)), (1, 49, 6, 1), 1),
        (lambda b, x: b.transpose(x, (1, 0, 2, 3)), (1, 6, 7, 5), 210),  # an axis of size 1
        (lambda b, x: b.concat([x, x]), (1, 6, 7, 5), 210),
        (lambda b, x: b.concat([x, x], axis=3), (1, 6, 7, 5), 5),
        (lambda b, x: b.pad(x, (0, 0, 1, 0, 0, 0, 1, 0)), (1, 6, 7, 5), 35),
        # half of each row, every other element, every other row
        (lambda b, x: b.slice(x, (0,), (4,), (3,)), (1, 6, 7, 8), 4),
        (lambda b, x: b.slice(x, (0,), (8,), (3,), (2,)), (1, 6, 7, 8), 1),
        (lambda b, x: b.slice(x, (0,), (7,), (2,), (2,)), (1, 6, 7, 8), 8),
        (lambda b, x: b.slice(x, (7, 0), (0, 3), (3, 1), (-1, 1)), (1, 6, 7, 8), 1),
        (lambda b, x: b.reshape(x, (1, 6, 35)), (1, 6, 7, 5), 1),
        (lambda b, x: b.relu(x), (1, 6, 7, 5), 1),
    ],
)
def test_moves_tell_the_pieces_that_they_copy(
    make: Callable[[GraphBuilder, str], str], shape: tuple[int, ...], contiguous: int
) -> None:
    found = work(make, shape)
    assert found.contiguous == contiguous
    assert configuration(found).get("contiguous", 1) == contiguous


def test_a_look_up_copies_rows_and_reads_no_more_of_its_table() -> None:
    b = GraphBuilder("words")
    ids = b.input((1, 12), "int64")
    graph = b.build([b.op("Gather", [b.weight((3000, 16)), ids])])
    found = workload(extract(graph, graph.nodes))
    assert (found.contiguous, found.weight_bytes) == (16, 4 * 12 * 16)
    b = GraphBuilder("few words")
    graph = b.build([b.op("Gather", [b.weight((5, 16)), b.input((1, 12), "int64")])])
    assert workload(extract(graph, graph.nodes)).weight_bytes == 4 * 5 * 16


def test_several_operands() -> None:
    b = GraphBuilder("sum")
    x, y = b.input((1, 4, 8, 8)), b.input((1, 4, 8, 8))
    graph = b.build([b.relu(b.add(b.conv(x, 4, 1), y))])
    found = workload(extract(graph, graph.nodes))
    assert (found.inputs, found.fused_ops, found.input_bytes) == (2, 2, 2 * 4 * 256)
    assert configuration(found)["inputs"] == 2


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_kernels_add_up_to_the_network(graph: Graph) -> None:
    totals = graph_totals(graph)
    works = [workload(kernel) for kernel in split(graph, FusionRules.none())]
    assert sum(w.macs for w in works) == totals.macs
    assert sum(w.weight_bytes for w in works) == totals.weight_bytes
    assert totals.nodes == len(works)
