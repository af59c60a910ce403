"""Trees as plain arrays: those of scikit-learn and LightGBM, bit for bit."""

from __future__ import annotations

import re
import subprocess
import sys

import lightgbm
import numpy as np
import pytest
from latfarm_predictors.errors import BundleError
from latfarm_predictors.features.table import Array
from latfarm_predictors.models.trees.boosted_trees import read_trees, total
from latfarm_predictors.models.trees.tree import Trees, grow, out_of_bag
from sklearn.ensemble import RandomForestRegressor


def rows(count: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    features = rng.integers(0, 40, (count, 5)).astype(np.float32).astype(np.float64)
    return features, features[:, 0] * features[:, 1] + rng.normal(size=count) + 100.0


@pytest.fixture(scope="module")
def text() -> str:
    features, target = rows(300)
    settings = {"num_leaves": 9, "verbose": -1, "num_threads": 1, "deterministic": True}
    return str(lightgbm.train(settings, lightgbm.Dataset(features, target), 40).model_to_string())


@pytest.mark.parametrize("count", [3, 20, 150])
def test_a_forest_is_the_one_that_scikit_learn_grows(count: int) -> None:
    features, target = rows(count)
    trees, seen = grow(features, target, trees=25, share=0.6, seed=3)
    theirs = RandomForestRegressor(25, max_features=0.6, random_state=3).fit(features, target)
    fresh = rows(40, seed=9)[0]
    votes = trees.votes(fresh)
    for mine, other in zip(votes, theirs.estimators_, strict=True):
        np.testing.assert_array_equal(mine, other.predict(fresh))
    for mine, drawn in zip(seen, theirs.estimators_samples_, strict=True):
        assert set(np.flatnonzero(mine)) == set(drawn)


@pytest.mark.slow
def test_out_of_bag_is_scikit_learns() -> None:
    features, target = rows(60)
    trees, seen = grow(features, target, trees=150, share=1.0, seed=0)
    theirs = RandomForestRegressor(150, max_features=1.0, random_state=0, oob_score=True)
    theirs.fit(features, target)
    found, _ = out_of_bag(trees.votes(features), seen)
    np.testing.assert_allclose(found, theirs.oob_prediction_, rtol=1e-12)


def test_out_of_bag_by_hand() -> None:
    votes = np.array([[1.0, 10.0], [3.0, 20.0], [5.0, 60.0]])
    seen = np.array([[True, True], [False, True], [False, True]])
    mean, variance = out_of_bag(votes, seen)
    np.testing.assert_allclose(mean, [4.0, 30.0])  # every tree saw row 1, so all of them count
    np.testing.assert_allclose(variance, [1.0, (400 + 100 + 900) / 3])


def test_equal_rows_and_long_tables_change_no_bit() -> None:
    features, target = rows(80)
    trees, _ = grow(features, target, trees=10, share=0.6, seed=0)
    asked = rows(900, seed=4)[0]
    whole = trees.votes(np.concatenate([asked, asked[:7]]))
    alone = np.concatenate([trees.votes(asked[row : row + 1]) for row in range(50)], axis=1)
    np.testing.assert_array_equal(whole[:, :50], alone)
    np.testing.assert_array_equal(whole[:, 900:], whole[:, :7])
    assert Trees.none().votes(asked).shape == (0, 900)


@pytest.mark.parametrize("count", [1, 2, 500])
def test_boosted_trees_give_lightgbms_bits(text: str, count: int) -> None:
    asked = rows(count, seed=5)[0] + 0.5
    theirs = lightgbm.Booster(model_str=text).predict(asked, num_threads=1)
    np.testing.assert_array_equal(total(read_trees(text), asked), theirs)


def test_trees_of_a_single_leaf_are_read() -> None:
    features, _ = rows(50)
    settings = {"verbose": -1, "num_threads": 1}
    grown = lightgbm.train(settings, lightgbm.Dataset(features, np.full(50, 3.0)), 3)
    found = total(read_trees(grown.model_to_string()), features)
    np.testing.assert_array_equal(found, grown.predict(features))


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (r"^left_child=.*$", "left_child=0 1 2 3 4 5 6 7"),  # a node leads to itself
        (r"^right_child=.*$", "right_child=-1 -2 -3 -4 -5 -6 -7 99"),
        (r"^left_child=.*$", "left_child=-77 -1 -1 -1 -1 -1 -1 -1"),
        (r"^threshold=.*$", "threshold=1 2"),
        (r"^threshold=.*$", "threshold=a b c d e f g h"),
        (r"^split_feature=.*$", "split_feature=-1 0 0 0 0 0 0 0"),
        (r"^decision_type=.*$", "decision_type=1 2 2 2 2 2 2 2"),  # by category
        (r"^num_leaves=.*$", "num_leaves=0"),
        (r"^num_leaves=.*$", "num_leaves=1e300"),
    ],
)
def test_a_damaged_text_is_refused_and_never_walked(text: str, line: str, instead: str) -> None:
    damaged = re.sub(line, instead, text, count=1, flags=re.MULTILINE)
    assert damaged != text
    with pytest.raises(BundleError, match="boosted trees cannot be read"):
        read_trees(damaged)


def test_a_feature_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(BundleError, match="more features"):
        total(read_trees(text), np.zeros((4, 1)))


def test_no_text_is_refused() -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        read_trees("")


@pytest.mark.slow
def test_predicting_imports_no_library_of_learning(text: str) -> None:
    program = (
        "import sys, numpy, latfarm_predictors.bundle\n"
        "from latfarm_predictors.models.trees.boosted_trees import read_trees, total\n"
        "print(float(total(read_trees(sys.stdin.read()), numpy.full((1, 5), 7.5))[0]).hex())\n"
        "print(sorted({'lightgbm', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], input=text, capture_output=True, text=True, check=True
    )
    value, loaded = told.stdout.splitlines()
    theirs = lightgbm.Booster(model_str=text).predict(np.full((1, 5), 7.5), num_threads=1)
    assert float.fromhex(value) == np.asarray(theirs)[0]
    assert loaded == "[]"
