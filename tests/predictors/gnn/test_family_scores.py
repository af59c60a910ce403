"""Scores that hold for a family that was not measured."""

from __future__ import annotations

import numpy as np
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.family_scores import scores_of_new_families
from latfarm_predictors.intervals import conformal_quantile


def families(draw: np.random.Generator, count: int) -> dict[str, Array]:
    """Scores of families that differ in their typical error."""
    sizes = np.exp(draw.normal(0.0, 0.8, count))
    return {
        f"f{at}": size * np.abs(0.3 * draw.normal(size=60) + draw.normal())
        for at, size in enumerate(sizes)
    }


def test_they_hold_nearly_as_many_networks_of_a_new_family_as_promised() -> None:
    draw = np.random.default_rng(0)
    plain, widened = [], []
    for _ in range(300):
        told = families(draw, 6)
        new = told.pop("f5")
        plain.append(np.mean(new <= conformal_quantile(np.concatenate(list(told.values())), 0.9)))
        widened.append(np.mean(new <= conformal_quantile(scores_of_new_families(told), 0.9)))
    assert np.mean(plain) < 0.86
    assert 0.88 < np.mean(widened) < 0.93


def test_families_that_do_not_differ_need_little_more() -> None:
    draw = np.random.default_rng(1)
    told = {f"f{at}": np.abs(draw.normal(size=200)) for at in range(10)}
    every = np.sort(np.concatenate(list(told.values())))
    found = scores_of_new_families(told)
    assert found.shape == every.shape
    assert (found >= every).all()
    assert (found <= 1.05 * every).all()


def test_a_few_families_and_scores_of_zero_change_nothing() -> None:
    assert scores_of_new_families({}).shape == (0,)
    two = {"a": np.array([2.0, 1.0]), "b": np.array([30.0]), "none": np.zeros(0)}
    assert scores_of_new_families(two).tolist() == [1.0, 2.0, 30.0]
    exact = {name: np.zeros(12) for name in "abcd"}
    assert not scores_of_new_families(exact).any()
