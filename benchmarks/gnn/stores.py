"""Networks that campaigns of a farm measured, from a store.

A network of a store belongs to the family that its name begins with ("resnet18-17"). A graph with
several good measurements has several passes. Latencies are corrected for what the platform feels of
a slow core, as its measurements show it, like those that bundles are made from.
"""

from __future__ import annotations

from pathlib import Path

from latfarm_controller.campaigns.slow_core import felt
from latfarm_controller.store.base import ANSWERING, FOREIGN
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from benchmarks.gnn.networks import BenchNetwork, Source

LEAST_NETWORKS = 3
"""A family with fewer networks is left out."""


def source_of(path: Path, platform: str) -> Source:
    """The networks of a platform in a store.

    Raises:
        StoreError: the store cannot be opened.
        ValueError: it has no network of that platform.
    """
    found: dict[str, Measurement] = {}
    store = DuckDBStore(path)
    try:
        for record in store.campaigns():
            told = store.campaign_measurements(record.campaign_id)
            for request_id, each in told.items():
                usable = each.ok and each.platform == platform and each.purpose in ANSWERING
                if usable and each.latency_ms and FOREIGN[0] not in each.conditions:
                    found[request_id] = each
        slow_core = felt(found.values())
        passes: dict[str, list[float]] = {}
        for each in found.values():
            if (latency := slow_core.latency(each)) is not None:
                passes.setdefault(each.graph_hash, []).append(latency.corrected_ms)
        networks = []
        for graph_hash, told_ms in passes.items():
            graph = store.get_graph(graph_hash)
            if graph is not None:
                networks.append(BenchNetwork(graph, family_of(graph.name), tuple(told_ms)))
    finally:
        store.close()
    counts: dict[str, int] = {}
    for network in networks:
        counts[network.family] = counts.get(network.family, 0) + 1
    kept = [each for each in networks if counts[each.family] >= LEAST_NETWORKS]
    if not kept:
        raise ValueError(f"{path} has no family of {LEAST_NETWORKS} networks on {platform}")
    note = "measured on a board of this farm"
    facts = {"store": path.name, "slow_core": slow_core.to_json()}
    return Source(f"store-{platform}", platform, note, kept, facts=facts)


def family_of(name: str) -> str:
    """The family that the name of a network tells: what stands before its number."""
    stem, dash, number = name.rpartition("-")
    return stem if dash and number.isdigit() else name
