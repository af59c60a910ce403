"""Bad input gives a clear error or a labelled answer with a wider interval, never zero or NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.errors import GraphError, NotEnoughDataError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import DTYPE_BYTES, Graph, Node, TensorType, Weight
from latfarm_predictors.predict.answer import Answer
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import LEAST_FLOOR_MS, PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.samples import KernelSample, NetworkSample, prepare
from latfarm_predictors.testing.synthetic import RULES, SyntheticBoard, random_network

BOARD = SyntheticBoard()
GRAPHS = [random_network(np.random.default_rng(41), f"net{i}") for i in range(4)]

Samples = list[KernelSample]


def sound(answer: Answer) -> None:
    """Check that figures are finite and positive and that intervals hold their estimates."""
    for middle, (low, high) in [
        (answer.latency_ms, answer.interval_ms),
        *((kernel.latency_ms, kernel.interval_ms) for kernel in answer.kernels),
    ]:
        assert all(map(math.isfinite, (low, middle, high)))
        assert 0.0 < low <= middle <= high
    assert all(kernel.source for kernel in answer.kernels)


def fit(kernels: Samples, networks: list[NetworkSample] | None = None) -> PlatformPredictor:
    return fit_predictor(
        PlatformSamples("p", RULES, kernels, networks or [], call_overhead_ms=BOARD.call_ms),
        baselines=False,
    )


@pytest.mark.parametrize("count", [0, 1, 7])
def test_too_few_rows_are_refused_and_counted(count: int, kernel_samples: Samples) -> None:
    with pytest.raises(NotEnoughDataError, match=f"{count} distinct kernels measured.* needs 8"):
        fit(kernel_samples[:count])


def test_the_smallest_number_of_rows_gives_wider_intervals_than_many(
    kernel_samples: Samples, predictor: PlatformPredictor
) -> None:
    few = fit(kernel_samples[::21][:8])
    for graph in GRAPHS:
        answer, full = few.predict(graph), predictor.predict(graph)
        sound(answer)
        assert not answer.calibrated
        assert answer.interval_ms[1] / answer.interval_ms[0] > (
            2 * full.interval_ms[1] / full.interval_ms[0]
        )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_unusable_latencies_are_left_out_and_counted(
    bad: float, kernel_samples: Samples, network_samples: list[NetworkSample]
) -> None:
    broken = [replace(sample, latency_ms=bad) for sample in kernel_samples[:30]]
    networks = network_samples[:3]
    spoilt = [replace(network, latency_ms=bad) for network in network_samples[3:6]]
    fitted = fit(kernel_samples[30:70] + broken, networks + spoilt)
    clean = fit(kernel_samples[30:70], networks)
    assert fitted.left_out == fitted.explain()["left_out"] == 33
    assert clean.left_out == 0
    assert fitted.predict_many(GRAPHS) == clean.predict_many(GRAPHS)
    assert predictor_of(state_of(fitted)).left_out == 33
    with pytest.raises(NotEnoughDataError, match=r"5 distinct .*; 30 more have no usable latency"):
        fit(kernel_samples[30:35] + broken)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["mad_ms", "cold_ms"])
def test_an_unusable_spread_makes_a_row_count_less(
    field: str, bad: float, kernel_samples: Samples
) -> None:
    changed: dict[str, Any] = {field: bad}
    spoilt = [replace(s, **changed) for s in kernel_samples[:40]]
    training = prepare(spoilt, BOARD.call_ms)
    assert np.isfinite(training.noise).all()
    assert not np.isinf(training.cold_extra_ms).any()
    if field == "mad_ms" and not bad < 0:
        assert (training.noise > prepare(kernel_samples[:40], BOARD.call_ms).noise).all()
    for answer in fit(spoilt).predict_many(GRAPHS):
        sound(answer)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["call_overhead_ms", "transfer_ms_per_mb"])
def test_unusable_costs_are_refused(name: str, bad: float, kernel_samples: Samples) -> None:
    named: dict[str, Any] = {"call_overhead_ms": 0.0, "transfer_ms_per_mb": 0.0, name: bad}
    with pytest.raises(ValueError, match=r"overhead of|transfers of"):
        fit_predictor(
            PlatformSamples("p", RULES, kernel_samples[:20], [], **named), baselines=False
        )


@pytest.mark.parametrize("latency_ms", [1e-9, 0.25, 1e9])
def test_latencies_that_are_all_the_same(latency_ms: float, kernel_samples: Samples) -> None:
    same = [replace(s, latency_ms=latency_ms, mad_ms=0.0) for s in kernel_samples[::3]]
    networks = [NetworkSample(graph, latency_ms) for graph in GRAPHS]
    fitted = fit_predictor(PlatformSamples("p", RULES, same, networks))
    for answer in fitted.predict_many(GRAPHS):
        sound(answer)
    for name in BASELINES:
        if name not in ("nn-meter", "annette-statistical", "annette-mixed"):  # slow to fit
            latency = baseline_ms(fitted, GRAPHS[0], name)
            assert math.isfinite(latency)
            assert latency > 0
    known = fitted.predict(kernel_samples[3].kernel.graph).kernels[0]
    told_ms = max(latency_ms, LEAST_FLOOR_MS)
    assert known.interval_ms[0] <= told_ms * 1.1
    assert known.interval_ms[1] >= told_ms * 0.9


def strange(op: str) -> Graph:
    b = GraphBuilder(op)
    x = b.conv(b.input((1, 16, 28, 28)), 32, 3)
    graph = b.build([b.relu(x)])
    nodes = tuple(replace(n, op=op, name="odd") if n.op == "Relu" else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


@pytest.mark.parametrize("op", ["NonMaxSuppression", "Mystery", "Einsum"])
def test_an_unseen_op_is_named_and_widened(op: str, predictor: PlatformPredictor) -> None:
    answer = predictor.predict(strange(op))
    sound(answer)
    odd = answer.kernels[-1]
    assert odd.source == "fallback:analytic"
    assert odd.interval_ms[1] > 4 * odd.interval_ms[0]
    assert [line.split(": ")[0] for line in answer.unsupported] == [f"odd ({op})"]


def retyped(graph: Graph, dtype: str) -> Graph:
    return replace(
        graph,
        types={name: TensorType(dtype, kind.shape) for name, kind in graph.types.items()},
        weights={
            name: Weight(TensorType(dtype, weight.type.shape), weight.values)
            for name, weight in graph.weights.items()
        },
    )


NOTHING_IS_KNOWN = 50.0
"""From this ratio of its ends on, an interval says that nothing is known of a kernel."""


@pytest.mark.parametrize("dtype", sorted(set(DTYPE_BYTES) - {"float32"}))
def test_an_unseen_element_type_is_labelled_and_widened(
    dtype: str, predictor: PlatformPredictor
) -> None:
    graph = GRAPHS[0]
    answer, usual = predictor.predict(retyped(graph, dtype)), predictor.predict(graph)
    sound(answer)
    for kernel, known in zip(answer.kernels, usual.kernels, strict=True):
        assert kernel.source == f"fallback:dtype:{dtype}" or known.source.startswith("fallback:")
        width, before = (k.interval_ms[1] / k.interval_ms[0] for k in (kernel, known))
        # a kernel of which nothing is known has a wider interval still, whatever its type
        assert width >= min(before, NOTHING_IS_KNOWN)
    assert answer.interval_ms[1] / answer.interval_ms[0] > (
        1.5 * usual.interval_ms[1] / usual.interval_ms[0]
    )


@pytest.mark.parametrize(
    "shape", [(1, 64, 4096, 4096), (4096, 64, 56, 56), (1, 65536, 28, 28), (1, 3, 10**6, 10)]
)
def test_sizes_beyond_all_measured_are_labelled_and_widened(
    shape: tuple[int, ...], predictor: PlatformPredictor
) -> None:
    b = GraphBuilder("huge")
    answer = predictor.predict(b.build([b.relu(b.conv(b.input(shape), 64, 3))]))
    sound(answer)
    kernel = answer.kernels[0]
    assert kernel.source == "fallback:beyond:conv"
    assert kernel.interval_ms[1] > 1.5 * kernel.interval_ms[0]
    assert answer.latency_ms > 10.0


@pytest.mark.parametrize("size", [10**10, 10**40, 10**400], ids=["1e10", "1e40", "1e400"])
def test_sizes_that_no_board_could_run_are_refused(
    size: int, predictor: PlatformPredictor, kernel_samples: Samples
) -> None:
    b = GraphBuilder("absurd")
    graph = b.build([b.conv(b.input((1, 64, size, size)), 64, 3)])
    with pytest.raises(GraphError, match=r"Conv of .*: no board could run it"):
        predictor.predict(graph)
    for name in ("sum", "operators", "forest", "lookup", "roofline", "mnn_cost", "flops"):
        with pytest.raises(GraphError, match="no board could run it"):
            baseline_ms(predictor, graph, name)
    absurd = replace(kernel_samples[0], kernel=replace(kernel_samples[0].kernel, graph=graph))
    with pytest.raises(GraphError, match="no board could run it"):
        fit([*kernel_samples[:20], absurd])
    # the predictor remembers nothing of it
    sound(predictor.predict(GRAPHS[0]))


def by_hand(op: str, shapes: list[tuple[int, ...]], dtype: str, window: tuple[int, ...]) -> Graph:
    """A graph of one node with any op on any shapes, as no builder would make it."""
    names = tuple(f"x{index}" for index in range(len(shapes)))
    types = {name: TensorType(dtype, shape) for name, shape in zip(names, shapes, strict=True)}
    node = Node("n", op, names, ("y",), {"kernel_shape": window, "strides": window, "group": 3})
    types["y"] = TensorType(dtype, shapes[0])
    return Graph("by hand", names, ("y",), (node,), {}, types)


SHAPES = st.lists(
    st.lists(st.integers(1, 10**4) | st.sampled_from([1, 3, 64]), max_size=5).map(tuple),
    min_size=2,
    max_size=3,
)
OPS = st.sampled_from(
    (
        *("Relu", "Add", "MaxPool", "Concat", "Softmax", "Transpose", "Reshape", "LRN", "Mystery"),
        *("GlobalAveragePool", "BatchNormalization", "ReduceMean", "Shape", "Sigmoid"),
    )
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    op=OPS,
    shapes=SHAPES,
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    window=st.lists(st.integers(1, 50), max_size=3).map(tuple),
    coverage=st.floats(0.01, 0.99),
)
def test_no_shape_type_or_coverage_gives_nonsense(
    op: str,
    shapes: list[tuple[int, ...]],
    dtype: str,
    window: tuple[int, ...],
    coverage: float,
    predictor: PlatformPredictor,
) -> None:
    sound_or_refused(
        lambda: predictor.predict(by_hand(op, [s or (1,) for s in shapes], dtype, window), coverage)
    )


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=st.integers(1, 10**5),
    channels=st.integers(1, 10**5),
    size=st.integers(11, 10**5),
    filters=st.integers(1, 10**5),
    window=st.integers(1, 11),
    stride=st.integers(1, 9),
    inner=st.integers(1, 10**6),
)
def test_no_size_gives_nonsense(
    batch: int,
    channels: int,
    size: int,
    filters: int,
    window: int,
    stride: int,
    inner: int,
    predictor: PlatformPredictor,
) -> None:
    b = GraphBuilder("sizes")
    conv = b.conv(b.input((batch, channels, size, size)), filters, window, stride=stride)
    product = b.fc(b.input((batch, inner)), filters)
    sound_or_refused(lambda: predictor.predict(b.build([b.relu(conv), product])))


def sound_or_refused(ask: Callable[[], Answer]) -> None:
    try:
        sound(ask())
    except GraphError as error:
        assert "no board could run it" in str(error)  # noqa: PT017 - both outcomes are right


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_measurements_give_nonsense(data: st.DataObject, kernel_samples: Samples) -> None:
    latencies = st.floats(1e-7, 1e7) | st.sampled_from([math.nan, math.inf, -1.0, 0.0, 1.0])
    spreads = st.floats(0, 1e6) | st.sampled_from([math.nan, math.inf, 0.0])
    count = data.draw(st.integers(8, 24))
    samples = [
        replace(sample, latency_ms=data.draw(latencies), mad_ms=data.draw(spreads))
        for sample in kernel_samples[:: len(kernel_samples) // count]
    ]
    networks = [NetworkSample(graph, data.draw(latencies)) for graph in GRAPHS]
    try:
        fitted = fit(samples, networks)
    except NotEnoughDataError:
        return
    for answer in fitted.predict_many(GRAPHS):
        sound(answer)
