"""The latency of networks, from Python: `query`, `query_many` and `predict`.

This is the interface of NNLQP's section 7: `query(model_path, batch_size, platform_name)` finds a
latency in the store or has a board measure it, and `predict(...)` estimates it without a board.
They ask the controller of the home (`LATFARM_HOME`) if one runs, or the controller of another
machine (`LATFARM_CONTROLLER`). Otherwise what the store knows is read from it at once, and Ray is
started only if something must be measured.

```python
from latfarm_controller.latency import query

answer = query("model.onnx", 1, "local-onnxruntime1.31-fp32-1t")
print(answer.latency_ms, "from the store" if answer.hit else "measured now")
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import SlowCore

from latfarm_controller.app.question import ANY_ANSWER, Found, Question, named
from latfarm_controller.app.question import QueryOptions as QueryOptions
from latfarm_controller.config import ControllerConfig, load_config
from latfarm_controller.each_alone import each_alone
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.platform_name import as_asked

if TYPE_CHECKING:
    from latfarm_predictors.predict.answer import Answer

    from latfarm_controller.api.client import ControllerClient
    from latfarm_controller.api.connect import Guard
    from latfarm_controller.app.estimating import AskedEstimate, EstimateEnd
    from latfarm_controller.bulk.open_bundles import OpenBundles

INDEXED_QUESTIONS = 100
"""From this number of questions on, an index of the store is worth its making."""
TOGETHER = 500
"""Number of candidates that are read and looked up together where no board is asked.

