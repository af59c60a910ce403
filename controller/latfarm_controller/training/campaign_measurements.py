"""What one campaign measured, as far as a predictor may learn from it.

Left out are failures, measurements under another protocol version, measurements that a drifted
sentinel made void, and all measurements but those of the most frequent fingerprint. A measurement
that stands out even on its own host (`host_noise`) is left out where its graph has a better one.

All latencies are corrected for a slow core (`slow_core`), so that they have one unit. Times that
the campaign computed itself, as those between pads, are corrected by `outcome_factors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement
from latfarm_predictors.slow_core import SlowCore, slowdown_of

from latfarm_controller.campaigns.call_overhead import PURPOSE as OVERHEAD
from latfarm_controller.campaigns.host_noise import (
    HostNoise,
    Steadiness,
    counted,
    grades,
    noise_of,
)
from latfarm_controller.campaigns.kernels import probes
from latfarm_controller.campaigns.kernels import survey as kernels
from latfarm_controller.campaigns.kernels.padding import PURPOSE as PADDING
from latfarm_controller.campaigns.networks import campaign as networks
from latfarm_controller.campaigns.profiles import profiled_draw
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.campaigns.slow_core import felt
from latfarm_controller.store.base import CampaignRecord, Store


@dataclass(frozen=True)
class CampaignMeasurements:
    """The measurements of one campaign, sorted by what they are good for.

    Attributes:
        fingerprint: the most frequent fingerprint; measurements under another one are left out.
        slow_core: the correction for a slow core that all latencies here already contain.
        host_noise: what is usual on the host that measured.
        steadiness: how many of the usable measurements have each steadiness.
        doubtful: request ids of the usable measurements that cannot be trusted.
        outcome_factors: what latencies in the campaign's outcome are multiplied by, to correct them
            alike, by the purpose of the measurements that they are from.
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
    host_noise: HostNoise
    steadiness: Mapping[str, int]
    doubtful: frozenset[str]
    kernels: list[tuple[Graph, list[Measurement]]]
    networks: list[tuple[Graph, list[Measurement]]]
    profiles: Mapping[str, Sequence[Measurement]]
    profiled_networks: Sequence[tuple[Graph, Measurement]]
    probes: Sequence[tuple[Graph, Sequence[Measurement]]]
    drawn_profiles: bool
    board_ids: tuple[str, ...]
    left_out: Mapping[str, int]
    outcome_factors: Mapping[str, float] = field(default_factory=dict)


def learned_from(store: Store, campaign_id: str) -> list[Measurement]:
    """The measurements of a campaign that a correction for a slow core is learned from.

    Sentinels are among them: they are measured most often, and at all slowdowns.

    Raises:
        StoreError: the measurements cannot be read.
    """
    found = [m for told in _by_purpose(store, campaign_id).values() for m in told]
    return found + list(_used(store, campaign_id, SENTINEL))


def _used(store: Store, campaign_id: str, purpose: str) -> Iterator[Measurement]:
    """The measurements of a campaign with this purpose that nobody discarded."""
    return store.measurements(campaign_id=campaign_id, purpose=purpose, discarded=False)


def _by_purpose(store: Store, campaign_id: str) -> dict[str, list[Measurement]]:
    """The measurements of kernels and networks of a campaign, by purpose."""
    return {
        purpose: list(_used(store, campaign_id, purpose))
        for purpose in (
            kernels.PURPOSE,
            networks.PURPOSE,
            profiled_draw.PURPOSE,
            probes.PURPOSE,
        )
    }


