"""Recurrent layers: their multiply-adds, their workload, and as what they are predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from latfarm_predictors import load_sample
from latfarm_predictors.errors import GraphError
from latfarm_predictors.features.groups import NEAREST_DOUBT
from latfarm_predictors.graph.graph import Graph, Node, TensorType, Weight
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload

STEPS, BATCH, IN, HIDDEN = 7, 2, 24, 16
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def kind(*shape: int) -> TensorType:
    return TensorType("float32", shape)


def layer(op: str, directions: int = 1) -> Graph:
    """A recurrent layer alone."""
    rows = GATES[op] * HIDDEN
    weights = {
        "w": Weight(kind(directions, rows, IN)),
        "r": Weight(kind(directions, rows, HIDDEN)),
    }
    node = Node("rec", op, ("x", "w", "r"), ("y",), {"hidden_size": HIDDEN})
    types = {"x": kind(STEPS, BATCH, IN), "y": kind(STEPS, directions, BATCH, HIDDEN)}
    return Graph(op, ("x",), ("y",), (node,), weights, types)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("directions", [1, 2])
def test_each_step_multiplies_its_input_and_its_state(op: str, directions: int) -> None:
    graph = layer(op, directions)
    macs = STEPS * BATCH * directions * GATES[op] * HIDDEN * (IN + HIDDEN)
    assert macs_of(graph) == macs
    found = workload(Kernel(graph))
    assert (found.family, found.type, found.macs) == ("fc", op, macs)
    sizes = (found.batch, found.in_channels, found.out_channels, found.groups)
    assert sizes == (STEPS * BATCH * directions, IN + HIDDEN, GATES[op] * HIDDEN, directions)


@pytest.mark.parametrize("op", GATES)
def test_a_layer_that_was_never_measured_is_predicted_as_products_with_a_wide_interval(
    op: str,
) -> None:
    answer = load_sample().predict(layer(op))
    assert answer.unsupported == ()
    (kernel,) = answer.kernels
    assert kernel.source == "fallback:nearest:fc"
    low_ms, high_ms = kernel.interval_ms
    assert 0 < low_ms < kernel.latency_ms < high_ms
    assert high_ms / low_ms > 1 + NEAREST_DOUBT


def test_a_layer_without_weights_is_refused_in_one_line() -> None:
    graph = layer("LSTM")
    node = replace(graph.nodes[0], inputs=("x", "w"))
    with pytest.raises(GraphError, match=r"^rec \(LSTM\) needs an input, weights for it"):
        macs_of(replace(graph, nodes=(node,)))
