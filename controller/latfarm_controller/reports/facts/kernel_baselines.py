"""Baselines that did not see what they are judged on.

A bundle's own baselines were fitted to all that was measured: they know the answers. Here each is
fitted anew to three quarters of the kernels at a time, and answers for the rest; what it chose when
it was tuned (tiles, numbers of features) is kept. Forests told when they were fitted what the trees
say that did not see a kernel (out of bag).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from latfarm_predictors.baselines.names import BASELINES, MNN
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.features.groups import family_group
from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.learned.network_correction import boundary_mb
from latfarm_predictors.models.published.group_forests import GroupForests
from latfarm_predictors.models.published.network_model import NETWORK_MODELS, NetworkModel
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.samples import NetworkSample
from latfarm_predictors.trust.network_trust import layers_of

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

FOLDS = 4
SLOW = frozenset({"nn-meter", "annette-statistical", "annette-mixed"})
"""Forests by kind of kernel: to fit them anew takes minutes. Unseen networks judge them as well."""
SUM = "sum"
_LEAST_MS = 1e-9
_LEAST_ROWS = 8


@dataclass(frozen=True)
class FittedKernelBaseline:
    """A baseline, fitted to all kernels, and what it says of each without it, shape (n,)."""

    name: str
    model: Any
    unseen_ms: Array

    def predict(self, table: Table) -> Array:
        """Latency in ms of kernels that were not measured, shape (m,)."""
        return np.asarray(np.maximum(self.model.predict(table)[0], _LEAST_MS), dtype=np.float64)


def kernel_baselines(
    predictor: PlatformPredictor, evidence: Evidence
) -> list[FittedKernelBaseline]:
    """All of `BASELINES` that say something of a kernel, in that order, but for `SLOW` ones."""
    table, latency = evidence.table, evidence.latency_ms
    found = []
    for name in BASELINES:
        model = None if name in SLOW else _model(predictor, name)
        if model is not None and len(table) >= _LEAST_ROWS:
            found.append(FittedKernelBaseline(name, model, _out_of_fold(model, table, latency)))
    return found


def network_sums(
    predictor: PlatformPredictor,
    evidence: Evidence,
    baselines: Sequence[FittedKernelBaseline],
    networks: Sequence[NetworkSample],
) -> list[dict[str, float]]:
    """What baselines say of the calibration networks that they have not seen, in ms.

    Those of kernels sum the estimates that were made without the kernel in question; those of whole
    networks are fitted to the others.
    """
    known = {key: place for place, key in enumerate(_keys(evidence.table))}
    whole = {name: maker.make(predictor.rules) for name, maker in NETWORK_MODELS.items()}
    found = []
    for number, network in enumerate(networks):
        graph = network.graph
        table = layers_of(predictor, graph)
        fixed_ms = predictor.call_overhead_ms + predictor.transfer_ms_per_mb * boundary_mb(graph)
        places = np.array([known.get(key, -1) for key in _keys(table)], dtype=np.intp)
        seen = places >= 0
        sums = {}
        for name, times, unseen_ms in [
            *((each.name, each.predict(table), each.unseen_ms) for each in baselines),
            (SUM, predictor.models.predict(table).latency_ms.copy(), evidence.unseen_ms),
        ]:
            times[seen] = unseen_ms[places[seen]]
            sums[name] = float(times.sum()) + fixed_ms
        # One factor of hundreds of kernels, or nothing at all, was fitted of these.
        sums |= {name: baseline_ms(predictor, graph, name) for name in MNN if name in sums}
        others = [*networks[:number], *networks[number + 1 :]]
        sums |= _by_networks(whole, graph, others)
        found.append({name: sums[name] for name in BASELINES if name in sums})
    return found


def rows_by_family(table: Table) -> dict[str, Rows]:
    """Which rows are of each family."""
    found: dict[str, list[int]] = {}
    for row, family in enumerate(table.families):
        found.setdefault(family, []).append(row)
    return {family: np.array(rows, dtype=np.intp) for family, rows in sorted(found.items())}


def _model(predictor: PlatformPredictor, name: str) -> Any | None:
    if name == "roofline":
        return predictor.models.overall
    try:
        return predictor.baselines.kernel(name)
    except PredictorsError:  # it is one of networks, or this bundle was made without it
        return None


def _by_networks(
    models: Mapping[str, NetworkModel], graph: Graph, others: Sequence[NetworkSample]
) -> dict[str, float]:
    found = {}
    for name, model in models.items():
        try:
            found[name] = float(model.fit(others).predict([graph])[0][0])
        except PredictorsError:  # too few networks
            continue
    return found


def _keys(table: Table) -> list[tuple[object, ...]]:
    """What tells kernels apart, one a row: equal for those that no predictor could tell apart."""
    columns = [getattr(table, each.name) for each in fields(table)]
    return list(zip(*(c if isinstance(c, tuple) else c.tolist() for c in columns), strict=True))


def _out_of_bag(model: Any, table: Table) -> Array | None:
    """What forests told, when they were fitted, of rows by the trees that did not see them.

    None of other models, and of forests whose bundle does not hold it: it was made by an older
    version.
    """
    if not isinstance(model, GroupForests):
        return None
    found = np.empty(len(table))
    for name, rows in _grouped(model, table).items():
        told = model.forests[name].out_of_bag_ms
        if len(told) != (len(table) if not name else len(rows)):
            return None
        found[rows] = told if name else told[rows]
    return np.maximum(found, _LEAST_MS)


def _grouped(model: GroupForests, table: Table) -> dict[str, Rows]:
    """The rows that each forest answers for."""
    groups: dict[str, list[int]] = {}
    for row, (family, kind) in enumerate(zip(table.families, table.types, strict=True)):
        name = model.joined.get(family_group(family, kind), "")
        groups.setdefault(name if name in model.forests else "", []).append(row)
    return {name: np.array(rows, dtype=np.intp) for name, rows in groups.items()}


def _out_of_fold(model: Any, table: Table, latency: Array) -> Array:
    told = _out_of_bag(model, table)
    if told is not None:
        return told
    count = len(table)
    # By place and not by chance: the same kernels give the same figures.
    fold = np.arange(count) % FOLDS
    found = np.empty(count)
    for number in range(FOLDS):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        fitted = _refit(model, table.take(train), latency[train])
        found[test] = fitted.predict(table.take(test))[0]
    return np.maximum(found, _LEAST_MS)


def _refit(model: Any, table: Table, latency: Array) -> Any:
    """The same model fitted to other kernels."""
    if not isinstance(model, GroupForests):
        return model.refit(table, latency, np.zeros(len(table)))
    groups: dict[str, list[int]] = {"": list(range(len(table)))}
    for row, (family, kind) in enumerate(zip(table.families, table.types, strict=True)):
        name = model.joined.get(family_group(family, kind), "")
        if name:
            groups.setdefault(name, []).append(row)
    forests = {}
    for name, rows in groups.items():
        if name in model.forests and len(rows) >= _LEAST_ROWS:
            index = np.array(rows, dtype=np.intp)
            noise = np.zeros(len(rows))
            forests[name] = model.forests[name].refit(table.take(index), latency[index], noise)
    return GroupForests(forests, model.joined)
