"""What the store knows of measurements beside themselves: network, kernel and campaign.

A measurement names its graph by a hash, and its campaign not at all. People who read results want
the network's name, the type and sizes of a kernel, and the campaign that asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import configuration, workload
from latfarm_predictors.measurement import Measurement

from latfarm_controller.errors import UsageError
from latfarm_controller.nearest_names import did_you_mean
from latfarm_controller.store.base import FOREIGN, Store

KERNELS = frozenset({"kernel", "probe"})
"""The purposes of measurements whose graph is one kernel."""
PURPOSES = (
    *("fusion", "kernel", "probe", "padding", "context", "network", "sentinel"),
    *("query", "check", "engine"),
)
"""Purposes that measurements of this version have."""
LEAST_DIGITS = 6
"""Least number of digits by which a network is named; fewer are often those of another one."""
MOST_TOLD = 5
"""Largest number of networks that a message names."""
_HASH = re.compile(r"[0-9a-f]+")


class ResultDetails:
    """Tells the details of measurements; the graph of each is read once.

    Args:
        store: holds graphs and campaigns.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._graphs: dict[str, dict[str, Any]] = {}

    def of(
        self, measurements: Sequence[Measurement], campaign_id: str = ""
    ) -> list[dict[str, Any]]:
        """For each measurement, what the store knows besides.

        The keys are `network` (name of the graph), `kernel` (type of a kernel that was measured
        alone, else empty), `configuration` (its sizes by name), `campaign_id` and `campaign`
        (name).

        Args:
            measurements: in the order in which the store gives them.
            campaign_id: the campaign that all of them are of; empty: any.
        """
        names = {record.campaign_id: record.name for record in self._store.campaigns(brief=True)}
        origins: dict[str, list[str]] = {}
        if not campaign_id:
            asked = list({m.request_id for m in measurements})
            # A measurement that several campaigns were told is listed once for each of them.
            origins = {key: list(found) for key, found in self._store.origins(asked).items()}
        details = []
        for measurement in measurements:
            ours = FOREIGN[0] not in measurement.conditions
            told = origins.get(measurement.request_id, []) if ours else []
            origin = campaign_id or (told.pop(0) if told else "")
            graph = self._graph(measurement.graph_hash, kernel=measurement.purpose in KERNELS)
            details.append({**graph, "campaign_id": origin, "campaign": names.get(origin, "")})
        return details

    def _graph(self, graph_hash: str, *, kernel: bool) -> dict[str, Any]:
        """The keys that tell about the graph; the same graph may be a kernel and a network."""
        key = f"{graph_hash} {kernel}"
        if key not in self._graphs:
            self._graphs[key] = _told(self._store.get_graph(graph_hash), kernel=kernel)
        return self._graphs[key]


def _told(graph: Graph | None, *, kernel: bool) -> dict[str, Any]:
    """The name of a network, and the type and sizes of a kernel."""
    found: dict[str, Any] = {"network": "", "kernel": "", "configuration": {}}
    if graph is None:
        return found
    found["network"] = graph.name
    if kernel:
        try:
            one = Kernel(graph)
            found |= {"kernel": one.type, "configuration": configuration(workload(one))}
        except GraphError:  # a graph from elsewhere, which is no kernel that is known here
            return found
    return found


def check_filters(store: Store, platform: str, purpose: str, *, foreign: bool = False) -> None:
    """Refuse filters that name something that does not exist, when they selected nothing.

    Args:
        store: holds the measurements.
        platform: the platform that was asked for; empty: any.
        purpose: the purpose that was asked for; empty: any.
        foreign: whether measurements of other farms were asked for, too.

    Raises:
        UsageError: nothing was ever measured on the platform, or there is no such purpose.
    """
    if purpose and purpose not in PURPOSES:
        raise UsageError(f"there is no purpose {purpose!r}; {did_you_mean(purpose, PURPOSES)}")
    if not platform or next(store.measurements(platform=platform, limit=1, foreign=foreign), None):
        return
    known = store.platforms()
    if platform in known:
        raise UsageError(
            f"only other farms measured on platform {platform!r}; --foreign lists theirs, too"
        )
    if not known:
        raise UsageError(
            "nothing was measured yet; latfarm query MODEL --platform PLATFORM measures a network"
        )
    raise UsageError(
        f"nothing was measured on platform {platform!r}; {did_you_mean(platform, known)}"
    )


def find_graph(store: Store, graph_hash: str) -> tuple[str, Graph]:
    """The exact hash and the network that a hash stands for.

    Args:
        store: holds the networks.
        graph_hash: an exact or canonical hash, or at least `LEAST_DIGITS` of its first digits. Of
            several exports of one network, the canonical hash stands for any.

    Raises:
        UsageError: the store has no such network, or several.
    """
    wanted = graph_hash.lower()
    if not _HASH.fullmatch(wanted) or len(wanted) < LEAST_DIGITS:
        raise UsageError(
            f"{graph_hash!r} is no hash: give at least {LEAST_DIGITS} hexadecimal digits, as "
            "latfarm results shows them"
        )
    found = store.graph_hashes(wanted, MOST_TOLD + 1)
    if not found:
        raise UsageError(
            f"no network with the hash {graph_hash} was measured here; latfarm results lists the "
            "hashes of those that were"
        )
    graphs = {each: graph for each in found if (graph := store.get_graph(each)) is not None}
    networks = {_network(graph) for graph in graphs.values()}
    if wanted in graphs:
        return wanted, graphs[wanted]
    if len(networks) != 1:
        some = ", ".join(f"{each[:16]} ({graph.name})" for each, graph in graphs.items())
        raise UsageError(
            f"several networks have a hash like {graph_hash}: {some}; give more digits"
        )
    first = next(iter(graphs))
    return first, graphs[first]


def _network(graph: Graph) -> str:
    """The canonical hash, which all exports of a network share."""
    from latfarm_predictors.graph.equivalences import network_hash_of

    return network_hash_of(graph)
