"""Candidates are networks whose latencies are wanted; here they are read, hashed and predicted.

A function of this module does that in the present process or in a worker process, and in both the
results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_predictors.collector import collector_waits
from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

from latfarm_controller.bulk.open_bundles import OpenBundles
from latfarm_controller.bulk.predictions import (
    DEFAULT_COVERAGE,
    PredictedLatency,
    predicted_with,
)
from latfarm_controller.bulk.worker import portable
from latfarm_controller.errors import ControllerError
from latfarm_controller.json_fields import graph_from_json
from latfarm_controller.platform_name import as_asked

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

MOST_KEPT = 4
"""Largest number of bundles that a worker keeps open."""
Predict = Callable[[str, Sequence[Graph], float], list[PredictedLatency | Exception]]
"""Predicts networks on a platform with a coverage; one that fails, fails alone."""


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """A network in a file of ONNX or TFLite.

    Attributes:
        path: the file.
        batch: batch size in the place of that of the file; 0: as the model has it.
        shapes: shapes of inputs, as pairs of a name and a shape.
        optimise: whether to simplify the model first.
    """

    path: str
    batch: int = 0
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    optimise: bool = False

    def read(self) -> Graph:
        """The network.

        Raises:
            ModelFileError: the file is not a usable model.
        """
        from latfarm_predictors.frontends.model_file import read_model  # onnx is slow to import

        shapes = dict(self.shapes) or None
        return read_model(
            self.path, batch=self.batch or None, shapes=shapes, optimise=self.optimise
        )


@dataclass(frozen=True, slots=True)
class SentGraph:
    """A network as JSON, as somebody sent it. It is of the form in which its platform is asked.

    Attributes:
        content: the JSON.
    """

    content: bytes

    def read(self) -> Graph:
        """The network.

        Raises:
            UsageError: the bytes are not JSON.
            GraphError: the JSON does not describe a network.
        """
        return graph_from_json(self.content)


Source = Graph | NetworkFile | SentGraph
"""Where a network is from."""


@dataclass(frozen=True, slots=True)
class BulkCandidate:
    """A network of which somebody wants to know something on a platform.

    Attributes:
        source: the network.
        platform: the platform.
        hashed: whether the hashes of the network are wanted.
        predict: whether its latency is wanted.
        coverage: share of cases in which the latency shall lie in the interval.
    """

    source: Source
    platform: str
    hashed: bool = True
    predict: bool = True
    coverage: float = DEFAULT_COVERAGE


@dataclass(frozen=True, slots=True)
class CandidateEnd:
    """What became of a candidate.

    Attributes:
        name: name of the network.
        hashes: exact hash and network hash; empty texts unless they are wanted.
        predicted: the latency that is wanted, or why there is none; None unless it is wanted.
        unread: why the network could not be read; None if it could.
    """

    name: str = ""
    hashes: tuple[str, str] = ("", "")
    predicted: PredictedLatency | Exception | None = None
    unread: Exception | None = None


def ends_of(candidates: Sequence[BulkCandidate], predict: Predict) -> list[CandidateEnd]:
    """What becomes of some candidates, in their order; one that fails, fails alone.

    Args:
        candidates: the candidates. Each file is read once, on however many platforms.
        predict: predicts networks of one platform.
    """
    ends: list[CandidateEnd] = []
    together: dict[tuple[str, float], list[tuple[int, Graph]]] = {}
    opened: tuple[Source | None, Graph | Exception | None] = None, None
    with collector_waits():
        for place, each in enumerate(candidates):
            if each.source is not opened[0]:  # the platforms of a model follow one another
                opened = each.source, _read(each.source)
            graph, end = _asked(each, opened[1])
            ends.append(end)
            if graph is not None and each.predict:
                together.setdefault((each.platform, each.coverage), []).append((place, graph))
        for (platform, coverage), placed in together.items():
            told = predict(platform, [graph for _, graph in placed], coverage)
            for (place, _), predicted in zip(placed, told, strict=True):
                ends[place] = replace(ends[place], predicted=predicted)
    return ends


def _read(source: Source) -> Graph | Exception:
    """The network of a candidate, or why it cannot be read."""
    if isinstance(source, Graph):
        return source
    try:
        return source.read()
    except (ControllerError, PredictorsError, OSError) as error:
        return error


def _asked(
    candidate: BulkCandidate, network: Graph | Exception | None
) -> tuple[Graph | None, CandidateEnd]:
    """The form in which the platform is asked about a network, and its hashes if wanted."""
    if not isinstance(network, Graph):
        return None, CandidateEnd(unread=network)
    try:
        sent = isinstance(candidate.source, SentGraph)
        graph = network if sent else as_asked(network, candidate.platform)
        hashes = (hash_of(graph), network_hash_of(graph)) if candidate.hashed else ("", "")
    except PredictorsError as error:
        return None, CandidateEnd(network.name, unread=error)
    return graph, CandidateEnd(network.name, hashes)


def ends_in_worker(
    candidates: Sequence[BulkCandidate], paths: Mapping[str, Path | Exception]
) -> list[CandidateEnd]:
    """`ends_of` for a worker process, which keeps the bundles that it has opened.

    Args:
        candidates: the candidates.
        paths: the bundle of each platform, or why it has none.
    """

    def predict(
        platform: str, graphs: Sequence[Graph], coverage: float
    ) -> list[PredictedLatency | Exception]:
        return predicted_with(_opened(paths[platform]), graphs, coverage)

    return [_portable(end) for end in ends_of(candidates, predict)]


def _portable(end: CandidateEnd) -> CandidateEnd:
    """An end that another process can read."""
    if isinstance(end.predicted, Exception):
        return replace(end, predicted=portable(end.predicted))
    return end if end.unread is None else replace(end, unread=portable(end.unread))


_open_bundles = OpenBundles(MOST_KEPT)  # those of this worker


def _opened(path: Path | Exception) -> PlatformPredictor | Exception:
    """The predictor of a bundle, or why there is none."""
    return path if isinstance(path, Exception) else _open_bundles.told(path)
