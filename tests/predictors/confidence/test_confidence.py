"""The paper's metrics CM_TV, CM_LV and CM_O and their convolution; coverage and its remedies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_predictors.confidence.layer_confidence import (
    BETA,
    METRICS,
    UNSEEN,
    Difficulty,
    LayerConfidence,
    Metric,
    Neighbourhood,
    outlier_scores,
)
from latfarm_predictors.confidence.layer_coverage import (
    gaps,
    layer_coverage,
    network_coverage,
    outside,
    own_coverage,
    remedies,
)
from latfarm_predictors.confidence.measures import PlatformConfidence, convolve
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.models.published.annette import operations
from latfarm_predictors.testing.synthetic import SyntheticBoard, random_kernel

BOARD = SyntheticBoard()


def conv(c_in: int, c_out: int, size: int = 16, kernel: int = 3, stride: int = 1) -> Workload:
    b = GraphBuilder("conv")
    graph = b.build([b.conv(b.input((1, c_in, size, size)), c_out, kernel, stride=stride)])
    return workload(extract(graph, graph.nodes))


def relu(channels: int, size: int = 16) -> Workload:
    b = GraphBuilder("relu")
    graph = b.build([b.relu(b.input((1, channels, size, size)))])
    return workload(extract(graph, graph.nodes))


def survey(
    count: int, seed: int, family: str = "conv", noise: float = 0.05
) -> tuple[list[Workload], Array]:
    rng = np.random.default_rng(seed)
    works = [workload(random_kernel(rng, family)) for _ in range(count)]
    true = np.array([BOARD.kernel_true_ms(work) for work in works])
    return works, true * np.exp(noise * rng.standard_normal(count))


def stride_one(count: int, seed: int) -> tuple[list[Workload], Array]:
    rng = np.random.default_rng(seed)
    sizes = [(*rng.integers(8, 129, 2), rng.integers(8, 33)) for _ in range(count)]
    works = [conv(int(c_in), int(c_out), int(size)) for c_in, c_out, size in sizes]
    return works, np.array([BOARD.kernel_true_ms(work) for work in works])


@pytest.fixture(scope="module")
def convs() -> LayerConfidence:
    return LayerConfidence.of(*survey(300, 0), trees=60)


@pytest.fixture(scope="module")
def platform() -> PlatformConfidence:
    parts = [survey(80, 1), survey(40, 2, "eltwise"), survey(5, 3, "softmax")]
    works = [work for part, _ in parts for work in part]
    return PlatformConfidence.of(works, np.concatenate([ms for _, ms in parts]), trees=40)


def test_difficulty_is_scaled_over_the_calibration_rows() -> None:
    scale = Difficulty.of(np.array([2.0, 4.0, 6.0]))
    np.testing.assert_allclose(
        scale.sigma(np.array([2.0, 4.0, 6.0])), [BETA, 0.5 + BETA, 1.0 + BETA]
    )
    # easier than all known rows counts as the easiest; harder goes on growing
    np.testing.assert_allclose(scale.sigma(np.array([0.0, 10.0])), [BETA, 2.0 + BETA])
    np.testing.assert_allclose(Difficulty.of(np.array([3.0, 3.0])).sigma(np.array([3.0])), [BETA])


def test_neighbour_distances_by_hand() -> None:
    # the second feature never varies; the first is scaled by 10
    known = Neighbourhood.of(np.array([[0.0, 7.0], [2.0, 7.0], [10.0, 7.0]]))
    np.testing.assert_allclose(known.own_distance(1), [0.2, 0.2, 0.8])
    np.testing.assert_allclose(known.own_distance(2), [0.6, 0.5, 0.9])
    np.testing.assert_allclose(known.own_distance(25), [0.6, 0.5, 0.9])
    asked = np.array([[0.0, 7.0], [20.0, 7.0], [2.0, 8.0]])
    np.testing.assert_allclose(known.distance(asked, 1), [0.0, 1.0, 1.0], atol=1e-7)
    assert known.distance(asked[:0], 1).shape == (0,)


@pytest.mark.parametrize("metric", METRICS)
def test_intervals_cover_new_layers_of_the_same_kind(
    metric: Metric, convs: LayerConfidence
) -> None:
    works, latency = survey(400, 10)
    found = convs.intervals(works, metric, 0.9)
    inside = (found.low_ms <= latency) & (latency <= found.high_ms)
    assert 0.85 <= inside.mean() <= 0.97
    assert found.promised.all()
    wider = convs.intervals(works, metric, 0.95)
    assert (wider.half_ms >= found.half_ms).all()
    np.testing.assert_allclose(found.relative_width, 2 * found.half_ms / found.latency_ms)


def test_tv_is_normalised_per_operation_and_lv_in_time(convs: LayerConfidence) -> None:
    works, _ = survey(50, 11)
    variance = convs.model.tree_latency_ms(works).var(axis=0)
    work = operations(works)
    table = as_table(works)
    np.testing.assert_allclose(
        convs.reach_ms(table, "TV"), work * convs.difficulties["TV"].sigma(variance / work**2)
    )
    np.testing.assert_allclose(
        convs.reach_ms(table, "LV"), convs.difficulties["LV"].sigma(variance)
    )


def test_scores_are_out_of_bag_errors_over_difficulty() -> None:
    works, latency = survey(40, 4)
    found = LayerConfidence.of(works, latency, trees=40)
    unseen, variance = found.model.out_of_bag(works)
    sigma = (variance - variance.min()) / np.ptp(variance) + BETA
    np.testing.assert_allclose(found.scores["LV"], np.abs(latency - unseen) / sigma)
    efficiency = variance / operations(works) ** 2
    sigma = (efficiency - efficiency.min()) / np.ptp(efficiency) + BETA
    np.testing.assert_allclose(
        found.scores["TV"], np.abs(latency - unseen) / operations(works) / sigma
    )


def test_padding_intervals_only_widen() -> None:
    works, latency = survey(60, 5)
    plain = LayerConfidence.of(works, latency, trees=40)
    padded = LayerConfidence.of(works, latency, padding_ms=(0.8 * latency, 1.2 * latency), trees=40)
    asked, _ = survey(50, 12)
    for metric in METRICS:
        before, after = (each.intervals(asked, metric) for each in (plain, padded))
        np.testing.assert_array_equal(before.latency_ms, after.latency_ms)
        assert (after.half_ms > before.half_ms).all()
    with pytest.raises(ValueError, match="hold its median"):
        LayerConfidence.of(works, latency, padding_ms=(1.1 * latency, latency))


def test_the_outlier_metric_flags_what_the_survey_lacks() -> None:
    # the paper's own finding (Fig. 13): a data set without stride 2
    found = LayerConfidence.of(*stride_one(150, 6), trees=40)
    known, strided = conv(64, 64, size=16), conv(64, 64, size=16, stride=2)
    width = found.intervals([known, strided], "O").half_ms
    assert width[1] > 3 * width[0]


def test_too_little_data_is_refused() -> None:
    works, latency = survey(9, 7)
    with pytest.raises(NotEnoughDataError):
        LayerConfidence.of(works, latency)
    works, latency = survey(12, 7)
    few = LayerConfidence.of(works, latency, trees=40).intervals(works, "LV", 0.95)
    assert not few.promised.any()
    with pytest.raises(ValueError, match="positive and finite"):
        LayerConfidence.of(works, latency * np.nan)


def test_convolution_of_two_layers_by_hand() -> None:
    rng = np.random.default_rng(0)
    # errors are +-3 and +-1, so the sum has four values of equal frequency
    values, counts = np.unique(
        convolve(np.array([3.0, 1.0]), np.ones(5), 4000, rng), return_counts=True
    )
    assert values.tolist() == [-4.0, -2.0, 2.0, 4.0]
    assert (np.abs(counts - 1000) < 150).all()


def test_independent_errors_shrink_with_the_root_of_the_layers(
    platform: PlatformConfidence,
) -> None:
    layer = survey(1, 20)[0]
    widths = [
        platform.network(layer * count, "LV", seed=1, draws=4000).relative_width
        for count in (4, 16)
    ]
    assert widths[0] / widths[1] == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("metric", METRICS)
def test_a_network_sums_its_layers_and_says_uncalibrated(
    metric: Metric, platform: PlatformConfidence
) -> None:
    works = survey(6, 21)[0] + survey(4, 22, "eltwise")[0]
    found = platform.network(works, metric)
    assert found == platform.network(works, metric)  # the draws are seeded
    assert found.label == "uncalibrated"
    assert found.latency_ms == pytest.approx(platform.layers(works, metric).latency_ms.sum())
    assert found.low_ms < found.latency_ms < found.high_ms
    assert platform.network(works, metric, 0.5).relative_width < found.relative_width


def test_families_without_a_model_are_named(platform: PlatformConfidence) -> None:
    works = survey(3, 25)[0] + survey(1, 26, "softmax")[0] + survey(1, 27, "lrn")[0]
    with pytest.raises(NotEnoughDataError, match="lrn, softmax"):
        platform.layers(works, "LV")
    with pytest.raises(NotEnoughDataError, match="lrn, softmax"):
        platform.network(works, "O")
    with pytest.raises(ValueError, match="without layers"):
        platform.network([], "O")
    with pytest.raises(ValueError, match="between 0 and 1"):
        platform.network(works[:3], "O", 1.0)


def test_coverage_by_hand() -> None:
    measured = [conv(16, 32), conv(64, 64)]
    asked = [conv(16, 32), conv(32, 32), conv(32, 64), relu(16)]
    # a measured one; twice the channels; half the channels of the second; an unmeasured kind
    np.testing.assert_allclose(layer_coverage(measured, asked), [1.0, 0.5, 0.5, 0.0])
    assert network_coverage(measured, asked) == pytest.approx(0.5)
    assert network_coverage(measured, asked, [3, 1, 0, 0]) == pytest.approx(0.875)
    assert layer_coverage([], asked).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_what_lies_outside_is_named() -> None:
    measured = [conv(16, 32, size=8), conv(64, 64, size=32, kernel=5)]
    asked = [
        conv(24, 48, size=10),
        conv(24, 48, size=16, stride=2),
        conv(128, 64, size=64, kernel=1),
        relu(16),
    ]
    assert outside(measured, asked) == (
        (),
        ("stride_h", "stride_w"),
        ("in_h", "in_w", "in_channels", "kernel_h", "kernel_w"),
        ("family",),
    )


def test_gaps_are_ranked_by_what_they_cost() -> None:
    measured = [conv(16, 32), conv(64, 64)]
    asked = [conv(16, 32), conv(32, 32), relu(16), conv(32, 64)]
    found = gaps(measured, asked, [1.0, 4.0, 1.0, 2.0])
    assert [gap.layer for gap in found] == [1, 2, 3]
    assert [gap.lost for gap in found] == pytest.approx([0.25, 0.125, 0.125])
    assert [gap.nearest for gap in found] == [0, None, 1]
    assert found[1].outside == ("family",)
    lacking = 1.0 - network_coverage(measured, asked, [1.0, 4.0, 1.0, 2.0])
    assert sum(gap.lost for gap in found) == pytest.approx(lacking)
    assert gaps(asked, asked) == ()


def test_remedies_take_what_helps_most_first_and_reach_what_they_promise() -> None:
    measured = [conv(16, 16)]
    layers = [conv(16, 16), conv(256, 256), conv(256, 256), conv(256, 128), relu(64)]
    found = remedies(measured, layers, 10)
    assert found[0].workload == layers[1]
    assert found[0].layers == (1, 2, 3)
    assert found[0].configuration["out_channels"] == 256
    assert [remedy.workload for remedy in found[1:]] == [layers[4], layers[3]]
    reached = network_coverage(measured, layers)
    for number, remedy in enumerate(found, start=1):
        bought = [*measured, *(each.workload for each in found[:number])]
        assert network_coverage(bought, layers) == pytest.approx(remedy.coverage)
        assert remedy.coverage == pytest.approx(reached + remedy.gain)
        reached = remedy.coverage
    assert reached == pytest.approx(1.0)
    assert remedies(layers, layers, 10) == ()
    assert len(remedies(measured, layers, 2)) == 2


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [float("nan"), 1.0]], ids=str)
def test_unusable_weights_are_refused(weights: list[float]) -> None:
    layers = [conv(16, 16), conv(16, 32)]
    with pytest.raises(ValueError, match="weights"):
        network_coverage(layers, layers, weights)
    with pytest.raises(ValueError, match="weights"):
        network_coverage(layers, [])


POOL = [work for family in ("conv", "dwconv", "eltwise", "fc") for work in survey(8, 30, family)[0]]
SOME = st.lists(st.sampled_from(range(len(POOL))), min_size=1, max_size=10)


@settings(deadline=None, max_examples=60)
@given(measured=SOME, more=SOME, asked=SOME)
def test_another_measurement_never_lowers_coverage(
    measured: list[int], more: list[int], asked: list[int]
) -> None:
    before, layers = [POOL[i] for i in measured], [POOL[i] for i in asked]
    after = before + [POOL[i] for i in more]
    low, high = layer_coverage(before, layers), layer_coverage(after, layers)
    assert ((low >= 0) & (low <= high) & (high <= 1)).all()
    np.testing.assert_array_equal(layer_coverage(after + layers, layers), 1.0)
    for names_before, names_after in zip(
        outside(before, layers), outside(after, layers), strict=True
    ):
        assert names_before == ("family",) or set(names_after) <= set(names_before)
    # features are scaled by what was measured, and still no neighbour gets farther away
    features = np.array([[work.in_channels, work.in_h] for work in POOL], dtype=np.float64)
    near, nearer = (
        Neighbourhood.of(features[rows]).distance(features[asked], 1)
        for rows in (measured, measured + more)
    )
    spans = np.ptp(features[measured], axis=0)
    if (spans > 0).all():
        assert (nearer <= near + 1e-6).all()


def test_outlier_scores_are_the_difficulty_of_cm_o(convs: LayerConfidence) -> None:
    works, _ = survey(300, 0)
    asked, _ = survey(40, 13)
    np.testing.assert_allclose(
        outlier_scores(works, asked), convs.reach_ms(as_table(asked), "O"), rtol=1e-9
    )
    known = outlier_scores(works, works, k=1)
    assert (known < 1.0).all()  # each has distance 0 to itself
    far = outlier_scores(works, [conv(64, 64), conv(2048, 2048), relu(16)])
    assert far[0] < 1.0 < far[1]
    assert far[2] == UNSEEN
    assert outlier_scores([], asked).tolist() == [UNSEEN] * 40
    assert outlier_scores(works, []).shape == (0,)
    assert np.isfinite(outlier_scores([conv(8, 8), conv(8, 8)], asked)).all()


def test_own_coverage_is_that_by_the_others() -> None:
    measured = [conv(16, 32), conv(32, 32), conv(32, 32), relu(16)]
    np.testing.assert_allclose(own_coverage(measured), [0.5, 1.0, 1.0, 0.0])


def test_intervals_of_measured_layers_hold_their_latency_as_often_as_they_say() -> None:
    works, latency = survey(120, 8)
    found = LayerConfidence.of(works, latency, trees=100)
    for metric in METRICS:
        told = found.own_intervals(metric, 0.8)
        held = (told.low_ms <= latency) & (latency <= told.high_ms)
        assert 0.8 <= held.mean() <= 0.83
        np.testing.assert_array_equal(told.latency_ms, found.unseen_ms)
    assert found.on_medians().scores is found.median_scores


def test_a_stand_in_is_wide_and_promises_nothing(platform: PlatformConfidence) -> None:
    works = survey(3, 25)[0] + survey(2, 26, "softmax")[0]
    everything = platform.families["conv"]
    guarded = PlatformConfidence(platform.families, everything)
    assert guarded.stands_in(works).tolist() == [False] * 3 + [True] * 2
    found = guarded.layers(works, "TV")
    plain = platform.layers(works[:3], "TV")
    np.testing.assert_array_equal(found.half_ms[:3], plain.half_ms)
    assert found.promised.tolist() == [*plain.promised.tolist(), False, False]
    assert (found.relative_width[3:] >= 2.0).all()
    whole = guarded.network(works, "TV", draws=4000)
    alone = platform.network(works[:3], "TV", draws=4000)
    assert whole.high_ms - whole.low_ms > alone.high_ms - alone.low_ms
