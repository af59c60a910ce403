"""What a new training keeps of an earlier one: all that no new measurement touches.

Kernel families that share a regressor (`features/groups.py`) are one group, and a group is fitted
again if a sample of any of its families is new or has changed. Every other group is kept. It then
predicts the same bits as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.errors import NoBaselineError
from latfarm_predictors.features.groups import Router
from latfarm_predictors.features.table import Rows, Table
from latfarm_predictors.learned.kept_groups import KeptGroups
from latfarm_predictors.models.published.group_forests import GroupForests
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import Training

_COLUMNS = tuple(f.name for f in fields(Table) if f.name not in ("types", "families"))
"""Names of the columns of a table that are numbers."""
_FOREST = "forest"
"""Name of the baseline of forests."""


@dataclass(frozen=True)
class EarlierFit:
    """An earlier predictor of a platform.

    Attributes:
        predictor: the predictor, as loaded from its bundle.
        changed: kernel families of which samples are new, have changed or are gone since then.
    """

    predictor: PlatformPredictor
    changed: frozenset[str]


@dataclass(frozen=True)
class KeptFit:
    """What is kept of an earlier predictor.

    Attributes:
        predictor: the earlier predictor.
        training: the new training set; kernels of kept groups are as the earlier one had them.
        groups: the groups that are kept.
        families: the kernel families of which every kernel is in a kept group.
        fresh: the rows of the kernels in the other groups.
    """

    predictor: PlatformPredictor
    training: Training
    groups: KeptGroups
    families: frozenset[str]
    fresh: Rows


def kept_of(earlier: EarlierFit, training: Training, *, forests: bool) -> KeptFit | None:
    """What is kept of an earlier predictor for a new training set.

    Args:
        earlier: the predictor, and what has changed since.
        training: all measured kernels, the new ones too.
        forests: whether the baseline's forests are kept too.

    Returns:
        None if nothing can be kept, as of bundles of older versions.
    """
    predictor, evidence = earlier.predictor, earlier.predictor.confidence
    if evidence is None:
        return None
    table = training.table
    _, groups = Router.of(table, training.devices)
    summaries = {summary.group: summary for summary in predictor.models.summaries}
    known = _places(evidence.table)
    old = np.full(len(table), -1, dtype=np.intp)
    for key, rows in _places(table).items():
        before = known.get(key, [])
        if len(before) == len(rows):
            old[rows] = before
    kept = {
        name: np.array(rows, dtype=np.intp)
        for name, rows in groups.items()
        if name in summaries
        and summaries[name].rows == len(rows)
        and earlier.changed.isdisjoint(table.families[row] for row in rows)
        and (old[rows] >= 0).all()
    }
    if not kept:
        return None
    stay = np.sort(np.concatenate(list(kept.values())))
    fresh = np.setdiff1d(np.arange(len(table)), stay)
    again = {table.families[row] for row in fresh.tolist()}
    unseen_ms, unseen_sigma = np.ones((2, len(table)))
    unseen_ms[stay] = evidence.unseen_ms[old[stay]]
    unseen_sigma[stay] = evidence.unseen_sigma[old[stay]]
    models = predictor.models
    found = KeptGroups(
        frozenset(kept),
        models.overall,
        models.stacks,
        models.images,
        models.scaled,
        models.few,
        summaries,
        models.op_spread,
        unseen_ms,
        unseen_sigma,
        _forests(predictor) if forests else {},
    )
    return KeptFit(
        predictor,
        _as_before(training, evidence, stay, old[stay]),
        found,
        frozenset(set(table.families) - again),
        fresh,
    )


def _as_before(training: Training, evidence: Evidence, rows: Rows, before: Rows) -> Training:
    """A training set in which some kernels have the latencies and intervals that they had before.

    Args:
        training: the new training set.
        evidence: that of the earlier predictor.
        rows: the kernels in the training set.
        before: the same kernels in the evidence.
    """
    latency_ms, half_ms = training.latency_ms.copy(), training.padding_ms.copy()
    latency_ms[rows] = evidence.latency_ms[before]
    half_ms[rows] = evidence.padding_ms[before]
    return replace(training, latency_ms=latency_ms, padding_ms=half_ms)


def _places(table: Table) -> dict[tuple[object, ...], list[int]]:
    """The rows of each kernel, in order; kernels that only their device tells apart are equal."""
    columns = np.stack([getattr(table, name) for name in _COLUMNS], axis=1)
    found: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, (kind, family, values) in enumerate(
        zip(table.types, table.families, columns.tolist(), strict=True)
    ):
        found[(kind, family, *values)].append(row)
    return found


def _forests(predictor: PlatformPredictor) -> Mapping[str, Forest]:
    """The baseline's forest of each group; empty where the bundle has none."""
    try:
        found = predictor.baselines.kernel(_FOREST)
    except NoBaselineError:
        return {}
    return found.forests if isinstance(found, GroupForests) else {}
