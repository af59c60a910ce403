"""Who is in which part, when training ends, and what is shipped: pure decisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.early_stopping import EarlyStopping
from latfarm_predictors.gnn.encoded import EncodedGraph
from latfarm_predictors.gnn.labelled import Labelled, by_platform, check_labels, scales
from latfarm_predictors.gnn.shares import leave_one_out, shares_of
from latfarm_predictors.gnn.shipping import decide

NAMES = st.lists(st.sampled_from([f"n{i}" for i in range(40)]), min_size=1, max_size=80)


@given(NAMES, st.floats(0, 0.4), st.floats(0, 0.4), st.integers(0, 5))
def test_parts_are_disjoint_whole_and_keep_siblings_together(
    names: list[str], validation: float, calibration: float, seed: int
) -> None:
    shares = shares_of(names, validation, calibration, seed)
    parts = [set(part.tolist()) for part in vars(shares).values()]
    assert sorted(row for part in parts for row in part) == list(range(len(names)))
    owners = [{names[row] for row in part} for part in parts]
    assert not owners[0] & owners[1]
    assert not owners[1] & owners[2]
    assert not owners[0] & owners[2]
    assert owners[0]


def test_parts_of_wanted_sizes() -> None:
    names = [f"n{i}" for i in range(100)]
    shares = shares_of(names, 0.1, 0.2, 0)
    assert [len(part) for part in vars(shares).values()] == [70, 10, 20]
    other = shares_of(names, 0.1, 0.2, 1)
    assert shares.train.tolist() != other.train.tolist()
    few = shares_of(names[:7], 0.01, 0.01, 0)
    assert [len(part) for part in vars(few).values()] == [5, 1, 1]


@pytest.mark.parametrize(("count", "sizes"), [(1, [1, 0, 0]), (2, [1, 0, 1]), (4, [1, 1, 2])])
def test_a_few_networks_leave_something_to_train_on(count: int, sizes: list[int]) -> None:
    shares = shares_of([f"n{i}" for i in range(count)], 0.375, 0.375, 0)
    assert [len(part) for part in vars(shares).values()] == sizes


def test_leaving_groups_out() -> None:
    found = leave_one_out(["a", "b", "a", "c"])
    assert {name: (list(t), list(j)) for name, (t, j) in found.items()} == {
        "a": ([1, 3], [0, 2]),
        "b": ([0, 2, 3], [1]),
        "c": ([0, 1, 2], [3]),
    }


def test_training_ends_when_errors_get_no_better() -> None:
    stopping = EarlyStopping(2)
    kept = []
    for error in (5.0, 4.0, float("nan"), 3.0, 3.0, float("inf"), 1.0):
        if stopping.ended:
            break
        kept.append(stopping.told(error))
    assert kept == [True, True, False, True, False, False]
    assert (stopping.best, stopping.best_epoch) == (3.0, 4)


def row(platform: str, latency_ms: float) -> Labelled:
    empty = EncodedGraph(np.zeros((1, 44)), np.zeros((0, 2), dtype=np.intp), np.zeros(4))
    return Labelled(empty, platform, latency_ms, "net")


def test_labels() -> None:
    rows = [row("b", 2.0), row("a", 3.0), row("b", 8.0)]
    assert by_platform(rows) == {"a": [1], "b": [0, 2]}
    assert scales(rows) == pytest.approx({"a": 3.0, "b": 4.0})
    check_labels(rows, 3)
    with pytest.raises(NotEnoughDataError, match="3 measured networks, training needs 4"):
        check_labels(rows, 4)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="net on c: a latency of"):
            check_labels([*rows, row("c", wrong)], 1)


FAMILIES = ("alexnet", "resnet", "vgg", "mobilenet")


def errors(mean: float, seed: int, count: int = 60) -> Array:
    return np.abs(np.random.default_rng(seed).normal(mean, 0.02, count))


def test_a_model_that_wins_everywhere_is_shipped() -> None:
    old = {name: errors(0.12, seed) for seed, name in enumerate(FAMILIES)}
    new = {name: [errors(0.06, 9 + s), errors(0.07, 19 + s)] for s, name in enumerate(FAMILIES)}
    decision = decide(new, old)
    assert decision.ship
    assert decision.low > 0
    assert decision.gain == pytest.approx(0.055, abs=0.01)
    assert decide(new, old) == decision


def test_a_model_that_loses_in_one_family_is_not_shipped() -> None:
    old = {name: errors(0.12, seed) for seed, name in enumerate(FAMILIES)}
    new = {name: [errors(0.04, 9 + seed)] for seed, name in enumerate(FAMILIES)}
    new["vgg"] = [errors(0.2, 5)]
    decision = decide(new, old)
    assert not decision.ship
    assert decision.worse == ("vgg",)
    assert "vgg" in decision.reason


def test_a_gain_within_noise_is_no_win() -> None:
    old = {name: errors(0.1, seed) for seed, name in enumerate(FAMILIES)}
    same = {name: [each] for name, each in old.items()}
    decision = decide(same, old)
    assert not decision.ship
    assert decision.gain == 0.0
    assert "noise" in decision.reason


def test_two_families_decide_nothing() -> None:
    old = {name: errors(0.12, 0) for name in FAMILIES[:2]}
    new = {name: [errors(0.01, 1)] for name in FAMILIES[:2]}
    decision = decide(new, old)
    assert not decision.ship
    assert "Only 2 families" in decision.reason


def test_errors_that_are_no_numbers_ship_nothing() -> None:
    old = {name: errors(0.12, seed) for seed, name in enumerate(FAMILIES)}
    new = {name: [errors(0.05, 9 + seed)] for seed, name in enumerate(FAMILIES)}
    for wrong in (np.nan, np.inf):
        new["alexnet"] = [np.append(errors(0.05, 9, 59), wrong)]
        assert not decide(new, old).ship


def test_what_cannot_be_compared_is_refused() -> None:
    old = {"a": errors(0.1, 0)}
    with pytest.raises(NotEnoughDataError, match="no family was left out"):
        decide({}, {})
    with pytest.raises(ValueError, match="same families"):
        decide({"b": [errors(0.1, 0)]}, old)
    with pytest.raises(ValueError, match="same networks"):
        decide({"a": [errors(0.1, 0, 59)]}, old)
    with pytest.raises(NotEnoughDataError, match="a: no network or no seed"):
        decide({"a": []}, old)
