"""Every regressor meets one conformance suite; further tests check what a single one promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.costs import Tiles, tiled_work
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.models.base import Observations, Regressor, out_of_fold, robust_sigma
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.models.gaussian.search import penalised_likelihood, search
from latfarm_predictors.models.published.analytic import Linear, Lookup
from latfarm_predictors.models.published.annette import AnnetteRoofline, RefinedRoofline
from latfarm_predictors.models.published.annette_forest import Mixed, Statistical
from latfarm_predictors.models.published.mnn_cost import MnnCost
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.models.stack import Stack, mixing_weight
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.testing.synthetic import SyntheticBoard, random_kernel
from scipy.optimize import check_grad
from sklearn.ensemble import RandomForestRegressor

MAKERS: dict[str, Callable[[], Regressor]] = {
    "flops": lambda: Linear(traffic=False),
    "flops_mac": lambda: Linear(traffic=True),
    "lookup": Lookup,
    "forest": lambda: Forest(trees=30),
    "mnn_cost": MnnCost,
    "mnn_cost_scaled": lambda: MnnCost(scaled=True),
    "annette_roofline": AnnetteRoofline,
    "annette_refined_roofline": RefinedRoofline,
    "annette_statistical": lambda: Statistical(trees=30),
    "annette_mixed": lambda: Mixed(trees=30),
    "roofline": Roofline,
    "boosted": lambda: Boosted(sigma=0.1),
    "gp": RooflineGP,
    "stack": Stack,
}
BOARD = SyntheticBoard()


def convs(count: int, seed: int, noise: float = 0.02) -> tuple[Table, Array, Array]:
    """Table, measured and true latencies of random convolutions."""
    rng = np.random.default_rng(seed)
    works = [workload(random_kernel(rng, "conv")) for _ in range(count)]
    true = np.array([BOARD.kernel_true_ms(work) for work in works])
    return as_table(works), true * np.exp(noise * rng.standard_normal(count)), true


@pytest.fixture(scope="module")
def train() -> tuple[Table, Array, Array]:
    return convs(120, seed=1)


@pytest.fixture(scope="module")
def judge() -> tuple[Table, Array, Array]:
    return convs(150, seed=2)


@pytest.fixture(scope="module")
def fitted(train: tuple[Table, Array, Array]) -> dict[str, Regressor]:
    return {name: make().fit(*train[:2]) for name, make in MAKERS.items()}


@pytest.mark.parametrize("name", MAKERS)
def test_predictions_are_positive_finite_and_shaped(
    name: str, fitted: dict[str, Regressor], judge: tuple[Table, Array, Array]
) -> None:
    latency, sigma = fitted[name].predict(judge[0])
    assert latency.shape == sigma.shape == (150,)
    assert np.isfinite(latency).all()
    assert (latency > 0).all()
    assert np.isfinite(sigma).all()
    assert (sigma >= 0).all()


@pytest.mark.parametrize("name", MAKERS)
def test_state_gives_back_the_same_bits(
    name: str, fitted: dict[str, Regressor], judge: tuple[Table, Array, Array]
) -> None:
    model = fitted[name]
    again = type(model).from_state(model.state())
    for ours, theirs in zip(model.predict(judge[0]), again.predict(judge[0]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_data_give_the_same_model(
    name: str,
    fitted: dict[str, Regressor],
    train: tuple[Table, Array, Array],
    judge: tuple[Table, Array, Array],
) -> None:
    again = MAKERS[name]().fit(*train[:2])
    np.testing.assert_array_equal(again.predict(judge[0])[0], fitted[name].predict(judge[0])[0])


@pytest.mark.parametrize("name", MAKERS)
def test_a_refit_on_the_same_rows_predicts_much_the_same(
    name: str,
    fitted: dict[str, Regressor],
    train: tuple[Table, Array, Array],
    judge: tuple[Table, Array, Array],
) -> None:
    model = fitted[name]
    again = model.refit(train[0], train[1], np.zeros(len(train[0])))
    ratio = again.predict(judge[0])[0] / model.predict(judge[0])[0]
    assert np.median(np.abs(np.log(ratio))) < 0.02


@pytest.mark.parametrize("name", MAKERS)
def test_bad_targets_are_refused(name: str) -> None:
    table, latency, _ = convs(30, seed=3)
    with pytest.raises(ValueError, match="latencies"):
        MAKERS[name]().fit(table, latency[:-1])
    latency[4] = float("inf")
    with pytest.raises(ValueError, match="positive and finite"):
        MAKERS[name]().fit(table, latency)
    with pytest.raises(NotEnoughDataError):
        MAKERS[name]().fit(as_table([]), np.zeros(0))


def test_the_gp_beats_the_forest_by_far_on_tiled_work(
    fitted: dict[str, Regressor], judge: tuple[Table, Array, Array]
) -> None:
    share = {
        name: evaluate(fitted[name].predict(judge[0])[0], judge[2]).within10 for name in fitted
    }
    assert share["gp"] > 0.9
    assert share["gp"] > share["forest"] + 0.3
    assert share["stack"] >= share["gp"] - 0.03
    assert share["boosted"] > share["forest"]


def test_the_gp_follows_doubled_work(fitted: dict[str, Regressor]) -> None:
    latencies = []
    for channels in (24, 48, 96, 192):
        b = GraphBuilder("conv")
        graph = b.build([b.relu(b.conv(b.input((1, 64, 28, 28)), channels, 3))])
        latencies.append(fitted["gp"].predict([workload(extract(graph, graph.nodes))])[0][0])
    steps = np.diff(np.log(latencies))
    assert (steps > 0.2).all()
    assert (steps < 1.0).all()


def test_the_gp_is_less_sure_far_from_its_rows(
    fitted: dict[str, Regressor], train: tuple[Table, Array, Array]
) -> None:
    b = GraphBuilder("far")
    graph = b.build([b.conv(b.input((4, 1500, 224, 224)), 2000, (11, 1), dilation=2)])
    far: Workload = workload(extract(graph, graph.nodes))
    near = fitted["gp"].predict(train[0])[1]
    assert fitted["gp"].predict([far])[1][0] > 2 * np.median(near)


def test_gradients_of_the_likelihood_are_right() -> None:
    rng = np.random.default_rng(0)
    inputs, target, variance = rng.normal(size=(25, 3)), rng.normal(size=25), rng.random(25)
    for _ in range(5):
        point = np.concatenate([rng.normal(size=3), [-0.3, -2.0, 0.2]])
        error = check_grad(
            lambda x: penalised_likelihood(x, inputs, target, variance)[0],
            lambda x: penalised_likelihood(x, inputs, target, variance)[1],
            point,
        )
        assert error < 1e-4


def test_scales_sought_on_parts_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(240, 3))
    target = np.sin(2.0 * inputs[:, 0]) + 0.3 * inputs[:, 1] + 0.05 * rng.normal(size=240)
    known = np.zeros(240)
    whole = search(inputs, target, known, steps=60, rows=240, seed=0)
    parts = [search(inputs, target, known, steps=60, rows=80, seed=seed) for seed in range(4)]
    few = [
        search(inputs[n::3], target[n::3], known[:80], steps=60, rows=80, seed=0) for n in (0, 1)
    ]
    assert (np.argsort(whole.lengths) == [0, 1, 2]).all()  # the last feature is noise
    lengths = np.log([found.lengths[:2] for found in parts])
    assert np.abs(lengths - np.log(whole.lengths[:2])).max() < 0.5
    alone = np.log([found.lengths[:2] for found in few])
    assert lengths.std(axis=0).max() < np.abs(alone - np.log(whole.lengths[:2])).max()


def test_gross_outliers_are_dropped(judge: tuple[Table, Array, Array]) -> None:
    table, latency, _ = convs(120, seed=1)
    latency[[7, 50]] *= [3.0, 0.3]
    model = RooflineGP().fit(table, latency)
    assert 1 <= model.outliers <= 4
    assert evaluate(model.predict(judge[0])[0], judge[2]).within10 > 0.9


def test_rows_known_to_be_noisy_count_less(judge: tuple[Table, Array, Array]) -> None:
    table, latency, _ = convs(120, seed=1)
    rng = np.random.default_rng(5)
    noisy = rng.random(120) < 0.4
    latency[noisy] *= np.exp(0.5 * rng.standard_normal(int(noisy.sum())))
    variance = np.where(noisy, 0.25, 0.0)
    told = RooflineGP().fit(table, latency, variance).predict(judge[0])[0]
    untold = RooflineGP().fit(table, latency).predict(judge[0])[0]
    assert evaluate(told, judge[2]).mean_ape < evaluate(untold, judge[2]).mean_ape
    assert evaluate(told, judge[2]).within10 > 0.8


def test_deviations_are_of_the_right_size(
    fitted: dict[str, Regressor], judge: tuple[Table, Array, Array]
) -> None:
    latency, sigma = fitted["gp"].predict(judge[0])
    inside = np.abs(np.log(judge[1] / latency)) <= 1.645 * sigma
    assert 0.75 <= inside.mean() <= 1.0


def test_a_process_sees_a_subset_of_many_rows() -> None:
    table, latency, _ = convs(60, seed=4)
    model = RooflineGP(most_rows=40).fit(table, latency)
    assert model.state().arrays["inputs"].shape[0] <= 40
    assert evaluate(model.predict(table)[0], latency).within10 > 0.6


def test_hidden_tiles_are_found() -> None:
    rng = np.random.default_rng(0)
    works = [workload(random_kernel(rng, "conv")) for _ in range(150)]
    table = as_table(works)
    work, _ = tiled_work(table, Tiles(24, 20, rows=5))
    latency = 0.002 + work / 3e7 + table.total_bytes / 5e7
    model = Roofline().fit(table, latency * np.exp(0.005 * rng.standard_normal(150)))
    assert (model.tiles.out_channels, model.tiles.in_channels, model.tiles.rows) == (24, 20, 5)
    assert model.sigma < 0.03


def test_a_roofline_has_a_rate_for_each_op() -> None:
    rng = np.random.default_rng(0)
    works = [workload(random_kernel(rng, "eltwise")) for _ in range(60)]
    true = np.array([BOARD.kernel_true_ms(work) for work in works])
    model = Roofline().fit(works, true)
    assert evaluate(model.predict(works)[0], true).within10 > 0.95


def test_the_forest_is_the_one_scikit_learn_grew(train: tuple[Table, Array, Array]) -> None:
    model = Forest(trees=20)
    model.fit(*train[:2])
    features = model.features(train[0])
    grown = RandomForestRegressor(20, max_features=model.feature_share, random_state=0)
    grown.fit(features, train[1])
    np.testing.assert_allclose(model.predict(train[0])[0], grown.predict(features), rtol=1e-12)


def test_out_of_bag_errors_exceed_those_on_seen_rows(train: tuple[Table, Array, Array]) -> None:
    model = Forest(trees=100).fit(*train[:2])
    seen = evaluate(model.predict(train[0])[0], train[1]).mean_ape
    assert evaluate(model.out_of_bag_ms, train[1]).mean_ape > 1.3 * seen


def test_out_of_fold_estimates_do_not_see_their_row() -> None:
    table, latency, _ = convs(40, seed=6)
    model = Lookup().fit(table, latency)
    np.testing.assert_array_equal(model.predict(table)[0], latency)
    unseen, _ = out_of_fold(model.refit, Observations(table, latency, np.zeros(40)), folds=40)
    assert (unseen != latency).all()


@pytest.mark.parametrize("sources", [("net",) * 6, ("",) * 6, ("a", "a", "a", "b", "b", "")])
def test_each_fold_has_kernels_to_learn_from(sources: tuple[str, ...]) -> None:
    table, latency, _ = convs(6, seed=6)
    sizes: list[int] = []

    def fit(part: Table, times: Array, noise: Array) -> Lookup:
        sizes.append(len(part))
        return Lookup().fit(part, times, noise)

    out_of_fold(fit, Observations(table, latency, np.zeros(6), sources))
    assert min(sizes) > 0, "all kernels of one network were left out together"


def test_mixing_prefers_the_first_unless_the_mix_is_clearly_better() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=400)
    first, second = (truth + 0.1 * rng.standard_normal(400) for _ in range(2))
    assert 0.3 < mixing_weight(first, second, truth) < 0.7
    assert mixing_weight(first, truth + 2.0 * rng.standard_normal(400), truth) == 1.0


@pytest.mark.slow
def test_trees_join_the_stack_where_they_help() -> None:
    rng = np.random.default_rng(0)
    works = [workload(random_kernel(rng, "conv")) for _ in range(160)]
    table = as_table(works)
    # a rule that no smooth process follows: every fifth channel count is slow
    jag = np.where(np.mod(table.out_channels, 5) == 0, 1.6, 1.0)
    latency = jag * np.where(table.in_channels > 60, 1.0, 0.6) * (0.01 + table.macs / 2e7)
    model = Stack().fit(table, latency)
    assert model.gp_weight < 1.0
    again = Stack.from_state(model.state())
    np.testing.assert_array_equal(model.predict(table)[0], again.predict(table)[0])
    assert again.boosted is not None
    assert again.boosted.roofline is again.gp.roofline
    # where the two rooflines of a bundle differ, each part uses its own
    state = model.state()
    trees = state.parts["boosted"]
    high = replace(
        trees.parts["roofline"], values={**trees.parts["roofline"].values, "floor_ms": 1e6}
    )
    apart = Stack.from_state(
        replace(state, parts={**state.parts, "boosted": replace(trees, parts={"roofline": high})})
    )
    assert (apart.predict(table)[0] > again.predict(table)[0]).all()

    def fold(part: Table, times: Array, noise: Array) -> RooflineGP:
        return RooflineGP(steps=15).fit(part, times, noise)

    alone, _ = out_of_fold(fold, Observations(table, latency, np.zeros(160)), folds=5)
    errors = [
        float(np.minimum(np.abs(np.log(unseen / latency)), 0.5).mean())
        for unseen in (model.unseen_ms, alone)
    ]
    assert errors[0] < 0.98 * errors[1]


def test_robust_sigma_of_normal_errors() -> None:
    errors = np.random.default_rng(0).normal(scale=0.2, size=4000)
    assert robust_sigma(errors) == pytest.approx(0.2, rel=0.1)
    assert robust_sigma(np.zeros(0)) == 0.0
    assert robust_sigma(np.full(9, 0.3)) > 0.3  # a bias counts


@pytest.mark.parametrize("make", [RooflineGP, lambda: Boosted(sigma=0.1)])
def test_the_pieces_that_a_move_copies_are_learned(make: Callable[[], Regressor]) -> None:
    """Turning heads, keys and maps of the same size takes different times."""

    def turned(rng: np.random.Generator) -> Workload:
        b = GraphBuilder("turned")
        shape = (1, *(int(n) for n in rng.integers(2, 40, 3)))
        perm = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 3, 2, 1), (0, 3, 1, 2))[rng.integers(4)]
        graph = b.build([b.transpose(b.input(shape), perm)])
        return workload(extract(graph, graph.nodes))

    def told_ms(works: Sequence[Workload]) -> Array:
        return np.array([1e-6 * w.input_bytes * (1 + 32 / w.contiguous) + 0.01 for w in works])

    rng = np.random.default_rng(3)
    learned, judged = ([turned(rng) for _ in range(count)] for count in (150, 60))
    latency, _ = make().fit(learned, told_ms(learned)).predict(judged)
    assert np.median(np.abs(latency / told_ms(judged) - 1)) < 0.1