The networks of that many take about 100 MB."""
MOST_TOGETHER = 16 * TOGETHER
"""Largest number of questions, without their networks, that the store is asked together."""
Model = Graph | str | Path
"""A network: as a Graph, or the path of an ONNX or TFLite file."""


@dataclass(frozen=True, slots=True)
class LatencyAnswer:
    """The latency of one network on one platform, or why there is none.

    Attributes:
        model: path of the model, or name of the graph.
        platform: the platform that was asked about.
        latency_ms: latency in milliseconds, corrected for the slowdown of the core; None if there
            is none.
        timed_ms: the latency as timed, in milliseconds.
        hit: whether the store had it.
        same_export: whether exactly this export of the network was measured.
        measurement: the whole measurement, which may have failed; None if there is none.
        repeats: all measurements, where several were asked for.
        origin: source, licence and method of a measurement of another farm; empty for an own one.
        error: why there is no measurement; None if there is one.
    """

    model: str
    platform: str
    latency_ms: float | None = None
    timed_ms: float | None = None
    hit: bool = False
    same_export: bool = True
    measurement: Measurement | None = None
    repeats: tuple[Measurement, ...] = ()
    origin: dict[str, str] | None = None
    error: Exception | None = None


def query(
    model_path: Model, batch_size: int = 0, platform_name: str = "", **options: Any
) -> LatencyAnswer:
    """The latency of a network on a platform, from the store or measured now.

    Args:
        model_path: an ONNX file, or a Graph.
        batch_size: batch size in the place of that of the file; 0: as the model has it.
        platform_name: the platform, such as `local-onnxruntime1.31-fp32-1t`.
        options: fields of `QueryOptions`.

    Returns:
        The answer. Its measurement may have failed: then `latency_ms` is None.

    Raises:
        ControllerError: the platform is not known, or nothing could be measured.
        ModelFileError: the file is not a usable model.
    """
    (answer,) = query_many([model_path], [platform_name], batch_size=batch_size, **options)
    if answer.error is not None:
        raise answer.error
    return answer


def query_many(
    models: Iterable[Model],
    platform_names: Sequence[str],
    *,
    batch_size: int = 0,
    **options: Any,
) -> Iterator[LatencyAnswer]:
    """The latencies of networks on platforms, each as soon as it is there.

    A model that cannot be read or measured has an answer with an `error`; the others go on.

    Args:
        models: ONNX files or Graphs.
        platform_names: each network is asked about on each of them.
        batch_size: batch size in the place of that of the files; 0: as the models have it.
        options: fields of `QueryOptions`.
    """
    asked = QueryOptions(**options)
    with LatencyDatabase() as database:
        yield from database.query_many(models, platform_names, batch_size=batch_size, options=asked)


def predict(
    model_path: Model, batch_size: int = 0, platform_name: str = "", *, coverage: float = 0.9
) -> Answer:
    """Predict the latency of a network from the bundle in use of a platform; no board is used.

    Args:
        model_path: an ONNX file, or a Graph.
        batch_size: batch size in the place of that of the file; 0: as the model has it.
        platform_name: the platform; it may be left out if only one has a bundle.
        coverage: share of cases in which the latency shall lie in the interval.

    Raises:
        UsageError: the platform has no bundle.
        ModelFileError: the file is not a usable model.
    """
    from latfarm_controller.training.bundles import choose

    predictor = _open_bundles().get(choose(load_config().bundles_dir, platform_name))
    graph = as_asked(read(model_path, batch_size), predictor.platform)
    return predictor.predict(graph, coverage)


@lru_cache(maxsize=1)
def _open_bundles() -> OpenBundles:
    """The bundles that stay open for single predictions of this process."""
    from latfarm_controller.bulk.open_bundles import OpenBundles

    return OpenBundles()


def read(model: Model, batch_size: int = 0) -> Graph:
    """The network of a model.

    Raises:
        ModelFileError: the file is not a usable model.
        UsageError: a Graph has another batch size than the one that is asked for.
    """
    if isinstance(model, Graph):
        shapes = [model.type_of(name).shape for name in model.inputs]
        own = sorted({shape[0] for shape in shapes if shape})
        if batch_size and own and own != [batch_size]:
            told = " and ".join(map(str, own))
            raise UsageError(
                f"the graph {model.name} has a batch of {told}, and a Graph is taken as it is; "
                f"build it with a batch of {batch_size}, or leave out batch_size"
            )
        return model
    from latfarm_predictors.frontends.model_file import read_model

    return read_model(model, batch=batch_size or None)


class LatencyDatabase:
    """Asks many times over one connection, which lasts as long as the block. Not thread-safe.

    Args:
        config: the settings; None: those of this process.
        wait_s: seconds to wait for another process that holds the store.
        on_progress: is told texts for people.
        guard: keeps signals away while a hosted controller stops.
    """

    def __init__(
        self,
        config: ControllerConfig | None = None,
        wait_s: float = 0.0,
        on_progress: Callable[[str], None] = lambda _text: None,
        guard: Guard = nullcontext,
    ) -> None:
        self._config = load_config() if config is None else config
        self._wait_s = max(wait_s, self._config.lock_wait_ms / 1000.0)
        self._on_progress = on_progress
        self._guard = guard
        self._stack = ExitStack()
        self._client: ControllerClient | None = None

    def __enter__(self) -> LatencyDatabase:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client = None
        self._stack.close()

    def query_many(
        self,
        models: Iterable[Model],
        platforms: Sequence[str],
        *,
        batch_size: int = 0,
        options: QueryOptions = ANY_ANSWER,
    ) -> Iterator[LatencyAnswer]:
        """The latencies of networks on platforms, each as soon as it is there.

        Where no board is asked, no network is kept once it is hashed, and the store is asked about
        more and more of them at a time, at most `MOST_TOGETHER`.
        """
        asked = asked_of(models, platforms, batch_size, options)
        most = TOGETHER
        while batch := list(islice(asked, None if options.measure else most)):
            most = min(2 * most, MOST_TOGETHER)
            names: list[str] = []
            questions: list[Question] = []
            for name, platform, question in batch:
                if isinstance(question, Exception):
                    yield LatencyAnswer(name, platform, error=question)
                    continue
                names.append(name)
                questions.append(question)
            for place, end in self.ask(questions):
                question, name = questions[place], names[place]
                told = named(end, question, name) if isinstance(end, Exception) else end
                yield answer_of(name, question, told)

    def ask(self, questions: Sequence[Question]) -> Iterator[tuple[int, Found | Exception]]:
        """The ends of questions, each with the position of its question, as they come."""
        places = list(range(len(questions)))
        if self._connect(host=False) is None:
            found = self._stored(questions)
            yield from found.items()
            places = [place for place in places if place not in found]
        if not places:
            return
        client = self._connect(host=True)
        assert client is not None
        if len(places) == 1:
            question = questions[places[0]]
            try:
                yield places[0], client.query(question, on_progress=self._on_progress)
            except ControllerError as error:
                yield places[0], error
            return
        for place, end in client.query_many([questions[place] for place in places]):
            yield places[place], end

    @property
    def remote(self) -> bool:
        """Whether the controller of another machine answers."""
        return bool(self._config.controller)

    def estimate_many(self, asked: Iterable[AskedEstimate]) -> Iterator[tuple[int, EstimateEnd]]:
        """The ends of candidates that a controller answers without a board, with their places.

        Raises:
            NoSuchCallError: the controller is an older one.
        """
        client = self._connect(host=True)
        assert client is not None
        yield from client.estimate_many(asked)

    def _connect(self, *, host: bool) -> ControllerClient | None:
        """A client of a running controller; without one, of a hosted one, or None."""
        from latfarm_controller.api.connect import connected, wait_for_holder

        if self._client is None:
            config = self._config
            runs = bool(config.controller) or bool(
                wait_for_holder(config, self._wait_s, self._on_progress)
            )
            if runs or host:
                self._client = self._stack.enter_context(
                    connected(config, self._wait_s, on_wait=self._on_progress, guard=self._guard)
                )
        return self._client

    def _stored(self, questions: Sequence[Question]) -> dict[int, Found | Exception]:
        """What the store of this home answers by itself, or refuses, by position."""
        from latfarm_controller.app.stored_answers import StoredAnswers, nothing_stored
        from latfarm_controller.store.duckdb import DuckDBStore
        from latfarm_controller.store.lock import StoreLock
        from latfarm_controller.training.bundle_notes import NewestNotes
        from latfarm_controller.training.bundles import newest

        config = self._config
        ended: dict[int, Found | Exception] = {}
        sound: list[int] = []
        for place, question in enumerate(questions):
            try:
                question.check()
                sound.append(place)
            except ControllerError as error:
                ended[place] = error
        if not config.store_file.exists() and all(question.measure for question in questions):
            return ended
        config.make_dirs()
        lock = StoreLock(config.lock_file)
        lock.acquire(1000.0 * self._wait_s)
        index = len(sound) >= INDEXED_QUESTIONS
        with lock, DuckDBStore(config.store_file, index=index) as store:
            answers = StoredAnswers(store, NewestNotes(config.bundles_dir))
            asked = [questions[place] for place in sound]
            platforms: list[str] | None = None
            for place, found in zip(sound, each_alone(answers.find, asked), strict=True):
                if found is not None:
                    ended[place] = found
                elif not questions[place].measure:
                    if platforms is None:
                        platforms = answers.known(tuple(newest(config.bundles_dir)))
                    ended[place] = nothing_stored(questions[place], platforms)
        return ended


def asked_of(
    models: Iterable[Model], platforms: Sequence[str], batch_size: int, options: QueryOptions
) -> Iterator[tuple[str, str, Question | Exception]]:
    """What is asked about each model on each platform: its name, the platform, and the question.

    For a model that cannot be read, the error stands in the place of the question.

    Args:
        models: ONNX files or Graphs.
        platforms: names of platforms.
        batch_size: batch size in the place of that of the files; 0: as the models have it.
        options: which answers will do.
    """
    for model in models:
        name = model.name if isinstance(model, Graph) else str(model)
        try:
            graph = read(model, batch_size)
        except (ControllerError, PredictorsError, OSError) as error:
            yield from ((name, platform, error) for platform in platforms)
            continue
        for platform in platforms:
            question = question_about(graph, platform, options)
            # Only a board needs the network itself.
            yield name, platform, question if options.measure else replace(question, graph=None)


def question_about(graph: Graph, platform: str, options: QueryOptions) -> Question:
    """The question about a network on a platform."""
    return with_options(Question.about(as_asked(graph, platform), platform), options)


def with_options(question: Question, options: QueryOptions) -> Question:
    """A question with what answers it."""
    given = {each.name: getattr(options, each.name) for each in fields(QueryOptions)}
    return replace(question, **{**given, "tags": tuple(options.tags)})


def answer_of(name: str, question: Question, end: Found | Exception) -> LatencyAnswer:
    """The answer to a question about a model of that name."""
    if isinstance(end, Exception):
        return LatencyAnswer(name, question.platform, error=end)
    measurement = end.measurement
    latency = SlowCore.told_by(measurement).latency(measurement) if measurement.ok else None
    return LatencyAnswer(
        name,
        question.platform,
        None if latency is None else latency.corrected_ms,
        None if latency is None else latency.timed_ms,
        end.hit,
        measurement.graph_hash == question.graph_hash,
        measurement,
        end.repeats,
        end.origin,
    )
