"""How far predictions can be trusted: of the platform, of networks and layers, with remedies.

The intervals CM_TV, CM_LV and CM_O (smart padding paper, section III-C) are shown beside the
calibrated intervals and labelled uncalibrated. `latfarm_predictors.trust` computes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.reports.facts.platform_record import PlatformRecord, SeenNetwork

if TYPE_CHECKING:
    from latfarm_predictors.trust.network_trust import LayerTrust, NetworkTrust

MOST_NETWORKS = 12
"""Most networks that are shown, the worst covered first."""
MOST_LAYERS = 8
"""Most layers of a network that are shown, the longest first."""


def trust_facts(record: PlatformRecord) -> dict[str, Any] | None:
    """Trust in predictions of the platform, and of known networks.

    The networks are those that the predictor never saw, or its calibration networks if there are
    none. If the bundle lacks the data, `missing` says why.

    Returns:
        None if there is no predictor.
    """
    predictor = record.predictor
    if predictor is None:
        return None
    from latfarm_predictors.trust.network_trust import trust, weighted_coverage
    from latfarm_predictors.trust.platform_trust import platform_trust

    networks = distinct(record.unseen) or distinct(record.calibration)
    graphs = [network.graph for network in networks]
    try:
        platform = platform_trust(predictor, graphs)
        worst = sorted((weighted_coverage(predictor, graph), graph.name, graph) for graph in graphs)
        found = [trust(predictor, graph) for _, _, graph in worst[:MOST_NETWORKS]]
    except PredictorsError as error:
        return {"missing": str(error), "platform": None, "networks": [], "of_unseen": False}
    return {
        "missing": "",
        "of_unseen": bool(record.unseen),
        "platform": platform.to_json(),
        "known": len(graphs),
        "networks": [_network(each) for each in found],
    }


def distinct(networks: Sequence[SeenNetwork]) -> list[SeenNetwork]:
    """The networks, but only the first of each name, because others are exports of the same."""
    found: dict[str, SeenNetwork] = {}
    for network in networks:
        found.setdefault(network.graph.name, network)
    return list(found.values())


def _network(told: NetworkTrust) -> dict[str, Any]:
    bad = told.badly_covered
    return {
        "network": told.network,
        "latency_ms": told.latency_ms,
        "level": told.level,
        "calibrated_ms": list(told.calibrated_ms),
        "calibrated": told.calibrated,
        "paper": {name: _interval(each) for name, each in told.paper.items()},
        "coverage": told.coverage,
        "reached": told.reached,
        "layers": len(told.layers),
        "badly_covered": len(bad),
        "worst": [_layer(layer) for layer in bad[:MOST_LAYERS]],
        "remedy": told.remedy,
    }


def _interval(each: Any) -> dict[str, Any]:
    return {
        "latency_ms": each.latency_ms,
        "interval_ms": [each.low_ms, each.high_ms],
        "width": each.relative_width,
        "label": each.label,
    }


def _layer(layer: LayerTrust) -> dict[str, Any]:
    configuration: Mapping[str, Any] = layer.configuration
    return {
        "name": layer.name,
        "kind": layer.kind,
        "configuration": dict(configuration),
        "latency_ms": layer.latency_ms,
        "interval_ms": list(layer.interval_ms),
        "widths": dict(layer.widths),
        "coverage": layer.coverage,
        "outside": list(layer.outside),
        "source": layer.source,
        "remedy": layer.remedy,
    }
