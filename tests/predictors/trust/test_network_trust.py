"""How far the predictions of a network, of its layers and of a platform can be trusted."""

from __future__ import annotations

import copy
import json
import pickle
import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.confidence.layer_confidence import LEAST_ROWS, METRICS
from latfarm_predictors.confidence.layer_coverage import layer_coverage
from latfarm_predictors.confidence.measures import PlatformConfidence
from latfarm_predictors.errors import BundleError, NoConfidenceError
from latfarm_predictors.features.groups import VIEW
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.samples import KernelSample, prepare
from latfarm_predictors.testing.graphs import renamed, reordered
from latfarm_predictors.testing.synthetic import RULES, random_network
from latfarm_predictors.trust.network_trust import (
    NAMES,
    UNSURE,
    NetworkTrust,
    badly_covered,
    trust,
    weighted_coverage,
)
from latfarm_predictors.trust.platform_trust import WHOLE, platform_trust

pytestmark = pytest.mark.slow


def conv_net(*channels: int, size: int = 28, kernel: int = 3) -> Graph:
    """Convolutions one after the other."""
    b = GraphBuilder("convs")
    x = b.input((1, channels[0], size, size))
    for count in channels[1:]:
        x = b.relu(b.conv(x, count, kernel))
    return b.build([x])


def network(seed: int) -> Graph:
    return random_network(np.random.default_rng(seed), f"net{seed}")


@pytest.fixture(scope="module")
def found(predictor: PlatformPredictor) -> NetworkTrust:
    return trust(predictor, network(100))


def test_layers_are_the_prediction_s_kernels(
    predictor: PlatformPredictor, found: NetworkTrust
) -> None:
    answer = predictor.predict(network(100))
    assert found.latency_ms == answer.latency_ms
    assert found.calibrated_ms == answer.interval_ms
    assert found.calibrated == answer.calibrated
    assert [layer.latency_ms for layer in found.layers] == [k.latency_ms for k in answer.kernels]
    assert [layer.interval_ms for layer in found.layers] == [k.interval_ms for k in answer.kernels]
    assert [layer.name for layer in found.layers] == [k.nodes[0] for k in answer.kernels]
    assert [layer.kind for layer in found.layers] == [k.type for k in answer.kernels]
    weights = np.array([layer.latency_ms for layer in found.layers])
    shares = np.array([layer.coverage for layer in found.layers])
    assert found.coverage == pytest.approx(float(weights @ shares / weights.sum()))
    assert weighted_coverage(predictor, network(100)) == pytest.approx(found.coverage)
    assert found.coverage <= found.reached <= 1.0


def test_the_paper_s_figures_are_those_of_its_metrics(
    predictor: PlatformPredictor, found: NetworkTrust
) -> None:
    from latfarm_predictors.kernels.fusion_search import split

    assert predictor.confidence is not None
    works = [workload(kernel) for kernel in split(network(100), RULES)]
    metrics = predictor.confidence.metrics({work.family for work in works})
    for metric in METRICS:
        widths = metrics.layers(works, metric).relative_width
        np.testing.assert_allclose([layer.widths[NAMES[metric]] for layer in found.layers], widths)
        assert found.paper[NAMES[metric]] == metrics.network(works, metric)
        assert found.paper[NAMES[metric]].label == "uncalibrated"


def test_a_badly_covered_layer_names_its_command(predictor: PlatformPredictor) -> None:
    graph = conv_net(16, 16, 2048, size=7)
    found = trust(predictor, graph, model="my models/a net.onnx")
    far = found.layers[1]
    assert far.coverage < 0.25
    assert "out_channels" in far.outside
    assert shlex.split(far.remedy) == [
        *("latfarm", "cover", "my models/a net.onnx"),
        *("--platform", "synthetic-1t", "--layer", far.name),
    ]
    assert shlex.split(found.remedy) == shlex.split(far.remedy)[:-2]
    assert far in found.badly_covered
    assert trust(predictor, graph).remedy == "latfarm cover convs --platform synthetic-1t"


