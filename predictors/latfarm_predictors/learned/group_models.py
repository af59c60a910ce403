"""What is learned of the kernels of one group: their regressors, and how good these are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.group_summary import GroupSummary
from latfarm_predictors.features.groups import LEAST_ROWS, MEMORY
from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.models.base import Observations
from latfarm_predictors.models.few_kernels import FewKernels, fit_few
from latfarm_predictors.models.image_split import fit_apart
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.scaled import Scaled, scale
from latfarm_predictors.models.sibling import Sibling
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.samples import Training


@dataclass(frozen=True)
class GroupModels:
    """What was learned of the n kernels of one group.

    Attributes:
        summary: how well the group was predicted by models that had not seen its kernels.
        unseen_ms: latency of each kernel by a model without it, shape (n,).
        unseen_sigma: log-sigma of these latencies, shape (n,).
        stack: the group's regressor; None for a group with few kernels.
        images: regressor of its convolutions on images; None where they are not learned apart.
        scaled: factor on the roofline over all kernels; None for a group with enough kernels.
        few: families of few kernels that have a roofline of their own, by name.
        forest: random forest for the baseline of forests; None where it is not wanted.
    """

    summary: GroupSummary
    unseen_ms: Array
    unseen_sigma: Array
    stack: Stack | None = None
    images: Stack | None = None
    scaled: Scaled | None = None
    few: Mapping[str, FewKernels] = field(default_factory=dict)
    forest: Forest | None = None


@dataclass(frozen=True)
class GroupFitting:
    """How the groups of a training set are fitted.

    Attributes:
        training: the measured kernels.
        overall: roofline over all of them; groups with few kernels are factors on it.
        seed: random seed.
        sibling: a sibling platform; groups build on it where that makes them more precise.
        forests: whether to fit the baseline's forest of each group too.
    """

    training: Training
    overall: Roofline
    seed: int
    sibling: Sibling | None = None
    forests: bool = True

    def fit(self, name: str, rows: Rows) -> GroupModels:
        """Fit the regressors of one group.

        Args:
            name: of the group.
            rows: which kernels of the training set belong to it.
        """
        if len(rows) < LEAST_ROWS:
            return self._scaled(name, rows)
        training, seed = self.training, self.seed
        table = training.table.take(rows)
        near = None if self.sibling is None else self.sibling.within(table)
        latency, noise = training.latency_ms[rows], training.noise[rows]
        sources = [training.networks[row] for row in rows]
        stack = Stack(seed=seed, sibling=near)
        stack.fit(table, latency, noise, sources)
        predicted, sigma, images = stack.unseen_ms, stack.unseen_sigma, None
        seen = Observations(table, latency, noise, sources)
        two = fit_apart(seen, predicted, seed=seed, sibling=near)
        if two is not None:
            stack, images = two.others, two.images
            predicted, sigma = two.unseen_ms, two.unseen_sigma
        few: dict[str, FewKernels] = {}
        if name.partition("@")[0] == MEMORY:
            few, predicted, sigma = _apart(seen, predicted, sigma, seed)
        forest = Forest(seed=seed).fit(table, latency) if self.forests else None
        summary = replace(
            _summary(name, table, predicted, latency),
            model="gp" if stack.boosted is None else "stack",
            gp_weight=stack.gp_weight,
            outliers=stack.gp.outliers,
            noise=stack.gp.noise_sigma,
        )
        if forest is not None:
            judged = evaluate(np.maximum(forest.out_of_bag_ms, 1e-12), latency)
            summary = replace(
                summary, forest_within10=judged.within10, forest_mean_ape=judged.mean_ape
            )
        return GroupModels(summary, predicted, sigma, stack, images, few=few, forest=forest)

    def _scaled(self, name: str, rows: Rows) -> GroupModels:
        """Fit the factor of a group with few kernels."""
        table, latency = self.training.table.take(rows), self.training.latency_ms[rows]
        predicted, sigma, few = scale(self.overall, table, latency)
        summary = replace(_summary(name, table, predicted, latency), noise=few.sigma)
        return GroupModels(summary, predicted, sigma, scaled=few)


def _apart(
    seen: Observations, unseen_ms: Array, unseen_sigma: Array, seed: int
) -> tuple[dict[str, FewKernels], Array, Array]:
    """The families of a group that have a roofline of their own.

    Args:
        seen: the n measured kernels of the group.
        unseen_ms: latency of each by the group's regressor without it, shape (n,).
        unseen_sigma: log-sigma of these latencies, shape (n,).
        seed: random seed of the folds.

    Returns:
        The rooflines by family, and the latencies and log-sigmas with theirs.
    """
    few: dict[str, FewKernels] = {}
    unseen_ms, unseen_sigma = unseen_ms.copy(), unseen_sigma.copy()
    for family in sorted(set(seen.table.families)):
        rows = np.flatnonzero(seen.table.of_family(family))
        found = fit_few(seen.take(rows), unseen_ms[rows], unseen_sigma[rows], seed=seed)
        if found is not None:
            few[family], unseen_ms[rows] = found
            unseen_sigma[rows] = few[family].sigma
    return few, unseen_ms, unseen_sigma


def _summary(name: str, table: Table, predicted: Array, latency: Array) -> GroupSummary:
    """How well a group was predicted, as if it were a factor on the roofline without noise."""
    scores = evaluate(predicted, latency)
    return GroupSummary(
        group=name,
        rows=len(table),
        families=tuple(sorted(set(table.families))),
        main_ops=tuple(sorted(set(table.main_ops))),
        model="roofline",
        gp_weight=0.0,
        outliers=0,
        noise=0.0,
        within5=scores.within5,
        within10=scores.within10,
        mean_ape=scores.mean_ape,
        forest_within10=None,
        forest_mean_ape=None,
    )
