"""The predictor as a whole, on a synthetic board whose latencies are known."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.bundle import save_bundle
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.evaluate import coverage, evaluate
from latfarm_predictors.features.table import as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.predict.answer_kernels import kernel_intervals
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.kernel_estimates import estimate
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.samples import KernelSample, NetworkSample
from latfarm_predictors.testing.synthetic import (
    RULES,
    USUAL_COUNTS,
    SyntheticBoard,
    random_kernels,
    random_network,
)

BOARD = SyntheticBoard()


def networks(count: int, seed: int = 7) -> list[Graph]:
    rng = np.random.default_rng(seed)
    return [random_network(rng, f"net{i}") for i in range(count)]


def single(op: str) -> Graph:
    """A convolution, an op that was never measured, and a convolution."""
    b = GraphBuilder(op)
    x = b.conv(b.input((1, 16, 28, 28)), 32, 3)
    y = {
        "Tanh": lambda: b.tanh(x),
        "BatchNormalization": lambda: b.batch_norm(x),
        "Transpose": lambda: b.transpose(x, (0, 1, 3, 2)),
        "TopK": lambda: b.op("Mystery", [x]),
    }[op]()
    return b.build([b.conv(y, 8, 1)] if op != "TopK" else [y])


def test_new_networks_are_predicted_well_and_inside_their_intervals(
    predictor: PlatformPredictor,
) -> None:
    graphs = networks(60)
    truth = np.array([BOARD.network_true_ms(graph) for graph in graphs])
    answers = predictor.predict_many(graphs)
    scores = evaluate([a.latency_ms for a in answers], truth)
    assert scores.within10 > 0.9
    assert scores.kendall > 0.9
    low, high = (np.array([a.interval_ms[i] for a in answers]) for i in (0, 1))
    inside, width = coverage(low, high, truth)
    assert inside >= 0.85
    assert width < 0.4
    assert all(a.calibrated for a in answers)
    assert all(a.platform == "synthetic-1t" for a in answers)


def test_kernels_are_inside_their_intervals(predictor: PlatformPredictor) -> None:
    rng = np.random.default_rng(11)
    works = [workload(kernel) for kernel in random_kernels(rng, USUAL_COUNTS)]
    truth = np.array([BOARD.kernel_true_ms(work) for work in works])
    noise = 0.02 * (truth + BOARD.call_ms) * rng.standard_normal(len(works))
    rows = works
    kernels = estimate(predictor.models, predictor.measured, rows)
    found = kernels.latency_ms, kernels.sigma, kernels.labels
    low, high = kernel_intervals(predictor.models.scores, *found, 0.9)
    assert coverage(low, high, truth + noise)[0] >= 0.85
    assert coverage(low, high, truth)[0] >= 0.85
    assert np.median(high / low) < 1.25
    narrow = kernel_intervals(predictor.models.scores, *found, 0.5)
    assert coverage(*narrow, truth)[0] < coverage(low, high, truth)[0]


def test_an_answer_names_every_kernel(predictor: PlatformPredictor) -> None:
    graph = networks(1)[0]
    answer = predictor.predict(graph)
    kernels = split(graph, RULES)
    assert [k.nodes for k in answer.kernels] == [k.node_names for k in kernels]
    assert [k.type for k in answer.kernels] == [k.type for k in kernels]
    assert sorted(n for k in answer.kernels for n in k.nodes) == sorted(n.name for n in graph.nodes)
    for kernel in answer.kernels:
        assert 0 < kernel.interval_ms[0] < kernel.latency_ms < kernel.interval_ms[1]
        assert kernel.source
        assert kernel.configuration["family"]
    assert answer.unsupported == ()
    json.dumps(answer.to_json(), allow_nan=False)


def test_many_networks_at_once_get_the_answers_of_each_alone(predictor: PlatformPredictor) -> None:
    graphs = networks(5)
    together = predictor.predict_many(graphs)
    for graph, answer in zip(graphs, together, strict=True):
        alone = predictor.predict(graph)
        assert alone.latency_ms == pytest.approx(answer.latency_ms, rel=1e-9)
        assert alone.interval_ms == pytest.approx(answer.interval_ms, rel=1e-9)
    assert predictor.predict_many([]) == []


def test_more_coverage_is_wider_and_uncalibrated_with_too_few_networks(
    predictor: PlatformPredictor,
) -> None:
    graph = networks(1)[0]
    answers = [predictor.predict(graph, level) for level in (0.5, 0.8, 0.9, 0.95, 0.99)]
    widths = [a.interval_ms[1] / a.interval_ms[0] for a in answers]
    assert widths == sorted(widths)
    assert widths[-1] > widths[0]
    # 20 networks can promise 95 %, not 99 %
    assert [a.calibrated for a in answers] == [True, True, True, True, False]
    assert [a.coverage for a in answers] == [0.5, 0.8, 0.9, 0.95, 0.99]


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_impossible_coverage_is_refused(predictor: PlatformPredictor, level: float) -> None:
    with pytest.raises(ValueError, match="coverage"):
        predictor.predict(networks(1)[0], level)


def test_a_measured_kernel_is_answered_by_its_measurement(
    predictor: PlatformPredictor, kernel_samples: list[KernelSample]
) -> None:
    sources, ratios = [], []
    for sample in kernel_samples[:40]:
        kernel = predictor.predict(sample.kernel.graph).kernels[0]
        sources.append(kernel.source)
        ratios.append(kernel.latency_ms / (sample.latency_ms - BOARD.call_ms))
    assert sources.count("measured") >= 38
    assert np.median(np.abs(np.log(ratios))) < 0.03


def test_the_forest_has_larger_errors_here(predictor: PlatformPredictor) -> None:
    graphs = networks(25)
    truth = [BOARD.network_true_ms(graph) for graph in graphs]
    errors = {
        name: evaluate([baseline_ms(predictor, g, name) for g in graphs], truth).mean_ape
        for name in BASELINES
    }
    ours = evaluate([a.latency_ms for a in predictor.predict_many(graphs)], truth).mean_ape
    assert ours < errors["forest"] / 2
    assert ours < errors["flops"]
    assert ours < errors["lookup"]
    assert ours <= errors["sum"]


def test_an_unknown_baseline_is_refused(predictor: PlatformPredictor) -> None:
    with pytest.raises(ValueError, match="known: forest"):
        baseline_ms(predictor, networks(1)[0], "oracle")


@pytest.mark.parametrize(
    ("op", "source"),
    [
        ("Tanh", "fallback:family:eltwise"),
        ("BatchNormalization", "fallback:nearest:eltwise"),
        ("Transpose", "fallback:nearest:concat"),
    ],
)
def test_an_unmeasured_op_is_predicted_by_others_with_a_wider_interval(
    predictor: PlatformPredictor, op: str, source: str
) -> None:
    rules = FusionRules.none() if op == "BatchNormalization" else RULES
    answer = replace(predictor, rules=rules).predict(single(op))
    kernel = next(k for k in answer.kernels if k.type == op)
    assert kernel.source == source
    assert kernel.latency_ms > 1e-4
    known = next(k for k in answer.kernels if k.type == "Conv")
    assert (
        kernel.interval_ms[1] / kernel.interval_ms[0]
        > 1.5 * known.interval_ms[1] / known.interval_ms[0]
    )
    assert answer.unsupported == ()


def test_an_op_like_no_other_is_named_with_its_node(predictor: PlatformPredictor) -> None:
    b = GraphBuilder("mystery")
    x = b.conv(b.input((1, 16, 28, 28)), 32, 3)
    graph = b.build([x])
    strange = replace(
        graph,
        nodes=tuple(replace(n, op="NonMaxSuppression", name="boxes") for n in graph.nodes),
    )
    answer = predictor.predict(strange)
    assert answer.kernels[0].source == "fallback:analytic"
    assert answer.kernels[0].latency_ms > 0
    assert len(answer.unsupported) == 1
    assert answer.unsupported[0].startswith("boxes (NonMaxSuppression): ")
    usual = predictor.predict(graph)
    assert (
        answer.interval_ms[1] / answer.interval_ms[0] > usual.interval_ms[1] / usual.interval_ms[0]
    )


def test_views_take_nearly_no_time(predictor: PlatformPredictor) -> None:
    b = GraphBuilder("view")
    x = b.reshape(b.input((1, 64, 28, 28)), (1, 64, 784))
    answer = predictor.predict(b.build([x]))
    assert answer.kernels[0].latency_ms < 0.001
    assert answer.kernels[0].source == "fallback:view"
    assert answer.unsupported == ()


def test_measured_views_are_learned_to_take_nearly_no_time() -> None:
    rng = np.random.default_rng(0)
    samples = [
        BOARD.kernel_sample(kernel, rng)
        for kernel in random_kernels(rng, {"conv": 12, "eltwise": 10})
    ]
    for channels in range(8, 140, 11):
        b = GraphBuilder("view")
        graph = b.build([b.reshape(b.input((1, channels, 28, 28)), (1, channels * 784))])
        samples.append(BOARD.kernel_sample(extract(graph, graph.nodes), rng))
    fitted = fit_predictor(PlatformSamples("p", RULES, samples, [], call_overhead_ms=BOARD.call_ms))
    b = GraphBuilder("view")
    answer = fitted.predict(b.build([b.reshape(b.input((1, 50, 28, 28)), (1, 39200))]))
    assert answer.kernels[0].latency_ms < 0.2 * BOARD.call_ms
    assert {"view", "conv", "memory"} == {group.group for group in fitted.groups}


def test_a_group_with_few_rows_builds_on_the_roofline_over_all() -> None:
    rng = np.random.default_rng(0)
    kernels = random_kernels(rng, {"conv": 30, "fc": 3})
    fitted = fit_predictor(
        PlatformSamples(
            "p", RULES, [BOARD.kernel_sample(k, rng) for k in kernels], [], call_overhead_ms=0.004
        )
    )
    small = next(group for group in fitted.groups if group.group == "fc")
    assert (small.rows, small.model) == (3, "roofline")
    b = GraphBuilder("fc")
    graph = b.build([b.fc(b.input((1, 700)), 300)])
    kernel = fitted.predict(graph).kernels[0]
    true = BOARD.kernel_true_ms(workload(extract(graph, graph.nodes)))
    assert kernel.source == "fallback:roofline"
    assert kernel.interval_ms[0] < true < kernel.interval_ms[1]


def test_without_networks_intervals_come_from_kernels_and_say_so(
    kernel_samples: list[KernelSample],
) -> None:
    fitted = fit_predictor(
        PlatformSamples("p", RULES, kernel_samples[:80], [], call_overhead_ms=BOARD.call_ms)
    )
    graphs = networks(10)
    answers = fitted.predict_many(graphs)
    assert not any(a.calibrated for a in answers)
    inside = [
        a.interval_ms[0] <= BOARD.network_true_ms(g) <= a.interval_ms[1]
        for a, g in zip(answers, graphs, strict=True)
    ]
    assert sum(inside) >= 8
    assert fitted.explain()["networks"] == 0
    assert baseline_ms(fitted, graphs[0], "flops") > 0


def test_networks_made_of_training_kernels_do_not_look_easier() -> None:
    rng = np.random.default_rng(3)
    graphs = networks(12, seed=5)
    rules = RULES
    own = {k.kernel_id: k for g in graphs for k in split(g, rules)}
    board = SyntheticBoard(noise=0.15, network_noise=0.001)
    samples = [board.kernel_sample(kernel, rng) for kernel in own.values()]
    measured = [NetworkSample(g, board.network_true_ms(g)) for g in graphs]
    fitted = fit_predictor(
        PlatformSamples("p", rules, samples, measured, call_overhead_ms=board.call_ms)
    )
    fresh = networks(40, seed=6)
    truth = np.array([board.network_true_ms(g) for g in fresh])
    answers = fitted.predict_many(fresh)
    inside = [
        a.interval_ms[0] <= t <= a.interval_ms[1] for a, t in zip(answers, truth, strict=True)
    ]
    assert np.mean(inside) >= 0.8


def test_progress_is_reported_in_order(kernel_samples: list[KernelSample]) -> None:
    told: list[tuple[str, int, int]] = []
    rng = np.random.default_rng(0)
    measured = [BOARD.network_sample(g, rng) for g in networks(3)]
    fit_predictor(
        PlatformSamples("p", RULES, kernel_samples[:60], measured),
        on_progress=lambda stage, done, total: told.append((stage, done, total)),
    )
    assert [stage for stage, _, _ in told] == sorted(stage for stage, _, _ in told)
    for stage in ("kernels", "networks"):
        steps = [(done, total) for name, done, total in told if name == stage]
        assert [done for done, _ in steps] == list(range(steps[-1][1] + 1))


def test_too_few_kernels_are_refused(kernel_samples: list[KernelSample]) -> None:
    with pytest.raises(NotEnoughDataError, match="7 distinct kernels"):
        fit_predictor(PlatformSamples("p", RULES, kernel_samples[:7], []))
    with pytest.raises(NotEnoughDataError, match="1 distinct"):
        fit_predictor(PlatformSamples("p", RULES, [kernel_samples[0]] * 30, []))


def test_the_explanation_is_json_with_errors_of_unseen_networks(
    predictor: PlatformPredictor,
) -> None:
    told = json.loads(json.dumps(predictor.explain(), allow_nan=False))
    assert told["networks"] == 20
    assert told["kernels"] == sum(group["rows"] for group in told["groups"])
    assert {group["group"] for group in told["groups"]} == {
        "conv",
        "dwconv",
        "fc",
        "memory",
        "pool",
    }
    for group in told["groups"]:
        assert group["within10"] >= group["within5"]
        assert group["within10"] > group["forest_within10"]
    assert told["cold_kernels"] == told["kernels"]


def test_cold_extra_is_learned(
    predictor: PlatformPredictor, kernel_samples: list[KernelSample]
) -> None:
    works = [workload(sample.kernel) for sample in kernel_samples]
    extra = predictor.cold.extra_ms(as_table(works))
    truth = np.array([work.weight_bytes for work in works]) / BOARD.cold_bytes_per_ms
    heavy = truth > 0.05
    np.testing.assert_allclose(extra[heavy], truth[heavy], rtol=0.05)


def test_predicting_from_a_bundle_needs_none_of_the_training_libraries(
    predictor: PlatformPredictor, tmp_path: Path
) -> None:
    save_bundle(predictor, tmp_path / "b.zip")
    code = (
        "import sys, numpy as np\n"
        "from latfarm_predictors.bundle import load_bundle\n"
        "from latfarm_predictors.testing.synthetic import random_network\n"
        "graph = random_network(np.random.default_rng(7), 'net')\n"
        f"answer = load_bundle({str(tmp_path / 'b.zip')!r}).predict(graph)\n"
        "heavy = ('scipy', 'sklearn', 'lightgbm', 'onnx', 'torch')\n"
        "print(answer.latency_ms, [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    graph = random_network(np.random.default_rng(7), "net")
    assert done.stdout.strip() == f"{predictor.predict(graph).latency_ms} []"


def test_a_network_without_ops_takes_as_long_as_a_call(predictor: PlatformPredictor) -> None:
    b = GraphBuilder("nothing")
    answer = predictor.predict(b.build([b.input((1, 3, 8, 8))]))
    assert answer.kernels == ()
    assert answer.interval_ms[0] <= answer.latency_ms <= answer.interval_ms[1]
    assert baseline_ms(predictor, b.build([]), "forest") == BOARD.call_ms


def test_peaks_are_near_the_boards_and_survive_a_bundle(predictor: PlatformPredictor) -> None:
    assert predictor.peaks is not None
    assert 0.5 * BOARD.macs_per_ms < predictor.peaks.macs_per_ms <= 1.1 * BOARD.macs_per_ms
    assert 0.5 * BOARD.bytes_per_ms < predictor.peaks.bytes_per_ms <= 1.1 * BOARD.bytes_per_ms
    state = state_of(predictor)
    assert predictor_of(state).peaks == predictor.peaks
    older = replace(state, values={k: v for k, v in state.values.items() if k != "peaks"})
    assert predictor_of(older).peaks is None
