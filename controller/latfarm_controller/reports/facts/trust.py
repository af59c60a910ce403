"""How far predictions can be trusted, as data: platform, networks, layers, and what to do about it.

CM_TV, CM_LV and CM_O (smart padding paper, section III-C) stand beside the calibrated intervals and
are labelled uncalibrated; `latfarm_predictors.trust.network_trust` makes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.reports.facts.platform_record import PlatformRecord, SeenNetwork

if TYPE_CHECKING:
    from latfarm_predictors.trust.network_trust import LayerTrust, NetworkTrust

MOST_NETWORKS = 12
MOST_LAYERS = 8


def trust_facts(record: PlatformRecord) -> dict[str, Any] | None:
    """Trust in the platform, and in the networks that are known: those it never saw, if any.

    None without a predictor; `missing` says why where a bundle cannot tell.
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
    """Networks by name, the first of each: two exports of one are told once."""
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
