"""Bundles from before single families had groups of their own still give the same answers."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.features import groups
from latfarm_predictors.features.table import Table, as_table
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.learned.kernel_models import KernelModels, ignore_progress
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.published.group_forests import GroupForests
from latfarm_predictors.samples import Training, prepare
from latfarm_predictors.testing.synthetic import SyntheticBoard, random_kernels

COUNTS = {"conv": 12, "eltwise": 34, "softmax": 32, "norm": 9}
"""Kernels of each family that are measured: enough for two families with groups of their own."""
ASKED = {**COUNTS, "concat": 3, "lrn": 2, "pool": 3}
"""Kernels of each family that are asked about; some families were never measured."""


def training() -> Training:
    rng, board = np.random.default_rng(4), SyntheticBoard()
    return prepare([board.kernel_sample(k, rng) for k in random_kernels(rng, COUNTS)], 0.0)


def asked() -> Table:
    rng = np.random.default_rng(5)
    return as_table([workload(kernel) for kernel in random_kernels(rng, ASKED)])


def fitted(rows: Training) -> KernelModels:
    return KernelModels.fit(rows, floor_ms=1e-6, seed=0, on_progress=ignore_progress)


def older_state(state: ModelState) -> ModelState:
    """The state with a router as an older version wrote it, which has one group for families."""
    state.values["router"]["joined"] = {"conv": "conv", "memory": "memory"}
    return state


def test_an_older_bundle_gives_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All families are learned together here, as older versions learned them."""
    with monkeypatch.context() as patch:
        patch.setattr(groups, "_APART_ROWS", 1000)
        models = fitted(training())
    assert set(models.stacks) == {"conv", "memory"}
    expected = models.predict(asked())
    read = KernelModels.from_state(older_state(models.state()))
    assert set(read.router.joined) == {"conv", "memory"}
    found = read.predict(asked())
    assert found.latency_ms.tobytes() == expected.latency_ms.tobytes()
    assert found.sigma.tobytes() == expected.sigma.tobytes()
    assert found.sources == expected.sources
    assert found.labels == expected.labels
    assert {label.partition("/")[0] for label in found.labels} == {"", "conv", "memory"}
    forests = GroupForests(models.forests, models.router.joined)
    before = GroupForests(models.forests, {"conv": "conv", "memory": "memory"})
    for ours, theirs in zip(before.predict(asked()), forests.predict(asked()), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_families_with_enough_kernels_are_learned_apart() -> None:
    models = fitted(training())
    assert set(models.stacks) == {"conv", "memory", "softmax"}
    assert {summary.group: summary.rows for summary in models.summaries} == {
        "conv": 12,
        "memory": 43,
        "softmax": 32,
    }
    again = KernelModels.from_state(models.state())
    assert again.predict(asked()).latency_ms.tolist() == models.predict(asked()).latency_ms.tolist()