def test_a_measured_network_needs_nothing(
    predictor: PlatformPredictor, kernel_samples: list[KernelSample]
) -> None:
    measured = next(s.kernel for s in kernel_samples if s.kernel.type == "Conv+Relu")
    found = trust(predictor, measured.graph)
    assert [layer.coverage for layer in found.layers] == [1.0]
    assert found.coverage == found.reached == 1.0
    assert found.remedy == ""
    assert found.badly_covered == ()


def test_which_layers_are_badly_covered() -> None:
    far, near = 0.2, 0.9
    between, sure = 0.4, 0.5 * UNSURE
    bad = badly_covered(
        np.array([far, far, between, between, near]), np.array([sure, 9.0, sure, 9.0, 9.0])
    )
    assert bad.tolist() == [True, True, False, True, False]


def test_intervals_widen_with_the_distance_from_the_data(predictor: PlatformPredictor) -> None:
    # measured layers have 3 to 256 channels; each step away from these is an octave
    steps = [trust(predictor, conv_net(c, c, size=28)).layers[0] for c in (128, 1024, 8192)]
    coverage = [layer.coverage for layer in steps]
    assert coverage == sorted(coverage, reverse=True)
    outlier = [layer.outlier for layer in steps]
    assert outlier == sorted(outlier)
    half = [layer.widths["CM_O"] * layer.latency_ms for layer in steps]
    assert half == sorted(half)
    ours = [layer.interval_ms[1] / layer.interval_ms[0] for layer in steps]
    assert ours[0] < ours[1]


def test_a_family_never_measured_has_wide_intervals(
    predictor: PlatformPredictor,
) -> None:
    b = GraphBuilder("softmax")
    graph = b.build([b.softmax(b.input((1, 1000)))])
    (layer,) = trust(predictor, graph).layers
    assert layer.stands_in
    assert layer.outside == ("family",)
    assert layer.coverage == 0.0
    assert layer.remedy
    assert min(layer.widths.values()) >= 2.0
    assert not any(layer.stands_in for layer in trust(predictor, conv_net(32, 32)).layers)


def test_views_are_fully_covered(predictor: PlatformPredictor) -> None:
    b = GraphBuilder("view")
    graph = b.build([b.relu(b.reshape(b.input((1, 16, 8, 8)), (1, 1024)))])
    views = [layer for layer in trust(predictor, graph).layers if layer.source == VIEW]
    assert [layer.coverage for layer in views] == [1.0]
    assert [layer.remedy for layer in views] == [""]


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10_000), coverage=st.floats(0.5, 0.99))
def test_all_figures_are_finite_and_intervals_hold_the_estimate(
    predictor: PlatformPredictor, seed: int, coverage: float
) -> None:
    found = trust(predictor, network(seed), coverage)
    assert found.calibrated_ms[0] < found.latency_ms < found.calibrated_ms[1]
    for each in found.paper.values():
        assert each.low_ms <= each.latency_ms <= each.high_ms
        assert np.isfinite([each.low_ms, each.high_ms]).all()
    for layer in found.layers:
        assert 0.0 < layer.interval_ms[0] < layer.latency_ms < layer.interval_ms[1] < np.inf
        assert np.isfinite(list(layer.widths.values())).all()
        assert min(layer.widths.values()) > 0
        assert np.isfinite(layer.outlier)
        assert 0.0 <= layer.coverage <= 1.0
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["network"] == f"net{seed}"


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_names_and_order_change_no_figure(predictor: PlatformPredictor, seed: int) -> None:
    graph = network(seed)
    plain = trust(predictor, graph)
    for other in (renamed(graph, seed), reordered(graph, seed)):
        found = trust(predictor, other)
        assert found.coverage == pytest.approx(plain.coverage)
        assert found.latency_ms == pytest.approx(plain.latency_ms)
        figures = [
            sorted(
                (y.kind, y.latency_ms, *y.widths.values(), y.outlier, y.coverage) for y in n.layers
            )
            for n in (plain, found)
        ]
        assert figures[0] == figures[1]


