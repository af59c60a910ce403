"""What a baseline says of a network: kernels or operators summed, or the network as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latfarm_predictors.baselines import BASELINES
from latfarm_predictors.fusion import FusionRules, find_parts
from latfarm_predictors.graph import Graph
from latfarm_predictors.kernel_estimates import estimate
from latfarm_predictors.models.mnn_cost import MnnCost
from latfarm_predictors.models.network_model import NETWORK_MODELS
from latfarm_predictors.models.per_type import RECIPES
from latfarm_predictors.network_correction import boundary_mb
from latfarm_predictors.table import table_of_rows
from latfarm_predictors.workload_rows import rows_of

if TYPE_CHECKING:
    from latfarm_predictors.predictor import PlatformPredictor

UNFUSED = FusionRules()
"""Every op that does work is a kernel of its own; views belong to what made their data."""

_LEAST_NETWORKS = 3


def baseline_ms(predictor: PlatformPredictor, graph: Graph, name: str) -> float:
    """Latency in ms by a baseline.

    One that learns from networks needs 3 of them: where fewer were measured, our roofline over all
    kernels answers in its place.

    Args:
        predictor: that it was fitted with.
        graph: the network.
        name: one of `BASELINES`.

    Raises:
        ValueError: no such baseline.
        NoBaselineError: the predictor was made without it.
        GraphError: a kernel of a size that no board could run.
    """
    if name not in BASELINES:
        raise ValueError(f"no baseline {name!r}; known: {', '.join(BASELINES)}")
    baselines = predictor.baselines
    if name in NETWORK_MODELS:
        if name in baselines.names or len(predictor.correction.residuals) >= _LEAST_NETWORKS:
            return float(baselines.network(name).predict([graph])[0][0])
        name = "roofline"
    if name.startswith("mnn_cost"):
        cost = baselines.kernel(name)
        assert isinstance(cost, MnnCost)  # what that name is read as, whatever a bundle says
        total_ms = cost.network_ms(graph)
        # as published, a call costs what its backend's schedule says, and nothing else
        return total_ms + _fixed_ms(predictor, graph) if cost.scaled else total_ms
    rows = rows_of(graph, find_parts(graph, UNFUSED if name == "operators" else predictor.rules))
    if not rows:
        return predictor.call_overhead_ms
    if name in ("sum", "operators"):
        latency = estimate(predictor.models, predictor.measured, rows).latency_ms
    elif name == "roofline":
        latency = predictor.models.overall.latency_ms(table_of_rows(rows))
    elif name in RECIPES:
        model = baselines.per_type(name, predictor.confidence)
        latency = model.predict(table_of_rows(rows))[0]
    else:
        latency = baselines.kernel(name).predict(table_of_rows(rows))[0]
    return float(latency.sum()) + _fixed_ms(predictor, graph)


def _fixed_ms(predictor: PlatformPredictor, graph: Graph) -> float:
    """What a call and a network's inputs and outputs cost."""
    return predictor.call_overhead_ms + predictor.transfer_ms_per_mb * boundary_mb(graph)
