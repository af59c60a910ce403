"""Latencies of many candidates without a board: from the store, or else predicted.

An architecture search compares thousands of networks, and no board measures that many. So what the
store knows is answered from it, the rest is predicted by the newest bundle of the platform, and
each answer says which of both it is. The store is asked as `latfarm_controller.latency` asks it:
over gRPC where a controller runs, here or on another machine. The bundles are those of this home.

```python
from latfarm_controller.estimates import estimate_many

for each in estimate_many(graphs, ["local-onnxruntime1.31-fp32-1t"]):
    print(each.model, each.latency_ms, each.source)
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.app.question import Found, Question
from latfarm_controller.config import load_config
from latfarm_controller.errors import ControllerError, NotMeasuredError, UsageError
from latfarm_controller.latency import (
    LatencyDatabase,
    Model,
    QueryOptions,
    answer_of,
    asked_of,
)

if TYPE_CHECKING:
    from latfarm_predictors.predict.answer import Answer
    from latfarm_predictors.predict.predictor import PlatformPredictor

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


class Bundles:
    """Predicts from the newest bundles of this home; each is loaded once. Not thread-safe."""

    def __init__(self) -> None:
        self._opened: dict[str, PlatformPredictor] = {}

    def predict(self, platform: str, graphs: Sequence[Graph], coverage: float) -> list[Answer]:
        """Predict networks on a platform.

        Raises:
            UsageError: the platform has no bundle.
            BundleError: its bundle is damaged.
        """
        from latfarm_controller.training.bundles import open_bundle

        if platform not in self._opened:
            self._opened[platform] = open_bundle(load_config().bundles_dir, platform)
        return self._opened[platform].predict_many(graphs, coverage)


def estimate_many(
    models: Iterable[Model],
    platform_names: Sequence[str],
    *,
    batch_size: int = 0,
    coverage: float = 0.9,
    predict: bool = True,
    options: QueryOptions = STORE_ONLY,
) -> Iterator[Estimate]:
    """The latencies of networks on platforms, those of the store first.

    A model that cannot be read, or that neither the store nor a bundle knows, has an estimate with
    an `error`; the others go on.

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
    names: list[str] = []
    questions: list[Question] = []
    for name, platform, asked in asked_of(models, platform_names, batch_size, options):
        if isinstance(asked, Exception):
            yield Estimate(name, platform, error=asked)
            continue
        names.append(name)
        questions.append(asked)
    missed: dict[int, Exception] = {}
    with LatencyDatabase() as database:
        for place, end in database.ask(questions):
            if isinstance(end, NotMeasuredError) and predict:
                missed[place] = end
            else:
                yield _told(names[place], questions[place], end)
    for place, answer in predictions(questions, missed, coverage).items():
        platform = questions[place].platform
        if isinstance(answer, Exception):
            yield Estimate(names[place], platform, error=answer)
        else:
            yield _predicted(names[place], platform, answer)


def predictions(
    questions: Sequence[Question], missed: Mapping[int, Exception], coverage: float = 0.9
) -> dict[int, Answer | Exception]:
    """Predict what the store could not answer; a platform without a bundle fails alone.

    Args:
        questions: all questions.
        missed: by position, the error that the store answered with.
        coverage: share of cases in which the latency shall lie in the interval.
    """
    bundles = Bundles()
    found: dict[int, Answer | Exception] = {}
    by_platform: dict[str, list[tuple[int, Graph]]] = {}
    for place, error in missed.items():
        graph = questions[place].graph
        if graph is None:
            found[place] = error
        else:
            by_platform.setdefault(questions[place].platform, []).append((place, graph))
    for platform, asked in by_platform.items():
        try:
            answers = bundles.predict(platform, [graph for _, graph in asked], coverage)
        except (ControllerError, PredictorsError) as error:
            found.update((place, _both(missed[place], error)) for place, _ in asked)
            continue
        found.update(zip((place for place, _ in asked), answers, strict=True))
    return found


def _both(missed: Exception, no_bundle: Exception) -> Exception:
    """Why there is neither a measurement nor a prediction."""
    if not isinstance(no_bundle, UsageError):
        return no_bundle
    text = str(missed).split("; leave out", 1)[0]
    return NotMeasuredError(
        f"{text}, and no bundle of the platform predicts it; make one with latfarm characterize, "
        "or see latfarm probes"
    )


def _told(name: str, question: Question, end: Found | Exception) -> Estimate:
    """What the store answered."""
    answer = answer_of(name, question, end)
    return Estimate(
        name,
        question.platform,
        answer.latency_ms,
        MEASURED if answer.latency_ms is not None else "",
        error=answer.error,
    )


def _predicted(name: str, platform: str, answer: Answer) -> Estimate:
    """What a bundle predicts."""
    return Estimate(
        name,
        platform,
        answer.latency_ms,
        PREDICTED,
        answer.interval_ms,
        answer.calibrated,
        answer.unsupported,
        _unsupported_ms(answer),
    )


def _unsupported_ms(answer: Answer) -> float:
    """Predicted time of the kernels that begin with an unsupported node, in milliseconds."""
    if not answer.unsupported:
        return 0.0
    starts = {text.split(" (", 1)[0] for text in answer.unsupported}
    return sum(
        kernel.latency_ms
        for kernel in answer.kernels
        if (kernel.nodes[0] if kernel.nodes else kernel.type) in starts
    )
