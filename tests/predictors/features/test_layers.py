from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.features.layers import Peaks, layers, total
from latfarm_predictors.features.table import as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.diff import diff_graphs, unified
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import Workload, workload


def net(channels: int = 8, *, relu: bool = True) -> Graph:
    b = GraphBuilder("net")
    x = b.conv(b.input((1, 3, 16, 16)), channels, 3, bias=True)
    x = b.relu(x) if relu else b.sigmoid(x)
    x = b.flatten(b.global_avg_pool(x))
    return b.build([b.fc(x, 10)])


def test_layers_count_what_each_op_computes_holds_and_moves() -> None:
    rows = layers(net())
    assert [row.op for row in rows] == ["Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm"]
    conv, relu, _, flatten, gemm = rows
    assert conv.output_shape == (1, 8, 16, 16)
    assert conv.macs == 16 * 16 * 8 * 27
    assert conv.parameters == 8 * 27 + 8
    assert conv.weight_bytes == 4 * conv.parameters
    assert conv.traffic_bytes == 4 * (3 * 256 + conv.parameters + 8 * 256)
    assert conv.intensity == conv.macs / conv.traffic_bytes
    assert relu.traffic_bytes == 2 * 4 * 8 * 256
    assert (relu.macs, relu.parameters, relu.intensity) == (0, 0, 0.0)
    assert (flatten.traffic_bytes, flatten.intensity) == (0, 0.0)  # a view moves nothing
    assert (gemm.macs, gemm.parameters) == (80, 90)
    assert all(row.bound_ms is None and row.compute_bound is None for row in rows)
    summed = total(net(), rows)
    assert summed.macs == macs_of(net())
    assert summed.parameters == conv.parameters + 90
    assert summed.bound_ms is None


def test_kernels_of_a_platform_move_less_than_their_ops() -> None:
    rules = FusionRules({("Conv", "Relu"): "fused"})
    rows = layers(net(), rules=rules)
    assert rows[0].op == "Conv+Relu"
    apart = layers(net())
    assert rows[0].traffic_bytes == apart[0].traffic_bytes
    assert total(net(), rows).traffic_bytes < total(net(), apart).traffic_bytes
    assert total(net(), rows).macs == total(net(), apart).macs


def test_the_roofline_is_the_higher_of_two_sides() -> None:
    peaks = Peaks(macs_per_ms=1e6, bytes_per_ms=1e3)
    rows = layers(net(), peaks=peaks)
    assert rows[0].bound_ms == pytest.approx(max(55296 / 1e6, rows[0].traffic_bytes / 1e3))
    assert rows[0].compute_bound is False
    fast = layers(net(), peaks=Peaks(1e3, 1e9))
    assert fast[0].compute_bound is True
    assert fast[0].bound_ms == pytest.approx(55.296)
    bounds = [row.bound_ms for row in rows if row.bound_ms is not None]
    assert total(net(), rows).bound_ms == pytest.approx(sum(bounds))
    unknown = Peaks(0.0, 1e3)
    assert unknown.bound_ms(10**9, 500) == 0.5
    assert not unknown.is_compute_bound(10**9, 500)


def works() -> list[Workload]:
    made = []
    for channels in range(4, 44):
        graph = net(channels)
        made.append(workload(extract(graph, graph.nodes[:1])))
    return made


def test_peaks_are_rates_that_were_reached_and_no_single_outlier() -> None:
    table = as_table(works())
    latency = table.macs / 1e6
    latency[3] /= 100  # one wrong measurement
    peaks = Peaks.of(table, latency)
    assert peaks.macs_per_ms == pytest.approx(1e6)
    assert peaks.bytes_per_ms < (table.total_bytes / latency).max()
    idle = as_table([workload(extract(net(), net().nodes[1:2]))])
    assert Peaks.of(idle, np.array([0.5])).macs_per_ms == 0.0


def test_equal_graphs_have_no_changes_and_names_do_not_matter() -> None:
    (same,) = diff_graphs(net(), net())
    assert same.side == "same"
    assert len(same.ops) == 5
    assert list(unified([same])) == ["  ... 5 equal ops"]


def test_changes_are_listed_at_their_place() -> None:
    changes = diff_graphs(net(), net(relu=False))
    assert [(change.side, len(change.ops)) for change in changes] == [
        ("same", 1),
        ("left", 1),
        ("right", 1),
        ("same", 3),
    ]
    lines = list(unified(changes))
    assert any(line.startswith("- Relu") for line in lines)
    assert any(line.startswith("+ Sigmoid") for line in lines)
    wider = diff_graphs(net(), net(9))
    conv = next(change for change in wider if change.side == "left").ops[0]
    assert conv.startswith("Conv dilations=[1,1] group=1 kernel_shape=[3,3]")
    assert "1x3x16x16, 8x3x3x3, 8 -> 1x8x16x16" in conv
