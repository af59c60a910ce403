"""Latencies of many candidates without a board: from the store, or else predicted.

An architecture search compares thousands of networks, and no board measures that many. So what the
store knows is answered from it, the rest is predicted by the newest bundle of the platform, and
each answer says which of both it is. The controller of another machine (`LATFARM_CONTROLLER`)
answers with its own store and its own bundles. Otherwise the store of this home is asked as
`latfarm_controller.latency` asks it, and this process predicts with the bundles of this home.

However many candidates there are, only some hundred networks are held at a time.

```python
from latfarm_controller.estimates import estimate_many

for each in estimate_many(graphs, ["local-onnxruntime1.31-fp32-1t"]):
    print(each.model, each.latency_ms, each.source)
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.app.estimating import (
    DEFAULT_COVERAGE,
    AskedEstimate,
    EstimateEnd,
    PredictedLatency,
    Predictors,
    neither,
)
from latfarm_controller.app.question import Found, Question
from latfarm_controller.config import load_config
from latfarm_controller.errors import (
    ControllerError,
    NoSuchCallError,
    NotMeasuredError,
    UsageError,
)
from latfarm_controller.latency import (
    TOGETHER,
    LatencyDatabase,
    Model,
    QueryOptions,
    answer_of,
    asked_of,
)

Tag = TypeVar("Tag")
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
    models: Iterable[Model],
    platform_names: Sequence[str],
    *,
    batch_size: int = 0,
    coverage: float = DEFAULT_COVERAGE,
    predict: bool = True,
    options: QueryOptions = STORE_ONLY,
) -> Iterator[Estimate]:
    """The latencies of networks on platforms, as they come; among neighbours, stored ones first.

    A model that cannot be read, or that neither the store nor a bundle knows, has an estimate with
    an `error`; the others go on. Models are taken one by one, so that `models` may make them as
    they are needed.

    Args:
        models: ONNX files or Graphs.
        platform_names: each network is asked about on each of them.
        batch_size: batch size for models that leave it open; 0: as the models have it.
        coverage: share of cases in which the latency shall lie in the interval.
        predict: whether to predict what the store does not know.
        options: which stored answers will do; they must not ask a board.

    Raises:
        UsageError: the options ask a board.
    """
    if options.measure:
        raise UsageError("an estimate asks no board; use query_many to measure")
    asked = asked_of(models, platform_names, batch_size, options)
    told = (((name, platform), question) for name, platform, question in asked)
    config = load_config()
    with LatencyDatabase(config) as database:
        estimator = Estimator(database, config.bundles_dir, predict=predict, coverage=coverage)
        for (name, platform), question, end in estimator.ends(told):
            yield _estimate(name, platform, question, end)


class Estimator:
    """Answers questions without a board. Not thread-safe.

    Args:
        database: where the store is asked.
        bundles_dir: the folder of the bundles of this home.
        predict: whether to predict what the store does not know.
        coverage: share of cases in which a predicted latency shall lie in its interval.
    """

    def __init__(
        self,
        database: LatencyDatabase,
        bundles_dir: Path,
        *,
        predict: bool = True,
        coverage: float = DEFAULT_COVERAGE,
    ) -> None:
        self._database = database
        self._predictors = Predictors(bundles_dir)
        self._predict = predict
        self._coverage = coverage

    def ends(
        self, asked: Iterable[tuple[Tag, Question | Exception]]
    ) -> Iterator[tuple[Tag, Question | Exception, EstimateEnd]]:
        """How questions end, each with its tag, in another order than they were asked.

        Args:
            asked: pairs of a tag, which the caller chooses, and a question; an error in the place
                of a question is its end. They are taken when there is room for them.
        """
        left = iter(asked)
        if self._database.remote:
            held: dict[int, tuple[Tag, Question | Exception]] = {}
            try:
                for place, end in self._database.estimate_many(self._numbered(left, held)):
                    yield (*held.pop(place), end)
            except NoSuchCallError:  # then its store answers alone, and the bundles of this home
                left = chain(list(held.values()), left)
            else:
                return
        while batch := list(islice(left, TOGETHER)):
            for place, end in self._here([question for _, question in batch]):
                yield (*batch[place], end)

    def _numbered(
        self,
        asked: Iterator[tuple[Tag, Question | Exception]],
        held: dict[int, tuple[Tag, Question | Exception]],
    ) -> Iterator[AskedEstimate]:
        """The candidates for a controller; each is held by its number until it ends."""
        for place, each in enumerate(asked):
            held[place] = each
            yield AskedEstimate(place, each[1], self._predict, self._coverage)

    def _here(self, asked: Sequence[Question | Exception]) -> Iterator[tuple[int, EstimateEnd]]:
        """The ends of some questions with the predictors of this process."""
        sound: list[tuple[int, Question]] = []
        for place, question in enumerate(asked):
            if isinstance(question, Exception):
                yield place, question
            else:
                sound.append((place, question))
        missed: dict[str, list[tuple[int, Graph, Exception]]] = {}
        for index, end in self._database.ask([question for _, question in sound]):
            place, question = sound[index]
            graph = question.graph
            if self._predict and isinstance(end, NotMeasuredError) and graph is not None:
                missed.setdefault(question.platform, []).append((place, graph, end))
            else:
                yield place, end
        for platform, together in missed.items():
            graphs = [graph for _, graph, _ in together]
            answers = self._predictors.predict(platform, graphs, self._coverage)
            for (place, _, error), answer in zip(together, answers, strict=True):
                if isinstance(answer, Exception):
                    yield place, neither(error, answer)
                else:
                    yield place, PredictedLatency.of(answer)


def _estimate(
    name: str, platform: str, question: Question | Exception, end: EstimateEnd
) -> Estimate:
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
    assert isinstance(question, Question)
    answer = answer_of(name, question, end)
    source = MEASURED if answer.latency_ms is not None else ""
    return Estimate(name, platform, answer.latency_ms, source, error=answer.error)
