"""Networks that other farms measured, for a training that somebody asked to use them.

They train no model unasked. Such rows tell how long a whole network takes and nothing about its
kernels, so they teach what rests on whole networks alone: the correction from the sum of kernels to
the network, and the width of intervals. The kernels, the fusion rules and the energies of a bundle
stay those that this farm measured. Own measurements of a network come before those of others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.samples import NetworkSample
from latfarm_predictors.slow_core import SlowCore

from latfarm_controller.campaigns.networks.campaign import pooled_network
from latfarm_controller.errors import UsageError
from latfarm_controller.nearest_names import hint
from latfarm_controller.store.base import ANSWERING, FOREIGN, Store
from latfarm_controller.training.training_set import TrainingSet

DRAW = "with networks of other farms"
"""How calibration networks were drawn that are not this farm's alone. Their scores are pooled with
those of no other platform."""
KEY = "foreign"
"""Key of the origins of foreign networks in a bundle's provenance."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForeignOrigin:
    """Who measured some networks.

    Attributes:
        source: who measured.
        licence: under which licence.
        method: how it was measured.
        networks: how many networks there are of it.
    """

    source: str
    licence: str
    method: str
    networks: int


@dataclass(frozen=True)
class ForeignNetworks:
    """Networks that others measured on a platform.

    Attributes:
        samples: the networks.
        origins: who measured them.
    """

    samples: tuple[NetworkSample, ...] = ()
    origins: tuple[ForeignOrigin, ...] = ()

    def added_to(self, data: TrainingSet) -> TrainingSet:
        """A training set with these networks beside its own."""
        if not self.samples:
            return data
        _log.info("%s: %d networks of other farms calibrate it", data.platform, len(self.samples))
        return replace(data, networks=[*data.networks, *self.samples], calibration_draw=DRAW)

    def provenance(self) -> dict[str, Any]:
        """What a bundle's provenance tells of them; empty where there are none."""
        if not self.samples:
            return {}
        return {KEY: [asdict(origin) for origin in self.origins]}


NO_FOREIGN = ForeignNetworks()
"""Nobody asked for networks of other farms."""


def foreign_networks(
    store: Store,
    platform: str,
    sources: Sequence[str],
    *,
    slow_core: SlowCore,
    barred: frozenset[str] = frozenset(),
) -> ForeignNetworks:
    """The networks that some sources measured on a platform.

    Args:
        store: holds the measurements of others, each with its source.
        platform: the platform; rows of other platforms are not read.
        sources: whose measurements are asked for.
        slow_core: the correction for a slow core that the platform's own rows have.
        barred: hashes of networks that are left out: those that judge models, and those that this
            farm measured itself.

    Raises:
        UsageError: a source measured no network on the platform. The message names those that did.
        StoreError: the measurements cannot be read.
    """
    if not sources:
        return NO_FOREIGN
    by_graph: dict[str, list[Measurement]] = {}
    known: set[str] = set()
    for measurement in store.measurements(platform=platform, foreign=True, discarded=False):
        source = measurement.conditions.get(FOREIGN[0], "")
        if source and _usable(measurement):
            known.add(source)
            if source in sources:
                by_graph.setdefault(measurement.graph_hash, []).append(measurement)
    for source in sources:
        if source not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"no network that {source!r} measured on {platform} is in the store; sources that "
                f"measured networks on it: {listed}{hint(source, sorted(known))}"
            )
    samples: list[NetworkSample] = []
    origins: Counter[tuple[str, str, str]] = Counter()
    for graph, measured in _once(store, by_graph, barred):
        settled = [slow_core.settled(each) for each in measured]
        sample = pooled_network(graph, settled)
        if sample is not None:
            samples.append(sample)
            origins.update({_origin(each) for each in measured})
    told = tuple(ForeignOrigin(*origin, count) for origin, count in sorted(origins.items()))
    return ForeignNetworks(tuple(samples), told)


def foreign_beside(
    store: Store, data: TrainingSet, sources: Sequence[str], barred: frozenset[str]
) -> ForeignNetworks:
    """The networks that some sources measured on a platform and that this farm did not measure.

    Args:
        store: holds the measurements of others, each with its source.
        data: what this farm measured.
        sources: whose measurements are asked for.
        barred: hashes of networks that judge models.

    Raises:
        UsageError: a source measured no network on the platform.
        StoreError: the measurements cannot be read.
    """
    own = frozenset(network_hash_of(sample.graph) for sample in data.networks)
    return foreign_networks(
        store, data.platform, sources, slow_core=data.slow_core, barred=barred | own
    )


def sources_of(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """The sources of the foreign networks that a bundle was trained with, by its provenance."""
    told = provenance.get(KEY, ())
    return tuple(dict.fromkeys(str(each["source"]) for each in told if isinstance(each, dict)))


def _usable(measurement: Measurement) -> bool:
    """Whether a measurement tells how long a whole network takes."""
    answers = measurement.purpose in ANSWERING and not measurement.layers
    return measurement.ok and measurement.latency_ms is not None and answers


def _once(
    store: Store, by_graph: Mapping[str, list[Measurement]], barred: frozenset[str]
) -> Iterable[tuple[Graph, list[Measurement]]]:
    """Each network once, however many exports of it were measured, and none that is barred."""
    networks: dict[str, tuple[Graph, list[Measurement]]] = {}
    for graph_hash, measured in sorted(by_graph.items()):
        graph = store.get_graph(graph_hash)
        name = "" if graph is None else network_hash_of(graph)
        if graph is None or name in barred:
            continue
        networks.setdefault(name, (graph, []))[1].extend(measured)
    return networks.values()


def _origin(measurement: Measurement) -> tuple[str, str, str]:
    """Source, licence and method of a measurement."""
    source, licence, method = (measurement.conditions.get(name, "") for name in FOREIGN)
    return source, licence, method
