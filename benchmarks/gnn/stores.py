"""Networks that campaigns of a farm measured, from a store.

A network of a store belongs to the family that its name begins with ("resnet18-17"). A graph with
several good measurements has several passes. Latencies are corrected for what the platform feels of
a slow core, as its measurements show it, like those that bundles are made from.

Where some of the networks have a profile, and a characterisation of the platform is in the store,
predictors of kernels learn from these networks. The characterisation tells how the platform fuses
ops, and what a call and the transfers cost. None of its kernels is learned from, because they may
be of the family that judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from latfarm_controller.campaigns.profiles.fusion_in_networks import (
    put_right,
    seen_in_networks,
    wholes_in_networks,
)
from latfarm_controller.campaigns.profiles.profiled_networks import (
    accounts_for,
    places_of,
)
from latfarm_controller.campaigns.slow_core import felt
from latfarm_controller.store.base import ANSWERING, FOREIGN, Store
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.training_set import TrainingSet, collect
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import SlowCore

from benchmarks.gnn.networks import BenchNetwork, KernelData, Source

LEAST_NETWORKS = 3
"""A family with fewer networks is left out."""
_CHARACTERISATION = "characterize"
"""The kind of the campaigns that tell how a platform fuses ops."""


def source_of(path: Path, platform: str, campaigns: str = "") -> Source:
    """The networks of a platform in a store.

    Args:
        path: the store.
        platform: the platform that measured.
        campaigns: beginning of the names of the campaigns whose networks count; empty: all.

    Raises:
        StoreError: the store cannot be opened.
        ValueError: it has no network of that platform.
    """
    store = DuckDBStore(path)
    try:
        found = _measured(store, platform, campaigns)
        slow_core = felt(found)
        networks = _networks(store, found, slow_core)
        profiled = _Profiled.of(store, platform, found, slow_core)
    finally:
        store.close()
    counts: dict[str, int] = {}
    for network in networks:
        counts[network.family] = counts.get(network.family, 0) + 1
    kept = [each for each in networks if counts[each.family] >= LEAST_NETWORKS]
    if not kept:
        raise ValueError(f"{path} has no family of {LEAST_NETWORKS} networks on {platform}")
    note = "measured on a board of this farm"
    facts: dict[str, object] = {"store": path.name, "slow_core": slow_core.to_json()}
    kernels = None
    if profiled is not None:
        kernels, facts["profiled"] = profiled.kernels, len(profiled.runs)
    return Source(f"store-{platform}", platform, note, kept, kernels, facts)


def family_of(name: str) -> str:
    """The family that the name of a network tells: what stands before its number."""
    stem, dash, number = name.rpartition("-")
    return stem if dash and number.isdigit() else name


def _measured(store: Store, platform: str, campaigns: str) -> list[Measurement]:
    """The good measurements of whole networks on a platform, each once."""
    found: dict[str, Measurement] = {}
    for record in store.campaigns(brief=True):
        if not record.name.startswith(campaigns):
            continue
        for request_id, each in store.campaign_measurements(record.campaign_id).items():
            usable = each.ok and each.platform == platform and each.purpose in ANSWERING
            if usable and each.latency_ms and FOREIGN[0] not in each.conditions:
                found[request_id] = each
    return list(found.values())


def _networks(
    store: Store, measured: Sequence[Measurement], slow_core: SlowCore
) -> list[BenchNetwork]:
    """The measured networks, each with all its passes."""
    passes: dict[str, list[float]] = {}
    for each in measured:
        if (latency := slow_core.latency(each)) is not None:
            passes.setdefault(each.graph_hash, []).append(latency.corrected_ms)
    graphs = {graph_hash: store.get_graph(graph_hash) for graph_hash in passes}
    return [
        BenchNetwork(graph, family_of(graph.name), tuple(passes[graph_hash]))
        for graph_hash, graph in graphs.items()
        if graph is not None
    ]


@dataclass(frozen=True)
class _Profiled:
    """The profiled networks of a platform.

    Attributes:
        runs: for each network its graph and its first profile, by the hash of the graph.
        told: what a characterisation tells of fusion, calls and transfers.
    """

    runs: Mapping[str, tuple[Graph, Measurement]]
    told: TrainingSet

    @staticmethod
    def of(
        store: Store, platform: str, measured: Sequence[Measurement], slow_core: SlowCore
    ) -> _Profiled | None:
        """The profiled networks; None if there are none, or no characterisation of the platform."""
        finished = [
            record.campaign_id
            for record in store.campaigns(brief=True)
            if (record.kind, record.platform, record.state) == (_CHARACTERISATION, platform, "done")
        ]
        runs: dict[str, tuple[Graph, Measurement]] = {}
        for each in measured:
            graph = store.get_graph(each.graph_hash) if each.layers else None
            if graph is not None and each.graph_hash not in runs and accounts_for(each):
                runs[each.graph_hash] = graph, slow_core.settled(each)
        if not finished or not runs:
            return None
        return _Profiled(runs, collect(store, platform, finished[0]))

    def kernels(self, seen: Sequence[BenchNetwork], seed: int) -> KernelData:
        """The kernels of those profiled networks that are among `seen`.

        Args:
            seen: networks that may be learned from.
            seed: no random choice is made; the networks to profile were chosen beforehand.
        """
        del seed
        runs = [self.runs[each.name] for each in seen if each.name in self.runs]
        rules = put_right(self.told.rules, seen_in_networks(runs), wholes_in_networks(runs))
        call_ms, transfer = self.told.call_overhead_ms, self.told.transfer_ms_per_mb
        places = places_of(runs, rules, call_ms, transfer)
        samples = [sample for network in places for sample in network]
        return KernelData(samples, rules, call_ms, transfer, places)