def test_a_larger_nominal_coverage_never_narrows(
    predictor: PlatformPredictor,
) -> None:
    narrow, wide = (trust(predictor, network(7), level) for level in (0.8, 0.95))
    for low, high in zip(narrow.layers, wide.layers, strict=True):
        assert all(low.widths[name] <= high.widths[name] for name in low.widths)
    for name in narrow.paper:
        assert narrow.paper[name].relative_width <= wide.paper[name].relative_width
    with pytest.raises(ValueError, match="between 0 and 1"):
        trust(predictor, network(7), 1.0)


def test_a_bundle_holds_the_evidence(predictor: PlatformPredictor, tmp_path: Path) -> None:
    save_bundle(predictor, tmp_path / "new.zip")
    loaded = load_bundle(tmp_path / "new.zip")
    plain, again = trust(predictor, network(3)), trust(loaded, network(3))
    assert again.layers == plain.layers
    assert again.paper == plain.paper
    assert again.bundle == loaded.bundle
    old = copy.copy(predictor)
    old.confidence = None
    save_bundle(old, tmp_path / "old.zip")
    loaded = load_bundle(tmp_path / "old.zip")
    assert loaded.predict(network(3)).latency_ms == plain.latency_ms
    for ask in (lambda: trust(loaded, network(3)), lambda: platform_trust(loaded)):
        with pytest.raises(NoConfidenceError, match="latfarm bundle retrain -p synthetic-1t"):
            ask()


def test_predicting_fits_no_metrics(predictor: PlatformPredictor, tmp_path: Path) -> None:
    save_bundle(predictor, tmp_path / "b.zip")
    fits = tmp_path / "fits"
    loaded = load_bundle(tmp_path / "b.zip", fits)
    loaded.predict(network(3))
    assert loaded.confidence is not None
    assert not fits.exists()
    pickled = pickle.dumps(loaded.confidence)
    trust(loaded, conv_net(32, 32))
    assert len(list(fits.iterdir())) == 1, "the metrics of convolutions alone"
    assert pickle.dumps(loaded.confidence) == pickled


def test_evidence_that_contradicts_itself_is_refused(predictor: PlatformPredictor) -> None:
    assert predictor.confidence is not None
    state = predictor.confidence.state()
    fewer = ModelState(
        state.kind, {**state.values, "types": state.values["types"][1:]}, state.arrays
    )
    with pytest.raises(ValueError, match="lacks rows"):
        Evidence.from_state(fewer)
    whole = state_of(predictor)
    broken = ModelState(whole.kind, whole.values, parts={**whole.parts, "confidence": fewer})
    with pytest.raises(ValueError, match="lacks rows"):
        predictor_of(broken)
    assert issubclass(BundleError, Exception)


def test_padding_intervals_are_part_of_the_calibration(
    predictor: PlatformPredictor, kernel_samples: list[KernelSample]
) -> None:
    padded = [
        KernelSample(s.kernel, s.latency_ms, 0.15 * s.latency_ms, None, "padded")
        for s in kernel_samples
    ]
    training = prepare(padded, 0.0)
    np.testing.assert_allclose(training.padding_ms, 0.3 * training.latency_ms)
    assert predictor.confidence is not None
    assert (predictor.confidence.padding_ms == 0).all()
    unseen = np.ones(len(training.table))
    metrics = Evidence.of(training, unseen, unseen).metrics({"conv"}).families["conv"]
    for metric in METRICS:
        with_them = metrics.own_intervals(metric).relative_width.mean()
        without = metrics.on_medians().own_intervals(metric).relative_width.mean()
        assert with_them > 1.05 * without


