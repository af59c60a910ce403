"""Baselines of the literature: each does what its paper says, and is the same after a bundle."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pytest
from latfarm_predictors.baselines import names as baseline_names
from latfarm_predictors.baselines.fitting import Baselines, threads_of
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.errors import NoBaselineError, NotEnoughDataError
from latfarm_predictors.features.mnn_backends import cpu
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.published.annette import AnnetteRoofline
from latfarm_predictors.models.published.mnn_cost import MnnCost
from latfarm_predictors.models.published.network_model import NETWORK_MODELS, Maker
from latfarm_predictors.models.published.nn_meter import FEATURES, KernelForest, kernel_kinds
from latfarm_predictors.models.published.per_type import RECIPES, PerType, layer_types
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.predict.baseline_sums import UNFUSED, baseline_ms
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import KernelSample, NetworkSample, prepare
from latfarm_predictors.testing.synthetic import (
    RULES,
    SyntheticBoard,
    random_kernel,
    random_network,
)
from sklearn.ensemble import RandomForestRegressor

BOARD = SyntheticBoard()


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    rng = np.random.default_rng(33)
    return [random_network(rng, f"net{i}") for i in range(8)]


def table_of(graph: Graph, rules: FusionRules = RULES) -> Table:
    return as_table([workload(kernel) for kernel in split(graph, rules)])


def test_every_baseline_of_the_papers_is_there() -> None:
    assert set(BASELINES) == {
        *("forest", "nn-meter", "lookup", "roofline", "sum", "operators", "flops", "flops_mac"),
        *("annette-roofline", "annette-refined", "annette-statistical", "annette-mixed"),
        *("mnn_cost", "mnn_cost_scaled"),
    }
    assert set(RECIPES) == set(baseline_names.PER_TYPE)
    assert set(NETWORK_MODELS) == set(baseline_names.NETWORKS)


@pytest.mark.parametrize("name", BASELINES)
def test_each_gives_a_latency_and_the_same_again(
    name: str, predictor: PlatformPredictor, graphs: list[Graph]
) -> None:
    again = pickle.loads(pickle.dumps(copy.deepcopy(predictor)))
    for graph in graphs[:3]:
        latency_ms = baseline_ms(predictor, graph, name)
        truth = BOARD.network_true_ms(graph)
        assert truth / 50 < latency_ms < truth * 50
        assert baseline_ms(again, graph, name) == latency_ms


def test_operators_are_predicted_one_by_one_where_the_sum_predicts_kernels(
    predictor: PlatformPredictor,
) -> None:
    b = GraphBuilder("fused")
    x = b.input((1, 32, 28, 28))
    graph = b.build([b.flatten(b.relu(b.conv(x, 64, 3)))])
    c = GraphBuilder("conv")
    conv = c.build([c.conv(c.input((1, 32, 28, 28)), 64, 3)])
    d = GraphBuilder("relu")
    relu = d.build([d.relu(d.input((1, 64, 28, 28)))])
    alone = [baseline_ms(predictor, part, "sum") for part in (conv, relu)]
    whole = baseline_ms(predictor, graph, "operators")
    # a view takes no time, and the call counts once
    assert whole == pytest.approx(sum(alone) - predictor.call_overhead_ms)
    assert whole > 1.02 * baseline_ms(predictor, graph, "sum")


def test_without_fusion_rules_operators_are_the_kernels(
    predictor: PlatformPredictor, graphs: list[Graph]
) -> None:
    unfused = replace(predictor, rules=UNFUSED)
    for graph in graphs[:3]:
        assert baseline_ms(unfused, graph, "operators") == baseline_ms(unfused, graph, "sum")


def test_nn_meter_is_the_sum_of_its_forests(
    predictor: PlatformPredictor, kernel_samples: list[KernelSample], graphs: list[Graph]
) -> None:
    training = prepare(kernel_samples, BOARD.call_ms)
    model = PerType("nn-meter").fit(training.table, training.latency_ms)
    for graph in graphs[:3]:
        latency, _ = model.predict(table_of(graph))
        assert baseline_ms(predictor, graph, "nn-meter") == pytest.approx(
            float(latency.sum()) + BOARD.call_ms
        )
    assert {"conv", "dwconv", "fc", "maxpool", "avgpool", "concat", "Relu"} <= set(model.models)


def test_a_kernels_forest_is_the_plain_one_on_its_columns(
    kernel_samples: list[KernelSample],
) -> None:
    training = prepare(kernel_samples, BOARD.call_ms)
    rows = np.flatnonzero([kind == "conv" for kind in kernel_kinds(training.table)])
    table, latency = training.table.take(rows), training.latency_ms[rows]
    model = KernelForest("conv", trees=20).fit(table, latency)
    features = model.features(table)
    assert features.shape == (len(rows), 7)
    grown = RandomForestRegressor(20, max_features=model.feature_share, random_state=0)
    grown.fit(features, latency)
    np.testing.assert_allclose(model.predict(table)[0], grown.predict(features), rtol=1e-12)


def test_features_are_those_of_table_6() -> None:
    listed = {
        "conv": {"HW", "C_in", "C_out", "K", "S", "FLOPs", "params"},
        "dwconv": {"HW", "C_in", "K", "S", "FLOPs", "params"},
        "fc": {"C_in", "C_out", "FLOPs", "params"},
        "maxpool": {"HW", "C_in", "K", "S"},
        "avgpool": {"HW", "C_in", "K", "S"},
        "hswish": {"HW", "C_in"},
        "channelshuffle": {"HW", "C_in"},
        "bn": {"HW", "C_in"},
        "add": {"HW", "C_in"},
    }
    assert {kind: set(FEATURES[kind]) for kind in listed} == listed
    assert set(FEATURES) - set(listed) == {"se", "concat", "grouped_conv"}


@pytest.mark.parametrize(
    ("ops", "kind"),
    [
        ("Conv+BatchNormalization+Relu", "conv"),
        ("BatchNormalization+Relu", "bn"),
        ("Add+Relu", "add"),
        ("HardSigmoid+Mul", "hswish"),
        ("Transpose+Reshape", "channelshuffle"),
        ("GlobalAveragePool+Conv+Relu+Conv+HardSigmoid+Mul", "se"),
        ("AveragePool", "avgpool"),
        ("Transpose", "Transpose"),
        ("Softmax", "Softmax"),
    ],
)
def test_kernels_go_to_the_predictor_of_their_kind(ops: str, kind: str) -> None:
    plain = workload(random_kernel(np.random.default_rng(0), "eltwise"))
    family = "conv" if ops.startswith("Conv") else plain.family
    assert kernel_kinds(as_table([plain._replace(type=ops, family=family)])) == [kind]


def test_annettes_models_are_of_one_layer_type_each(kernel_samples: list[KernelSample]) -> None:
    training = prepare(kernel_samples, BOARD.call_ms)
    table, latency = training.table, training.latency_ms
    model = PerType("annette-roofline").fit(table, latency)
    types = np.array(layer_types(table))
    assert {"conv", "dwconv", "Gemm", "MaxPool", "Relu"} <= set(model.models)
    for name, fitted in model.models.items():
        rows = np.flatnonzero(types == name)
        alone = AnnetteRoofline().fit(table.take(rows), latency[rows])
        np.testing.assert_array_equal(
            model.predict(table.take(rows))[0], alone.predict(table.take(rows))[0]
        )
        assert fitted.state().values == alone.state().values


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_kind_with_few_rows_is_predicted_by_the_roofline_over_all(recipe: str) -> None:
    rng = np.random.default_rng(0)
    works = [workload(random_kernel(rng, "conv")) for _ in range(20)]
    works += [workload(random_kernel(rng, "softmax")) for _ in range(4)]
    latency = np.array([BOARD.kernel_true_ms(work) for work in works])
    model = PerType(recipe).fit(works, latency)
    assert set(model.models) == {"conv"}
    rare = as_table([workload(random_kernel(rng, name)) for name in ("softmax", "lrn")])
    expected = AnnetteRoofline().fit(works, latency).predict(rare)[0]
    np.testing.assert_array_equal(model.predict(rare)[0], expected)
    assert (expected > 0).all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_models_by_type_keep_the_protocol(recipe: str) -> None:
    rng = np.random.default_rng(1)
    works = [workload(random_kernel(rng, kind)) for kind in ("conv", "fc") for _ in range(12)]
    latency = np.array([BOARD.kernel_true_ms(work) for work in works])
    model = PerType(recipe).fit(works, latency)
    again = PerType.from_state(model.state())
    for ours, theirs in zip(model.predict(works), again.predict(works), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    refitted = model.refit(works, latency, np.zeros(len(works)))
    ratio = refitted.predict(works)[0] / model.predict(works)[0]
    assert np.median(np.abs(np.log(ratio))) < 0.02
    with pytest.raises(NotEnoughDataError):
        PerType(recipe).fit(works[:2], latency[:2])
    latency[3] = np.nan
    with pytest.raises(ValueError, match="positive and finite"):
        PerType(recipe).fit(works, latency)


def test_mnns_cost_needs_no_measurement_and_scaled_one_factor(
    predictor: PlatformPredictor, kernel_samples: list[KernelSample], graphs: list[Graph]
) -> None:
    training = prepare(kernel_samples, BOARD.call_ms)
    scaled = MnnCost(cpu(1), scaled=True).fit(training.table, training.latency_ms)
    for graph in graphs[:3]:
        published = MnnCost(cpu(1)).network_ms(graph)
        assert baseline_ms(predictor, graph, "mnn_cost") == published
        assert baseline_ms(predictor, graph, "mnn_cost_scaled") == pytest.approx(
            scaled.factor * published + BOARD.call_ms
        )
    assert scaled.factor != 1.0


@pytest.mark.parametrize(
    ("platform", "threads"),
    [("pixel4-tflite2.14-fp32-4t", 4), ("local-mnn-1t", 1), ("npu", 1), ("b-2t-x", 2), ("8t", 1)],
)
def test_threads_are_those_of_the_platforms_name(platform: str, threads: int) -> None:
    assert threads_of(platform) == threads


def test_a_predictor_without_baselines_says_so(
    kernel_samples: list[KernelSample], graphs: list[Graph]
) -> None:
    fitted = fit_predictor(PlatformSamples("p", RULES, kernel_samples[:60], []), baselines=False)
    for name in ("forest", "lookup", "mnn_cost"):
        with pytest.raises(NoBaselineError, match=repr(name)):
            baseline_ms(fitted, graphs[0], name)
    with pytest.raises(NoBaselineError, match="train the platform anew"):
        baseline_ms(replace(fitted, confidence=None), graphs[0], "nn-meter")
    assert baseline_ms(fitted, graphs[0], "sum") > 0
    assert baseline_ms(fitted, graphs[0], "flops") > 0  # without networks, that of the roofline


class Typical:
    """A network model that predicts the same for all; it has all that a new model needs."""

    kind = "typical"

    def __init__(self) -> None:
        self.middle_ms = 0.0

    def fit(self, networks: Sequence[NetworkSample]) -> Self:
        if len(networks) < 5:
            raise NotEnoughDataError(f"{len(networks)} networks, 5 are needed")
        self.middle_ms = float(np.median([network.latency_ms for network in networks]))
        return self

    def predict(self, graphs: Sequence[Graph]) -> tuple[Array, Array]:
        return np.full(len(graphs), self.middle_ms), np.ones(len(graphs))

    def state(self) -> ModelState:
        return ModelState(self.kind, {"middle_ms": self.middle_ms})

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        model = cls()
        model.middle_ms = float(state.values["middle_ms"])
        return model


def test_a_predictor_of_whole_networks_is_added_in_one_place(
    network_samples: list[NetworkSample],
    kernel_samples: list[KernelSample],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = {**NETWORK_MODELS, "typical": Maker(lambda _: Typical(), Typical.from_state)}
    monkeypatch.setattr("latfarm_predictors.baselines.fitting.NETWORK_MODELS", more)
    training = prepare(kernel_samples[:20], BOARD.call_ms)
    fitted = Baselines.fit(training, RULES, None, network_samples)
    again = Baselines.from_state(fitted.state())
    graph = network_samples[0].graph
    middle = np.median([network.latency_ms for network in network_samples])
    assert again.network("typical").predict([graph])[0].tolist() == [middle]
    few = Baselines.fit(training, RULES, None, network_samples[:4])
    assert few.names == ("lookup", "mnn_cost", "mnn_cost_scaled", "flops", "flops_mac")
    with pytest.raises(NoBaselineError, match="measured too little"):
        few.network("typical")


@pytest.mark.parametrize("name", NETWORK_MODELS)
def test_network_models_keep_their_protocol(
    name: str, network_samples: list[NetworkSample], graphs: list[Graph]
) -> None:
    maker = NETWORK_MODELS[name]
    model = maker.make(RULES).fit(network_samples)
    latency, sigma = model.predict(graphs)
    assert latency.shape == sigma.shape == (len(graphs),)
    assert (latency > 0).all()
    again = maker.from_state(model.state())
    np.testing.assert_array_equal(again.predict(graphs)[0], latency)
    with pytest.raises(NotEnoughDataError, match="2 networks"):
        maker.make(RULES).fit(network_samples[:2])


def test_a_forest_kept_in_single_precision_predicts_the_same() -> None:
    rng = np.random.default_rng(4)
    works = [workload(random_kernel(rng, "conv")) for _ in range(60)]
    latency = np.array([BOARD.kernel_true_ms(work) for work in works])
    model = Forest(trees=30).fit(works, latency)
    kept = model.state().arrays["threshold"]
    assert kept.dtype == np.float32
    assert (kept.astype(np.float64) <= model.grown.threshold).all()
    asked = [workload(random_kernel(rng, "conv")) for _ in range(300)]
    again = Forest.from_state(model.state())
    np.testing.assert_array_equal(again.predict(asked)[0], model.predict(asked)[0])


def test_an_op_alone_is_a_kernel_alone() -> None:
    b = GraphBuilder("one")
    graph = b.build([b.sigmoid(b.input((1, 8, 8, 8)))])
    assert workload(extract(graph, graph.nodes)) == workload(split(graph, UNFUSED)[0])
