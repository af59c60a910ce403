"""Latencies of many candidates without a board: from the store, or else predicted.

An architecture search compares thousands of networks, and no board measures that many. So what the
store knows is answered from it, the rest is predicted by the newest bundle of the platform, and
each answer says which of both it is. The controller of another machine (`LATFARM_CONTROLLER`)
answers with its own store and its own bundles. Otherwise the store of this home is asked as
`latfarm_controller.latency` asks it, and the bundles of this home predict: in this process, and in
worker processes from `WORTH_WORKERS` candidates on (setting `prediction_workers`).

However many candidates there are, only some hundred networks are held at a time.

```python
from latfarm_controller.estimates import estimate_many

for each in estimate_many(graphs, ["local-onnxruntime1.31-fp32-1t"]):
    print(each.model, each.latency_ms, each.source)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Generic, TypeVar

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.app.estimating import AskedEstimate, EstimateEnd, neither
from latfarm_controller.app.question import Found, Question, named
from latfarm_controller.bulk.candidates import BulkCandidate, CandidateEnd, NetworkFile
from latfarm_controller.bulk.evaluation import Evaluation
from latfarm_controller.bulk.lender import WorkerLender, worker_count
from latfarm_controller.bulk.predictions import DEFAULT_COVERAGE, PredictedLatency
from latfarm_controller.config import ControllerConfig, load_config
from latfarm_controller.errors import (
    ControllerError,
    NoSuchCallError,
    NotMeasuredError,
    UsageError,
)
from latfarm_controller.latency import (
    MOST_TOGETHER,
    TOGETHER,
    LatencyDatabase,
    Model,
    QueryOptions,
    answer_of,
    question_about,
    read,
    with_options,
)

Tag = TypeVar("Tag")
Told = TypeVar("Told")
MEASURED, PREDICTED = "measured", "predicted"
"""Where a latency is from: the store, or the newest bundle of the platform."""
STORE_ONLY = QueryOptions(measure=False)
"""The store answers, and no board is asked."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The latency of one network on one platform without a board, or why there is none.

    Attributes:
        model: path of the model, or name of the graph.
        platform: the platform that was asked about.
        latency_ms: in milliseconds, corrected for the slowdown of the core; None if there is none.
        source: `MEASURED` or `PREDICTED`; empty if there is no latency.
        interval_ms: ends of the interval of a prediction in milliseconds; None for a measurement.
        calibrated: whether that interval rests on measured networks.
        unsupported: the nodes that the platform cannot run or no regressor knows, with the reason.
        unsupported_ms: predicted time of these nodes in milliseconds, a part of the latency.
        error: why there is no latency; None if there is one.
        method: what predicted: `sum`, or the name of the corrector that the bundle ships; empty
            for a measurement.
    """

    model: str
    platform: str
    latency_ms: float | None = None
    source: str = ""
    interval_ms: tuple[float, float] | None = None
    calibrated: bool = True
    unsupported: tuple[str, ...] = ()
    unsupported_ms: float = 0.0
    error: Exception | None = None
    method: str = ""


def estimate_many(
    models: Iterable[Model | NetworkFile],
    platform_names: Sequence[str],
    *,
    batch_size: int = 0,
    coverage: float = DEFAULT_COVERAGE,
    predict: bool = True,
    options: QueryOptions = STORE_ONLY,
) -> Iterator[Estimate]:
    """The latencies of networks on platforms, in the order of the models, then of the platforms.

    A model that cannot be read, or that neither the store nor a bundle knows, has an estimate with
    an `error`; the others go on. Models are taken one by one, so that `models` may make them as
    they are needed.

    Args:
        models: paths of ONNX or TFLite files, Graphs, or files with how each is read.
        platform_names: each network is asked about on each of them.
        batch_size: batch size in the place of that of the files at paths; 0: as the models have it.
        coverage: share of cases in which the latency shall lie in the interval.
        predict: whether to predict what the store does not know.
        options: which stored answers will do; they must not ask a board.

    Raises:
        UsageError: the options ask a board, or a Graph has another batch size.
    """
    if options.measure:
        raise UsageError("an estimate asks no board; use query_many to measure")
    config = load_config()
    choice = Choice(options, predict, coverage)
    with LatencyDatabase(config) as database:
        estimator = Estimator(database, config, choice)
        for (name, platform), question, end in estimator.ends(
            _asked(models, platform_names, batch_size)
        ):
            yield _estimate(name, platform, question, end)


def _asked(
    models: Iterable[Model | NetworkFile], platforms: Sequence[str], batch_size: int
) -> Iterator[tuple[tuple[str, str], AskedModel]]:
    """Each model on each platform, with its name and that of the platform."""
    for model in models:
        source: Graph | NetworkFile
        if isinstance(model, Graph):
            name, source = model.name, read(model, batch_size)
        elif isinstance(model, NetworkFile):
            name, source = model.path, model
        else:
            name, source = str(model), NetworkFile(str(model), batch_size)
        for platform in platforms:
            yield (name, platform), AskedModel(source, platform)


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A model whose latency on a platform is wanted.

    Attributes:
        source: the model. It is read when it is needed, perhaps in another process.
        platform: the platform.
    """

    source: Graph | NetworkFile
    platform: str