def test_the_platform_s_table(predictor: PlatformPredictor) -> None:
    found = platform_trust(predictor)
    assert predictor.confidence is not None
    families = {each.family: each for each in found.families}
    assert sum(each.measured for each in found.families) == len(predictor.confidence)
    assert found.whole.family == WHOLE
    assert found.whole.measured == len(predictor.confidence)
    for each in found.families:
        assert bool(each.widths) == (each.measured >= LEAST_ROWS)
        assert each.padded == 0
        assert each.widths == each.median_widths
        assert 0.0 < each.coverage < 1.0
        if each.widths:
            # the quantile is of the same scores, so coverage is at least nominal
            assert min(each.inside.values()) >= 0.9
        assert each.calibrated_inside > 0.8
    widths = np.array([each.widths["CM_TV"] for each in found.families if each.widths])
    layers = np.array([each.layers for each in found.families if each.widths])
    assert found.whole.widths["CM_TV"] == pytest.approx(float(widths @ layers / layers.sum()))
    lonely = families["global_pool"]
    (gap,) = found.gaps
    assert gap.family == "global_pool"
    assert gap.what == f"{lonely.measured} kernels measured, {LEAST_ROWS} are needed"
    assert gap.remedy == "latfarm cover --platform synthetic-1t --family global_pool"
    json.dumps(found.to_json(), allow_nan=False)


def test_the_platform_over_networks_of_interest(predictor: PlatformPredictor) -> None:
    nets = [network(200), conv_net(16, 16, 2048, size=7)]
    found = platform_trust(predictor, nets, models=["a.onnx", "b.onnx"])
    told = [layer for graph in nets for layer in trust(predictor, graph).layers]
    told = [layer for layer in told if layer.source != VIEW]
    assert found.whole.layers == len(told)
    for each in found.families:
        own = [layer for layer in told if layer.family == each.family]
        assert each.layers == len(own)
        if own and each.widths:
            for name, width in each.widths.items():
                assert width == pytest.approx(np.mean([layer.widths[name] for layer in own]))
        if own:
            assert each.coverage == pytest.approx(np.mean([layer.coverage for layer in own]))
            assert each.badly == pytest.approx(np.mean([bool(layer.remedy) for layer in own]))
    remedies = {gap.family: gap.remedy for gap in found.gaps}
    assert remedies["conv"] == ("latfarm cover a.onnx b.onnx --platform synthetic-1t --family conv")


def sampled_network(
    confidence: PlatformConfidence, works: list[Workload], draws: int, seed: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Eq. 8 for CM_LV by brute force: the error of each layer is drawn separately."""
    rng = np.random.default_rng(seed)
    model = confidence.families["conv"]
    reach = [float(model.intervals([work], "LV", 0.5).half_ms[0]) for work in works]
    ordered = np.sort(model.scores["LV"])
    unit = ordered[int(np.ceil((len(ordered) + 1) * 0.5)) - 1]
    total = np.full(draws, sum(float(model.model.predict([w])[0][0]) for w in works))
    for each in reach:
        place = (rng.random(draws) * len(ordered)).astype(int)
        sign = np.where(rng.random(draws) < 0.5, -1.0, 1.0)
        total += sign * each / unit * ordered[place]
    return total


def test_the_convolution_meets_a_monte_carlo_reference(predictor: PlatformPredictor) -> None:
    assert predictor.confidence is not None
    graph = conv_net(16, 32, 64, 64, 128)
    works = [workload(extract(graph, graph.nodes[i : i + 2])) for i in range(0, 8, 2)]
    confidence = predictor.confidence.metrics({"conv"})
    told = confidence.network(works, "LV", draws=40_000, seed=3)
    drawn = sampled_network(confidence, works, 40_000, 4)
    low, high = np.quantile(drawn, [0.05, 0.95])
    assert told.low_ms == pytest.approx(low, rel=0.05, abs=0.03 * told.latency_ms)
    assert told.high_ms == pytest.approx(high, rel=0.05, abs=0.03 * told.latency_ms)


def test_coverage_of_a_layer_is_that_of_the_evidence(predictor: PlatformPredictor) -> None:
    assert predictor.confidence is not None
    graph = conv_net(40, 48)
    work = workload(extract(graph, graph.nodes))
    (layer,) = trust(predictor, graph).layers
    assert layer.coverage == layer_coverage(predictor.confidence.table, [work])[0]
