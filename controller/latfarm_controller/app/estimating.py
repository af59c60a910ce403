"""The latency of many candidates without a board: from the store, or else predicted.

The controller answers streams of candidates with it, in threads: nothing here needs an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from latfarm_controller.app.question import ALONE, Found, GraphNeeded, Question, named
from latfarm_controller.app.stored_answers import StoredAnswers, nothing_stored
from latfarm_controller.bulk.candidates import BulkCandidate, CandidateEnd, SentGraph
from latfarm_controller.bulk.evaluation import Evaluation
from latfarm_controller.bulk.predictions import DEFAULT_COVERAGE, PredictedLatency
from latfarm_controller.each_alone import each_alone
from latfarm_controller.errors import NotMeasuredError, UsageError


@dataclass(frozen=True, slots=True)
class AskedEstimate:
    """A network of which somebody wants an estimate on a platform.

    Attributes:
        place: the number that the caller gave it.
        question: the network and the platform, and which stored answers will do; or why the request
            cannot be read.
        predict: whether to predict what the store does not know.
        coverage: share of cases in which the latency shall lie in the interval.
        sent: the network as JSON, where it was sent and is not read yet; then the question may lack
            the network and its hashes.
    """

    place: int
    question: Question | Exception
    predict: bool = True
    coverage: float = DEFAULT_COVERAGE
    sent: bytes = b""


EstimateEnd = Found | PredictedLatency | GraphNeeded | Exception
"""How one candidate among many ends; an error is the end of that candidate alone."""


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
    """Answers batches of candidates of one stream. Not thread-safe.

    Args:
        stored: the answers that the store has.
        evaluation: reads, hashes and predicts networks.
        platforms: names of platforms that are known apart from measurements.
    """

    def __init__(
        self,
        stored: StoredAnswers,
        evaluation: Evaluation,
        platforms: Callable[[], Sequence[str]],
    ) -> None:
        self._stored = stored
        self._evaluation = evaluation
        self._platforms = platforms
        self._known: list[str] | None = None  # names of known platforms, once a batch needs them

    def close(self) -> None:
        """Give back what the stream has used."""
        self._evaluation.close()

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
        left: list[tuple[AskedEstimate, Question]] = []
        for (each, question), found in zip(sound, self._find_hashed(sound), strict=True):
            if found is not None:
                ended.append((each.place, found))
            elif _is_hashed(question) and not each.predict:
                ended.append((each.place, self._nothing(question)))
            elif question.graph is None and not each.sent:
                ended.append((each.place, GraphNeeded()))
            else:
                left.append((each, question))
        return [*ended, *self._evaluated(left)]

    def _evaluated(
        self, left: Sequence[tuple[AskedEstimate, Question]]
    ) -> list[tuple[int, EstimateEnd]]:
        """How candidates end whose network is at hand, and must be hashed or predicted."""
        if not left:
            return []
        told = self._evaluation.start([_candidate(each, question) for each, question in left])()
        ended: list[tuple[int, EstimateEnd]] = []
        now_hashed: list[tuple[AskedEstimate, Question, CandidateEnd]] = []
        for (each, question), end in zip(left, told, strict=True):
            if end.unread is not None:
                ended.append((each.place, end.unread))
            elif _is_hashed(question):
                ended.append((each.place, self._predicted(question, end)))
            else:
                graph_hash, network_hash = end.hashes
                hashed = replace(question, graph_hash=graph_hash, network_hash=network_hash)
                now_hashed.append((each, hashed, end))
        asked = [question for _, question, _ in now_hashed]
        found = each_alone(self._stored.find, asked)
        for (each, question, end), stored in zip(now_hashed, found, strict=True):
            known = self._predicted(question, end) if stored is None else stored
            ended.append((each.place, known))
        return ended

    def _find_hashed(
        self, sound: Sequence[tuple[AskedEstimate, Question]]
    ) -> list[Found | Exception | None]:
        """The stored answers of candidates whose hashes were sent; None for all others."""
        found: list[Found | Exception | None] = [None] * len(sound)
        places = [place for place, (_, question) in enumerate(sound) if _is_hashed(question)]
        known = each_alone(self._stored.find, [sound[place][1] for place in places])
        for place, end in zip(places, known, strict=True):
            found[place] = end
        return found

    def _predicted(self, question: Question, end: CandidateEnd) -> EstimateEnd:
        """How a candidate ends that the store does not know."""
        predicted = end.predicted
        if predicted is not None and not isinstance(predicted, UsageError):
            return predicted
        missed = named(self._nothing(question), question, end.name)
        if predicted is None or not isinstance(missed, NotMeasuredError):
            return missed
        return neither(missed, predicted)

    def _nothing(self, question: Question) -> Exception:
        """Why the store has no answer: it was not measured, or the platform is unknown."""
        if self._known is None:
            self._known = self._stored.known(self._platforms())
        return nothing_stored(question, self._known)


def _is_hashed(question: Question) -> bool:
    """Whether a hash of the network is known, so that the store can be asked."""
    return bool(question.graph_hash or question.network_hash)


def _candidate(each: AskedEstimate, question: Question) -> BulkCandidate:
    """A candidate whose network is at hand, for evaluation."""
    source = SentGraph(each.sent) if question.graph is None else question.graph
    return BulkCandidate(
        source,
        question.platform,
        hashed=not _is_hashed(question),
        predict=each.predict,
        coverage=each.coverage,
    )


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
    unread = asked.sent and not _is_hashed(question)
    (replace(question, graph_hash="not known yet") if unread else question).check()
    return question