@dataclass(frozen=True, slots=True)
class Choice:
    """How models are answered.

    Attributes:
        options: which stored answers will do; they ask no board.
        predict: whether to predict what the store does not know.
        coverage: share of cases in which a predicted latency shall lie in its interval.
    """

    options: QueryOptions = STORE_ONLY
    predict: bool = True
    coverage: float = DEFAULT_COVERAGE


class Estimator:
    """Answers questions without a board. Not thread-safe.

    Args:
        database: where the store is asked.
        config: the settings of this process.
        choice: how models are answered.
    """

    def __init__(
        self, database: LatencyDatabase, config: ControllerConfig, choice: Choice | None = None
    ) -> None:
        self._database = database
        self._config = config
        self._choice = choice or Choice()

    def ends(
        self, asked: Iterable[tuple[Tag, AskedModel]]
    ) -> Iterator[tuple[Tag, Question | None, EstimateEnd]]:
        """How models end, in the order in which they were asked.

        Args:
            asked: pairs of a tag, which the caller chooses, and a model. They are taken when there
                is room for them.

        Returns:
            An iterator of the tag, the question without its network, and the end. There is no
            question about a model that cannot be read.
        """
        left = iter(asked)
        if self._database.remote:
            held: dict[int, tuple[Tag, AskedModel, Question | Exception]] = {}
            try:
                for place, told in enumerate(in_order(self._remote(left, held))):
                    del held[place]
                    yield told
            except NoSuchCallError:  # then its store answers alone, and the bundles of this home
                left = chain([(tag, model) for tag, model, _ in held.values()], left)
            else:
                return
        yield from self._here(left)

    def _remote(
        self,
        asked: Iterator[tuple[Tag, AskedModel]],
        held: dict[int, tuple[Tag, AskedModel, Question | Exception]],
    ) -> Iterator[tuple[int, tuple[Tag, Question | None, EstimateEnd]]]:
        """The ends that a controller tells, with the numbers of their models."""

        def numbered() -> Iterator[AskedEstimate]:
            for place, (tag, model) in enumerate(asked):
                question = _question(model, self._choice.options)
                held[place] = tag, model, question
                yield AskedEstimate(place, question, self._choice.predict, self._choice.coverage)

        for place, end in self._database.estimate_many(numbered()):
            tag, _, question = held[place]
            told = None if isinstance(question, Exception) else replace(question, graph=None)
            yield place, (tag, told, end)

    def _here(
        self, asked: Iterator[tuple[Tag, AskedModel]]
    ) -> Iterator[tuple[Tag, Question | None, EstimateEnd]]:
        """The ends that the store and the bundles of this home tell.

        While the ends of a batch are told, workers are busy with the next one. The store is opened
        for more and more candidates at a time, because its index is made each time.
        """
        lender = WorkerLender(worker_count(self._config.prediction_workers))
        with Evaluation(self._config.bundles_dir, lender) as evaluation:
            before: _Batch[Tag] | None = None
            waiting: list[_Evaluated[Tag]] = []  # for the store, which is asked about many at once
            most = 1
            while True:
                batch = self._batch(evaluation, asked)
                if before is not None:
                    waiting += before.ends()
                if waiting and (batch is None or len(waiting) >= most):
                    yield from self._told(waiting)
                    waiting, most = [], min(max(2 * most, TOGETHER), MOST_TOGETHER)
                if batch is None:
                    return
                before = batch

    def _batch(
        self, evaluation: Evaluation, asked: Iterator[tuple[Tag, AskedModel]]
    ) -> _Batch[Tag] | None:
        """The next models, whose evaluation has begun; None if there are no more."""
        taken = list(islice(asked, TOGETHER))
        if not taken:
            return None
        predict, coverage = self._choice.predict, self._choice.coverage
        candidates = [
            BulkCandidate(model.source, model.platform, predict=predict, coverage=coverage)
            for _, model in taken
        ]
        begun = evaluation.start(candidates)
        return _Batch([(tag, model.platform) for tag, model in taken], begun)

    def _told(
        self, evaluated: Sequence[_Evaluated[Tag]]
    ) -> Iterator[tuple[Tag, Question | None, EstimateEnd]]:
        """How models end that were read, hashed and predicted."""
        questions = [
            with_options(Question(one.platform, *one.end.hashes), self._choice.options)
            for one in evaluated
        ]
        readable = [place for place, one in enumerate(evaluated) if one.end.unread is None]
        stored = dict(self._database.ask([questions[place] for place in readable]))
        found = {place: stored[index] for index, place in enumerate(readable)}
        for place, one in enumerate(evaluated):
            if one.end.unread is not None:
                yield one.tag, None, one.end.unread
            else:
                end = _better(found[place], questions[place], one.end)
                yield one.tag, questions[place], end