def read_campaign(
    store: Store,
    record: CampaignRecord,
    slow_core: SlowCore | None = None,
    barred: frozenset[str] = frozenset(),
) -> CampaignMeasurements:
    """Read and sort the measurements of a campaign.

    Args:
        store: holds the measurements.
        record: the campaign.
        slow_core: the correction for a slow core; None: it is learned from this campaign alone.
        barred: hashes of networks that are left out, because they judge models.

    Raises:
        StoreError: the measurements cannot be read.
    """
    measured = _by_purpose(store, record.campaign_id)
    frozen = _leave_out(store, measured, barred)
    if slow_core is None:
        slow_core = felt(learned_from(store, record.campaign_id))
    measured = {p: [slow_core.settled(m) for m in found] for p, found in measured.items()}
    fingerprint = _most_frequent(
        m.fingerprint for found in measured.values() for m in found if m.ok
    )
    void = frozenset(record.outcome.get("void", ()))
    host_noise = _noise(store, record.campaign_id, measured, fingerprint, slow_core)
    if record.outcome.get("alone", {}).get("used"):  # from here on, probes are kernels as well
        measured[kernels.PURPOSE] += measured[probes.PURPOSE]
    left_out: Counter[str] = Counter({"frozen": frozen} if frozen else {})
    graded: dict[str, Steadiness] = {}
    usable = {
        purpose: _usable(measured[purpose], fingerprint, void, left_out, host_noise, graded)
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
        host_noise=host_noise,
        steadiness=counted(graded.values()),
        doubtful=frozenset(name for name, grade in graded.items() if grade == "doubtful"),
        outcome_factors=_outcome_factors(store, record.campaign_id, slow_core),
        kernels=_with_graphs(store, usable[kernels.PURPOSE], left_out),
        networks=_with_graphs(store, usable[networks.PURPOSE], left_out),
        profiles=profiles,
        profiled_networks=[
            run
            for purpose in (networks.PURPOSE, profiled_draw.PURPOSE)
            for run in _profiled(store, measured[purpose])
        ],
        probes=_probed(store, measured[probes.PURPOSE], fingerprint),
        drawn_profiles=bool(measured[profiled_draw.PURPOSE]),
        board_ids=tuple(sorted({m.board_id for m in used})),
        left_out=dict(sorted(left_out.items())),
    )


def _leave_out(store: Store, measured: dict[str, list[Measurement]], barred: frozenset[str]) -> int:
    """Take measurements of barred networks out of `measured`; returns how many there were."""
    if not barred:
        return 0
    found = 0
    for purpose in (networks.PURPOSE, profiled_draw.PURPOSE):
        graphs = {m.graph_hash: store.get_graph(m.graph_hash) for m in measured[purpose]}
        out = {
            key
            for key, graph in graphs.items()
            if graph is not None and network_hash_of(graph) in barred
        }
        kept = [m for m in measured[purpose] if m.graph_hash not in out]
        found += len(measured[purpose]) - len(kept)
        measured[purpose] = kept
    return found


def _probed(
    store: Store, measured: Sequence[Measurement], fingerprint: str
) -> list[tuple[Graph, Sequence[Measurement]]]:
    """The kernels of profiled networks that were measured alone, to compare both times."""
    return [
        (graph, [m])
        for m in measured
        if m.ok
        and m.fingerprint == fingerprint
        and (graph := store.get_graph(m.graph_hash)) is not None
    ]


def _noise(
    store: Store,
    campaign_id: str,
    measured: Mapping[str, Sequence[Measurement]],
    fingerprint: str,
    slow_core: SlowCore,
) -> HostNoise:
    """What is usual on the host of a campaign, by its corrected measurements."""
    marks = _used(store, campaign_id, SENTINEL)
    return noise_of(
        [m for found in measured.values() for m in found if m.fingerprint == fingerprint],
        [slow_core.settled(m) for m in marks if m.fingerprint == fingerprint],
    )


def _outcome_factors(store: Store, campaign_id: str, slow_core: SlowCore) -> dict[str, float]:
    """The median correction by purpose; nothing where nothing was learned.

    A campaign's outcome holds times that were computed from several measurements. Single slowdowns
    are not in it, so that the median of all measurements of that purpose has to do.
    """
    if not slow_core.shift:
        return {}
    found = {}
    for purpose in (PADDING, OVERHEAD):
        told = [
            slow_core.factor(slowdown_of(m)) for m in _used(store, campaign_id, purpose) if m.ok
        ]
        if told:
            found[purpose] = median(told)
    return found


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
    found: Sequence[Measurement],
    fingerprint: str,
    void: frozenset[str],
    left_out: Counter[str],
    host_noise: HostNoise,
    graded: dict[str, Steadiness],
) -> dict[str, list[Measurement]]:
    """Usable measurements by the hash of their graph, oldest first.

    `left_out` counts what is left out, and `graded` gets the steadiness of each measurement that is
    good enough to be looked at, by its request id.
    """
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
        found_here = dict(zip([m.request_id for m in kept], grades(kept, host_noise), strict=True))
        graded.update(found_here)
        stable = [m for m in kept if found_here[m.request_id] != "doubtful"] or kept
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
