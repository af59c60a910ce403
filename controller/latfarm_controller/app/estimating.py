"""The latency of many candidates without a board: from the store, or else predicted.

The controller answers streams of candidates with it, and `latfarm_controller.estimates` predicts
with it in the process of the caller. Both run in threads: nothing here needs an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.app.question import ALONE, Found, GraphNeeded, Question
from latfarm_controller.app.stored_answers import StoredAnswers, nothing_stored
from latfarm_controller.errors import ControllerError, NotMeasuredError, UsageError
from latfarm_controller.training import bundles

if TYPE_CHECKING:
    from latfarm_predictors.predict.answer import Answer
    from latfarm_predictors.predict.predictor import PlatformPredictor

DEFAULT_COVERAGE = 0.9
"""Coverage of predicted intervals where the request does not give one, as a share of cases."""


@dataclass(frozen=True, slots=True)
class PredictedLatency:
    """What the bundle in use of a platform predicts for a network.

    Attributes:
        latency_ms: in milliseconds, as on a core that nothing slows down.
        interval_ms: ends of the interval in milliseconds.
        coverage: share of cases in which the latency shall lie in the interval.
        calibrated: whether the interval rests on measured networks.
        unsupported: the nodes that the platform cannot run or no regressor knows, with the reason.
        unsupported_ms: predicted time of these nodes in milliseconds, a part of the latency.
        bundle: name of the bundle.
        method: what predicted: `sum`, or the name of the corrector that the bundle ships.
    """

    latency_ms: float
    interval_ms: tuple[float, float]
    coverage: float
    calibrated: bool
    unsupported: tuple[str, ...] = ()
    unsupported_ms: float = 0.0
    bundle: str = ""
    method: str = "sum"

    @staticmethod
    def of(answer: Answer) -> PredictedLatency:
        """What an answer tells of its network as a whole."""
        return PredictedLatency(
            answer.latency_ms,
            answer.interval_ms,
            answer.coverage,
            answer.calibrated,
            answer.unsupported,
            _unsupported_ms(answer),
            answer.bundle,
            answer.method,
        )


@dataclass(frozen=True, slots=True)
class AskedEstimate:
    """A network of which somebody wants an estimate on a platform.

    Attributes:
        place: the number that the caller gave it.
        question: the network and the platform, and which stored answers will do; or why the request
            cannot be read.
        predict: whether to predict what the store does not know.
        coverage: share of cases in which the latency shall lie in the interval.
    """

    place: int
    question: Question | Exception
    predict: bool = True
    coverage: float = DEFAULT_COVERAGE


EstimateEnd = Found | PredictedLatency | GraphNeeded | Exception
"""How one candidate among many ends; an error is the end of that candidate alone."""


class Predictors:
    """Predicts from the bundles in use; each is loaded once and kept. Not thread-safe.

    Args:
        bundles_dir: the folder of all bundles.
    """

    def __init__(self, bundles_dir: Path) -> None:
        self._bundles_dir = bundles_dir
        self._opened: dict[str, PlatformPredictor | Exception] = {}

    def predict(
        self, platform: str, graphs: Sequence[Graph], coverage: float
    ) -> list[Answer | Exception]:
        """Predict networks on a platform, all in one evaluation; one that fails, fails alone.

        Without a usable bundle each network has that error.
        """
        if platform not in self._opened:
            try:
                self._opened[platform] = bundles.open_bundle(self._bundles_dir, platform)
            except (ControllerError, PredictorsError) as error:
                self._opened[platform] = error
        predictor = self._opened[platform]
        if isinstance(predictor, Exception):
            return [predictor] * len(graphs)
        return _each(predictor, graphs, coverage)


def _each(
    predictor: PlatformPredictor, graphs: Sequence[Graph], coverage: float
) -> list[Answer | Exception]:
    """Predict networks together; if that fails, each half alone, to find those that fail."""
    try:
        return list(predictor.predict_many(graphs, coverage))
    except (PredictorsError, ValueError) as error:
        if len(graphs) == 1:
            return [error if isinstance(error, PredictorsError) else UsageError(str(error))]
    middle = len(graphs) // 2
    first, last = graphs[:middle], graphs[middle:]
    return [*_each(predictor, first, coverage), *_each(predictor, last, coverage)]


def neither(missed: Exception, no_bundle: Exception) -> Exception:
    """Why there is neither a measurement nor a prediction of a network.

    Args:
        missed: the error that the store answered with.
        no_bundle: why there is no prediction.
    """
    if not isinstance(no_bundle, UsageError):
        return no_bundle
    text = str(missed).split("; leave out", 1)[0]
    return NotMeasuredError(
        f"{text}, and no bundle of the platform predicts it; make one with latfarm characterize, "
        "or see latfarm probes"
    )


class Estimating:
    """Answers batches of candidates. Not thread-safe: make one for each stream.

    Args:
        stored: the answers that the store has.
        bundles_dir: the folder of all bundles.
        platforms: names of platforms that are known apart from measurements.
    """

    def __init__(
        self, stored: StoredAnswers, bundles_dir: Path, platforms: Callable[[], Sequence[str]]
    ) -> None:
        self._stored = stored
        self._predictors = Predictors(bundles_dir)
        self._platforms = platforms
        self._known: list[str] | None = None  # names of known platforms, once a batch needs them

    def ends(self, asked: Sequence[AskedEstimate]) -> list[tuple[int, EstimateEnd]]:
        """How some candidates end; those that the store knows first.

        A candidate ends with `GraphNeeded` if the store does not know it and only its hashes were
        sent: the caller sends it again, with the network.
        """
        ended: list[tuple[int, EstimateEnd]] = []
        self._known = None
        sound: list[tuple[AskedEstimate, Question]] = []
        for each in asked:
            try:
                sound.append((each, _checked(each)))
            except ALONE as error:
                ended.append((each.place, error))
        missed: dict[tuple[str, float], list[tuple[int, Question, Graph]]] = {}
        for (each, question), found in zip(sound, self._find(sound), strict=True):
            if found is not None:
                ended.append((each.place, found))
            elif not each.predict:
                ended.append((each.place, self._nothing(question)))
            elif question.graph is None:
                ended.append((each.place, GraphNeeded()))
            else:
                key = question.platform, each.coverage
                missed.setdefault(key, []).append((each.place, question, question.graph))
        for (platform, coverage), together in missed.items():
            graphs = [graph for _, _, graph in together]
            answers = self._predictors.predict(platform, graphs, coverage)
            for (place, question, _), answer in zip(together, answers, strict=True):
                ended.append((place, self._predicted(question, answer)))
        return ended

    def _find(
        self, sound: Sequence[tuple[AskedEstimate, Question]]
    ) -> Sequence[Found | Exception | None]:
        """The stored answers; a damaged row is the end of its candidate alone."""
        questions = [question for _, question in sound]
        try:
            return self._stored.find(questions)
        except ALONE as error:
            if len(sound) == 1:
                return [error]
        return [found for each in sound for found in self._find([each])]

    def _predicted(self, question: Question, answer: Answer | Exception) -> EstimateEnd:
        """How a candidate ends that the store does not know."""
        if not isinstance(answer, Exception):
            return PredictedLatency.of(answer)
        if isinstance(answer, UsageError):
            missed = self._nothing(question)
            return neither(missed, answer) if isinstance(missed, NotMeasuredError) else missed
        return answer

    def _nothing(self, question: Question) -> Exception:
        """Why the store has no answer: it was not measured, or the platform is unknown."""
        if self._known is None:
            self._known = self._stored.known(self._platforms())
        return nothing_stored(question, self._known)


def _checked(asked: AskedEstimate) -> Question:
    """The question of a candidate.

    Raises:
        ControllerError: the question makes no sense, or asks a board.
        PredictorsError: the network could not be read.
    """
    question = asked.question
    if isinstance(question, Exception):
        raise question
    if question.measure or not question.stored or question.energy:
        raise UsageError(
            "an estimate asks no board: set no_measure, and leave out refresh, repeat and energy"
        )
    if not 0.0 < asked.coverage < 1.0:
        raise UsageError(f"coverage {asked.coverage:g} is not between 0 and 1")
    question.check()
    return question


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