@dataclass(frozen=True, slots=True)
class _Batch(Generic[Tag]):
    """Models that are evaluated together.

    Attributes:
        asked: their tags and platforms.
        evaluated: waits for what became of them.
    """

    asked: list[tuple[Tag, str]]
    evaluated: Callable[[], list[CandidateEnd]]

    def ends(self) -> list[_Evaluated[Tag]]:
        """What became of the models, once that is known. Their networks are not kept."""
        pairs = zip(self.asked, self.evaluated(), strict=True)
        return [_Evaluated(tag, platform, end) for (tag, platform), end in pairs]


@dataclass(frozen=True, slots=True)
class _Evaluated(Generic[Tag]):
    """A model that was read, hashed and predicted, but not yet looked up in the store.

    Attributes:
        tag: the caller's tag.
        platform: the platform that is asked about.
        end: what became of it.
    """

    tag: Tag
    platform: str
    end: CandidateEnd


def _question(model: AskedModel, options: QueryOptions) -> Question | Exception:
    """The question about a model, or why it cannot be read."""
    source = model.source
    try:
        graph = source if isinstance(source, Graph) else source.read()
        return question_about(graph, model.platform, options)
    except (PredictorsError, OSError) as error:
        return error


def _better(stored: Found | Exception, question: Question, each: CandidateEnd) -> EstimateEnd:
    """The end of a model: the stored answer, else the prediction, else why there is neither."""
    if not isinstance(stored, NotMeasuredError):
        return stored
    if isinstance(each.predicted, PredictedLatency):
        return each.predicted
    missed = named(stored, question, each.name)
    return missed if each.predicted is None else neither(missed, each.predicted)


def in_order(ends: Iterable[tuple[int, Told]]) -> Iterator[Told]:
    """Numbered things in the order of their numbers, which begin with 0 and leave none out."""
    waiting: dict[int, Told] = {}
    following = 0
    for place, end in ends:
        waiting[place] = end
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def _estimate(name: str, platform: str, question: Question | None, end: EstimateEnd) -> Estimate:
    """What a question about a model led to."""
    if isinstance(end, PredictedLatency):
        return Estimate(
            name,
            platform,
            end.latency_ms,
            PREDICTED,
            end.interval_ms,
            end.calibrated,
            end.unsupported,
            end.unsupported_ms,
            method=end.method,
        )
    if not isinstance(end, Found):
        error = end if isinstance(end, Exception) else ControllerError("the network is missing")
        return Estimate(name, platform, error=error)
    assert question is not None
    answer = answer_of(name, question, end)
    source = MEASURED if answer.latency_ms is not None else ""
    return Estimate(name, platform, answer.latency_ms, source, error=answer.error)
