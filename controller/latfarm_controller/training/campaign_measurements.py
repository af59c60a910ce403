"""What one campaign measured, as far as a predictor may learn from it.

Left out are failures, measurements under another protocol version, measurements that a drifted
sentinel made void, and all measurements but those of the most frequent fingerprint. An unstable
measurement is left out only where its graph has a stable one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement

from latfarm_controller.campaigns.kernels import probes
from latfarm_controller.campaigns.kernels import survey as kernels
from latfarm_controller.campaigns.networks import campaign as networks
from latfarm_controller.campaigns.profiles import profiled_draw
from latfarm_controller.campaigns.slow_core import SlowCore, felt
from latfarm_controller.store.base import CampaignRecord, Store


@dataclass(frozen=True)
class CampaignMeasurements:
    """The measurements of one campaign, sorted by what they are good for.

    Attributes:
        fingerprint: the most frequent fingerprint; measurements under another one are left out.
        slow_core: the correction for a slow core that all latencies here already contain.
        kernels: single kernels with their usable measurements, oldest first.
        networks: whole networks with their usable measurements, oldest first.
        profiles: all good measurements of single kernels under the fingerprint, by the hash of
            their graph. Shares of layers are taken from these: a profile tells shares even where
            its measurement is too unstable to tell a time.
        profiled_networks: each good measurement of a network that has a profile, of any
            fingerprint, with its network.
        probes: kernels that were measured alone to compare their times with those inside networks,
            with their good measurements under the fingerprint. Where the times agree, they are
            among `kernels` as well.
        drawn_profiles: whether networks were measured for their profiles alone.
        board_ids: the boards of the usable measurements.
        left_out: number of measurements that are not usable, by the reason.
    """

    fingerprint: str
    slow_core: SlowCore
    kernels: list[tuple[Graph, list[Measurement]]]
    networks: list[tuple[Graph, list[Measurement]]]
    profiles: Mapping[str, Sequence[Measurement]]
    profiled_networks: Sequence[tuple[Graph, Measurement]]
    probes: Sequence[tuple[Graph, Sequence[Measurement]]]
    drawn_profiles: bool
    board_ids: tuple[str, ...]
    left_out: Mapping[str, int]


def read_campaign(store: Store, record: CampaignRecord) -> CampaignMeasurements:
    """Read and sort the measurements of a campaign.

    Raises:
        StoreError: the measurements cannot be read.
    """
    measured = {
        purpose: list(store.measurements(campaign_id=record.campaign_id, purpose=purpose))
        for purpose in (
            kernels.PURPOSE,
            networks.PURPOSE,
            profiled_draw.PURPOSE,
            probes.PURPOSE,
        )
    }
    if record.outcome.get("alone", {}).get("used"):
        measured[kernels.PURPOSE] += measured[probes.PURPOSE]
    slow_core = felt(m for found in measured.values() for m in found)
    measured = {p: [slow_core.settled(m) for m in found] for p, found in measured.items()}
    fingerprint = _most_frequent(
        m.fingerprint for found in measured.values() for m in found if m.ok
    )
    void = frozenset(record.outcome.get("void", ()))
    left_out: Counter[str] = Counter()
    usable = {
        purpose: _usable(measured[purpose], fingerprint, void, left_out)
        for purpose in (kernels.PURPOSE, networks.PURPOSE)
    }
    profiles: dict[str, list[Measurement]] = {}
    for m in measured[kernels.PURPOSE]:
        if m.ok and m.fingerprint == fingerprint:
            profiles.setdefault(m.graph_hash, []).append(m)
    used = [m for found in usable.values() for answers in found.values() for m in answers]
    return CampaignMeasurements(
        fingerprint=fingerprint,
        slow_core=slow_core,
        kernels=_with_graphs(store, usable[kernels.PURPOSE], left_out),
        networks=_with_graphs(store, usable[networks.PURPOSE], left_out),
        profiles=profiles,
        profiled_networks=[
            run
            for purpose in (networks.PURPOSE, profiled_draw.PURPOSE)
            for run in _profiled(store, measured[purpose])
        ],
        probes=[
            (graph, [m])
            for m in measured[probes.PURPOSE]
            if m.ok
            and m.fingerprint == fingerprint
            and (graph := store.get_graph(m.graph_hash)) is not None
        ],
        drawn_profiles=bool(measured[profiled_draw.PURPOSE]),
        board_ids=tuple(sorted({m.board_id for m in used})),
        left_out=dict(sorted(left_out.items())),
    )


def _profiled(store: Store, found: Iterable[Measurement]) -> Iterator[tuple[Graph, Measurement]]:
    """The good measurements that have layer times, each with its graph."""
    for measurement in found:
        graph = store.get_graph(measurement.graph_hash) if measurement.ok else None
        if graph is not None and measurement.layers:
            yield graph, measurement


def _most_frequent(names: Iterable[str]) -> str:
    """The most frequent name; of several equally frequent ones the first in alphabetical order."""
    counts = Counter(names)
    return max(sorted(counts), key=lambda name: counts[name]) if counts else ""


def _usable(
    found: Sequence[Measurement], fingerprint: str, void: frozenset[str], left_out: Counter[str]
) -> dict[str, list[Measurement]]:
    """Usable measurements by the hash of their graph, oldest first; counts what is left out."""
    graphs: dict[str, list[Measurement]] = {}
    for m in sorted(found, key=lambda m: (m.told_at_s, m.request_id)):
        if not m.ok:
            left_out["failed"] += 1
        elif m.protocol_version != PROTOCOL_VERSION:
            left_out["protocol"] += 1
        elif m.fingerprint != fingerprint:
            left_out["fingerprint"] += 1
        else:
            graphs.setdefault(m.graph_hash, []).append(m)
    for key, answers in graphs.items():
        kept = [m for m in answers if m.request_id not in void] or answers
        left_out["void"] += len(answers) - len(kept)
        stable = [m for m in kept if not m.unstable] or kept
        left_out["unstable"] += len(kept) - len(stable)
        graphs[key] = stable
    return graphs


def _with_graphs(
    store: Store, found: Mapping[str, list[Measurement]], left_out: Counter[str]
) -> list[tuple[Graph, list[Measurement]]]:
    """Measurements with their graphs from the store; counts those whose graph is lost."""
    rows = []
    for key, answers in found.items():
        graph = store.get_graph(key)
        if graph is None:
            left_out["graph lost"] += len(answers)
        else:
            rows.append((graph, answers))
    return rows
