"""Baselines that did not see the kernels and networks that judge them.

A bundle's own baselines were fitted to all measurements, so they know the answers. Here each one is
fitted again to three quarters of the kernels at a time and predicts the rest. The choices of its
tuning (tiles, numbers of features) are kept. Forests need no new fit: they kept out-of-bag
predictions, which are those of the trees that did not see a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from latfarm_predictors.baselines.names import BASELINES, MNN
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.features.groups import joined_group
from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.models.published.group_forests import GroupForests
from latfarm_predictors.models.published.network_model import NETWORK_MODELS, NetworkModel
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.samples import NetworkSample
from latfarm_predictors.trust.network_trust import layers_of

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

FOLDS = 4
"""Number of parts of the kernels; each part is predicted from the others."""
SLOW = frozenset({"nn-meter", "annette-statistical", "annette-mixed"})
"""Baselines that are not fitted again, because it takes minutes. Unseen networks judge them."""
SUM = "sum"
"""Baseline: the sum of our own predictions of kernels, without the network correction."""
_LEAST_MS = 1e-9
"""Shortest latency in milliseconds that counts as a prediction, to keep errors finite."""
_LEAST_ROWS = 8
"""Fewest kernels that a baseline is fitted to."""


@dataclass(frozen=True)
class FittedKernelBaseline:
    """A baseline, and its predictions of kernels that it did not see.

    Attributes:
        name: its name.
        model: the baseline, fitted to all kernels.
        unseen_ms: for each kernel the prediction without it, in milliseconds, shape (n,).
    """

    name: str
    model: Any
    unseen_ms: Array

    def predict(self, table: Table) -> Array:
        """Latencies of other kernels in milliseconds, shape (m,)."""
        return np.asarray(np.maximum(self.model.predict(table)[0], _LEAST_MS), dtype=np.float64)


def kernel_baselines(
    predictor: PlatformPredictor, evidence: Evidence
) -> list[FittedKernelBaseline]:
    """The `BASELINES` that predict kernels, in that order, without those that are `SLOW`."""
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
    """Latencies of the calibration networks by each baseline, in milliseconds.

    Baselines of kernels sum the predictions that were made without the kernel in question.
    Baselines of whole networks are fitted to the other networks.
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
        # These have no fit, or one factor that was fitted to hundreds of kernels.
        sums |= {name: baseline_ms(predictor, graph, name) for name in MNN if name in sums}
        others = [*networks[:number], *networks[number + 1 :]]
        sums |= _by_networks(whole, graph, others)
        found.append({name: sums[name] for name in BASELINES if name in sums})
    return found


def _model(predictor: PlatformPredictor, name: str) -> Any | None:
    if name == "roofline":
        return predictor.models.overall
    try:
        return predictor.baselines.kernel(name)
    except PredictorsError:  # it is a baseline of networks, or this bundle does not have it
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
    """A key for each row, which is equal for kernels that no predictor can tell apart."""
    columns = [getattr(table, each.name) for each in fields(table)]
    return list(zip(*(c if isinstance(c, tuple) else c.tolist() for c in columns), strict=True))


def _out_of_bag(model: Any, table: Table) -> Array | None:
    """The out-of-bag predictions of forests, which they kept when they were fitted.

    Returns:
        None for other models, and for forests of a bundle that an older version made.
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
    """The rows that each forest predicts."""
    groups: dict[str, list[int]] = {}
    for row, (family, kind) in enumerate(zip(table.families, table.types, strict=True)):
        name = joined_group(model.joined, family, kind)
        groups.setdefault(name if name in model.forests else "", []).append(row)
    return {name: np.array(rows, dtype=np.intp) for name, rows in groups.items()}


def _out_of_fold(model: Any, table: Table, latency: Array) -> Array:
    told = _out_of_bag(model, table)
    if told is not None:
        return told
    count = len(table)
    # The folds depend on the order, not on chance, so the same kernels give the same numbers.
    fold = np.arange(count) % FOLDS
    found = np.empty(count)
    for number in range(FOLDS):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        fitted = _refit(model, table.take(train), latency[train])
        found[test] = fitted.predict(table.take(test))[0]
    return np.maximum(found, _LEAST_MS)


def _refit(model: Any, table: Table, latency: Array) -> Any:
    """The same kind of model, fitted to other kernels."""
    if not isinstance(model, GroupForests):
        return model.refit(table, latency, np.zeros(len(table)))
    groups: dict[str, list[int]] = {"": list(range(len(table)))}
    for row, (family, kind) in enumerate(zip(table.families, table.types, strict=True)):
        name = joined_group(model.joined, family, kind)
        if name:
            groups.setdefault(name, []).append(row)
    forests = {}
    for name, rows in groups.items():
        if name in model.forests and len(rows) >= _LEAST_ROWS:
            index = np.array(rows, dtype=np.intp)
            noise = np.zeros(len(rows))
            forests[name] = model.forests[name].refit(table.take(index), latency[index], noise)
    return GroupForests(forests, model.joined)
