"""The frozen set of a platform: measured networks that judge its models and train none of them.

It is chosen once, from networks that this farm measured outside of every campaign that trains a
bundle: those of `latfarm query` and of other campaigns. Which of them belong to it is decided by
their hashes alone. From then on these networks are left out of every training, whoever measures
them. The file holds graphs and measurements, so that judging a model needs no store.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from latfarm_predictors.bundle import read_provenance
from latfarm_predictors.errors import BundleError, PredictorsError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.predictor import PlatformPredictor

from latfarm_controller.campaigns.host_noise import noise_of, trusted
from latfarm_controller.campaigns.kinds import TRAINED
from latfarm_controller.campaigns.networks import campaign as networks
from latfarm_controller.campaigns.profiles import profiled_draw
from latfarm_controller.campaigns.sentinels import PURPOSE as SENTINEL
from latfarm_controller.errors import StoreError
from latfarm_controller.store.base import ANSWERING, AnswerQuery, Store
from latfarm_controller.training.model_register import locked, numbers_in, write_durably
from latfarm_controller.training.promotion import LEAST_NETWORKS, PROMISED, FrozenScores

FILE = "frozen.json"
"""Name of the file, beside the bundles of its platform."""
FORMAT = "latfarm-frozen-set"
"""Name of the file's format."""
VERSION = 1
"""Version of the file's format."""
MOST_NETWORKS = 64
"""Largest number of networks; more would hardly lower the noise, and judging would take longer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FrozenNetwork:
    """A network that judges models.

    Attributes:
        network_hash: hash of the network, equal for all exports of it.
        graph: the export that was measured.
        measurement: its latency, as the board told it.
    """

    network_hash: str
    graph: Graph
    measurement: Measurement

    def to_json(self) -> dict[str, Any]:
        """The network as plain JSON types."""
        return {
            "network_hash": self.network_hash,
            "graph": self.graph.to_json(),
            "measurement": self.measurement.to_json(),
        }


@dataclass(frozen=True)
class FrozenSet:
    """The networks that judge the models of one platform.

    Attributes:
        platform: the platform.
        networks: the networks.
    """

    platform: str
    networks: tuple[FrozenNetwork, ...]

    @cached_property
    def name(self) -> str:
        """The name of the set, which depends on its networks and measurements alone."""
        told = [(n.network_hash, n.measurement.request_id) for n in self.networks]
        return "frozen-" + hashlib.sha256(json.dumps(sorted(told)).encode()).hexdigest()[:12]

    @property
    def hashes(self) -> frozenset[str]:
        """The hashes of the networks, which no training may use."""
        return frozenset(network.network_hash for network in self.networks)

    def judge(self, predictor: PlatformPredictor) -> FrozenScores:
        """How a model predicts these networks.

        A network that the model cannot predict is left out with a warning.
        """
        errors, covered = {}, {}
        for network in self.networks:
            measured = predictor.slow_core.settled(network.measurement).latency_ms
            try:
                answer = predictor.predict(network.graph, PROMISED)
            except (PredictorsError, ValueError) as error:
                _log.warning("%s is not predicted: %s", network.graph.name, error)
                continue
            if measured:
                low_ms, high_ms = answer.interval_ms
                errors[network.network_hash] = abs(answer.latency_ms / measured - 1.0)
                covered[network.network_hash] = low_ms <= measured <= high_ms
        return FrozenScores(self.name, errors, covered)


def read_frozen(folder: Path) -> FrozenSet | None:
    """The frozen set of a platform; None if none was chosen yet.

    Args:
        folder: the folder of the platform's bundles.

    Raises:
        StoreError: the file cannot be read, or is no frozen set.
    """
    path = folder / FILE
    try:
        return _of_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, PredictorsError, RecursionError) as error:
        raise StoreError(
            f"{path} is no frozen set ({error}); move it away, and another one is chosen when the "
            "platform is trained again"
        ) from error


def _of_json(data: Any) -> FrozenSet:
    if data["format"] != FORMAT or data["version"] != VERSION:
        raise ValueError(f"it has format {data['format']!r} version {data['version']!r}")
    judging = tuple(
        FrozenNetwork(
            str(told["network_hash"]),
            Graph.from_json(told["graph"]),
            Measurement.from_json(told["measurement"]),
        )
        for told in data["networks"]
    )
    found = FrozenSet(str(data["platform"]), judging)
    if found.name != data["name"]:
        raise ValueError(f"its networks are not those of {data['name']!r}")
    return found


def frozen_set(store: Store, bundles_dir: Path, platform: str) -> FrozenSet | None:
    """The frozen set of a platform, which is chosen now if there is none.

    Args:
        store: holds the measurements.
        bundles_dir: the folder of all bundles.
        platform: the platform.

    Returns:
        None if fewer than 8 networks were measured that no model was trained on.

    Raises:
        StoreError: the measurements cannot be read, or the file cannot be read or written.
    """
    folder = bundles_dir / platform
    found = read_frozen(folder)
    if found is not None:
        return found
    chosen = choose_networks(store, platform, _trained_on(folder))
    if len(chosen) < LEAST_NETWORKS:
        return None
    found = FrozenSet(platform, tuple(chosen))
    told = {
        "format": FORMAT,
        "version": VERSION,
        "name": found.name,
        "platform": platform,
        "networks": [network.to_json() for network in chosen],
    }
    with locked(folder):
        present = read_frozen(folder)
        if present is not None:  # another process has chosen meanwhile
            return present
        write_durably(folder / FILE, json.dumps(told) + "\n")
    _log.info("%s: %d networks are in %s from now on", platform, len(chosen), found.name)
    return found


def choose_networks(
    store: Store, platform: str, trained_on: Iterable[str] = ()
) -> list[FrozenNetwork]:
    """The networks of a new frozen set: those with the smallest digests, at most 64.

    All of them were measured under the fingerprint under which most were. On a shared host nearly
    every measurement is unstable, so what counts is that it can be trusted on its host
    (`campaigns.host_noise`).

    Args:
        store: holds the measurements.
        platform: the platform.
        trained_on: hashes of networks that bundles were trained on.
    """
    barred = {*trained_on, *_networks_of_training(store, platform)}
    fingerprints: dict[str, set[str]] = {}
    good = _trusted_answers(store, platform)
    for m in good.values():
        fingerprints.setdefault(m.graph_hash, set()).add(m.fingerprint)
    usual = Counter(name for names in fingerprints.values() for name in names)
    fingerprint = max(sorted(usual), key=lambda name: usual[name], default="")
    chosen: dict[str, FrozenNetwork] = {}
    for graph_hash in sorted(fingerprints, key=_digest):
        graph = store.get_graph(graph_hash)
        network_hash = "" if graph is None else network_hash_of(graph)
        if graph is None or network_hash in barred or network_hash in chosen:
            continue
        wanted = AnswerQuery(graph_hash, platform, fingerprint=fingerprint)
        (measurement,) = store.find_answers([wanted])
        if measurement is not None and measurement.request_id in good:
            chosen[network_hash] = FrozenNetwork(network_hash, graph, measurement)
        if len(chosen) == MOST_NETWORKS:
            break
    return list(chosen.values())


def _trusted_answers(store: Store, platform: str) -> dict[str, Measurement]:
    """The answers of a platform that can be trusted on their host, by the ids of their requests.

    What is usual on the host is told by all measurements of the platform, one fingerprint apart
    from another.
    """
    known: dict[str, list[Measurement]] = {}
    for m in store.measurements(platform=platform, discarded=False):
        if m.ok:
            known.setdefault(m.fingerprint, []).append(m)
    found: dict[str, Measurement] = {}
    for group in known.values():
        answers = [m for m in group if m.purpose in ANSWERING and not m.layers]
        marks = [m for m in group if m.purpose == SENTINEL]
        noise = noise_of([m for m in group if m.purpose != SENTINEL], marks)
        found |= {m.request_id: m for m in trusted(answers, noise)}
    return found


def _digest(text: str) -> str:
    """The digest that decides which networks are chosen; a hash itself may have an order."""
    return hashlib.sha256(text.encode()).hexdigest()


def _networks_of_training(store: Store, platform: str) -> set[str]:
    """The hashes of the networks of all campaigns of a platform that train bundles."""
    graphs = {
        m.graph_hash
        for record in store.campaigns(brief=True)
        if record.kind in TRAINED and record.platform == platform
        for purpose in (networks.PURPOSE, profiled_draw.PURPOSE)
        for m in store.measurements(campaign_id=record.campaign_id, purpose=purpose)
    }
    found = (store.get_graph(graph_hash) for graph_hash in graphs)
    return {network_hash_of(graph) for graph in found if graph is not None}


def _trained_on(folder: Path) -> set[str]:
    """The hashes of the networks that the bundles of a platform tell to be trained on."""
    found: set[str] = set()
    for number in numbers_in(folder):
        path = folder / f"{number}.zip"
        try:
            found |= set(map(str, read_provenance(path).get("network_hashes", ())))
        except (BundleError, OSError, TypeError) as error:
            _log.warning("%s does not tell what it was trained on: %s", path, error)
    return found
