"""What is learned of one group of kernels: enough rows give a regressor, few give a factor."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.features.groups import LEAST_ROWS, Router
from latfarm_predictors.features.table import Rows
from latfarm_predictors.learned.group_models import GroupFitting, GroupModels
from latfarm_predictors.learned.kept_groups import KeptGroups
from latfarm_predictors.models.base import Observations
from latfarm_predictors.models.few_kernels import FewKernels
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.sibling import fit_roofline
from latfarm_predictors.samples import Training, prepare
from latfarm_predictors.testing.synthetic import SyntheticBoard, random_kernels


@pytest.fixture(scope="module")
def training() -> Training:
    rng, board = np.random.default_rng(4), SyntheticBoard()
    kernels = random_kernels(rng, {"conv": 12, "norm": 12})
    return prepare([board.kernel_sample(kernel, rng) for kernel in kernels], 0.0)


@pytest.fixture(scope="module")
def overall(training: Training) -> Roofline:
    return fit_roofline(Observations(training.table, training.latency_ms, training.noise), None)


@pytest.fixture(scope="module")
def rows(training: Training) -> Rows:
    """The kernels of the largest group."""
    _, groups = Router.of(training.table, training.devices)
    return np.array(max(groups.values(), key=len), dtype=np.intp)


@pytest.fixture(scope="module")
def whole(training: Training, overall: Roofline, rows: Rows) -> GroupModels:
    return GroupFitting(training, overall, seed=0).fit("conv", rows)


def test_a_group_with_enough_kernels_has_a_regressor(whole: GroupModels, rows: Rows) -> None:
    assert len(rows) >= LEAST_ROWS
    assert whole.stack is not None
    assert whole.scaled is None
    assert (whole.summary.group, whole.summary.rows) == ("conv", len(rows))
    assert whole.summary.model in ("gp", "stack")
    assert whole.unseen_ms.shape == whole.unseen_sigma.shape == (len(rows),)
    assert np.all(whole.unseen_ms > 0.0)


def test_a_group_with_few_kernels_is_a_factor_on_the_roofline(
    training: Training, overall: Roofline, rows: Rows
) -> None:
    few = rows[: LEAST_ROWS - 1]
    found = GroupFitting(training, overall, seed=0).fit("conv", few)
    assert (found.stack, found.images, found.forest) == (None, None, None)
    assert found.scaled is not None
    assert found.summary.noise == found.scaled.sigma
    assert (found.summary.model, found.summary.rows) == ("roofline", len(few))
    assert found.unseen_ms.shape == (len(few),)


def test_a_forest_is_fitted_and_judged_only_where_it_is_wanted(
    training: Training, overall: Roofline, rows: Rows, whole: GroupModels
) -> None:
    assert whole.forest is not None
    assert whole.summary.forest_within10 is not None
    without = GroupFitting(training, overall, seed=0, forests=False).fit("conv", rows)
    assert without.forest is None
    assert without.summary.forest_within10 is None
    assert without.unseen_ms.tobytes() == whole.unseen_ms.tobytes(), "a forest changes nothing else"


def test_the_same_rows_and_seed_give_the_same_models(
    training: Training, overall: Roofline, rows: Rows, whole: GroupModels
) -> None:
    again = GroupFitting(training, overall, seed=0).fit("conv", rows)
    assert again.summary == whole.summary
    assert again.unseen_sigma.tobytes() == whole.unseen_sigma.tobytes()


def test_a_kept_group_is_what_was_learned_before(
    training: Training, overall: Roofline, rows: Rows, whole: GroupModels
) -> None:
    assert whole.stack is not None
    unseen_ms, unseen_sigma = np.zeros(len(training.table)), np.zeros(len(training.table))
    unseen_ms[rows], unseen_sigma[rows] = whole.unseen_ms, whole.unseen_sigma
    kept = KeptGroups(
        names=frozenset({"conv"}),
        overall=overall,
        stacks={"conv": whole.stack},
        images={},
        scaled={},
        few={"conv": {"lrn": FewKernels(overall, 0.2)}},
        summaries={"conv": whole.summary},
        op_spread={},
        unseen_ms=unseen_ms,
        unseen_sigma=unseen_sigma,
    )
    found = kept.group("conv", rows)
    assert found.stack is whole.stack
    assert (found.summary, found.images, found.scaled) == (whole.summary, None, None)
    assert found.few["lrn"].roofline is overall
    assert found.forest is None, "an earlier training may have had no forests"
    assert found.unseen_ms.tobytes() == whole.unseen_ms.tobytes()
    assert found.unseen_sigma.tobytes() == whole.unseen_sigma.tobytes()
