"""Messages of questions about latencies and of their answers, made and read back.

Reading a question parses and hashes its network, which takes milliseconds: do it in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_predictors.errors import PredictorsError
from latfarm_protos.v1 import controller_pb2 as pb

from latfarm_controller import json_fields
from latfarm_controller.api import error_codes, messages
from latfarm_controller.app.question import Ended, Found, GraphNeeded, Question
from latfarm_controller.board_profile import checked_tags
from latfarm_controller.errors import ControllerError, UsageError

MOST_QUESTIONS = 16_384
"""Most questions of one call. The garbage collector looks at all of them at once, which stops the
controller for a sixth of a second; for 300,000 it stopped it for three."""


def question_to_pb(question: Question, *, with_graph: bool) -> pb.QueryRequest:
    """The message of a question, with the network itself or only with its hashes."""
    return pb.QueryRequest(
        graph_json=question.graph.dumps().encode() if with_graph and question.graph else b"",
        platform=question.platform,
        tier=question.tier,
        refresh=question.refresh,
        energy=question.energy,
        graph_hash=question.graph_hash,
        network_hash=question.network_hash,
        max_age_s=question.max_age_s,
        no_measure=not question.measure,
        repeat=question.repeat,
        foreign=question.foreign,
        tags=question.tags,
    )


def question_from_pb(message: pb.QueryRequest, user: str = "", *, unread: bool = False) -> Question:
    """The question of a message. A network that was sent is hashed here: its word is not taken.

    Args:
        message: the message.
        user: who asks.
        unread: leave the network unread, and take the word of a message that has hashes. This is
            for estimates alone, of which nothing is stored.

    Raises:
        UsageError: the network is no JSON, or a tag is malformed.
        GraphError: the JSON does not describe a network.
    """
    graph = None
    graph_hash, network_hash = message.graph_hash, message.network_hash
    if not unread and (message.graph_json or not (graph_hash or network_hash)):
        graph = json_fields.graph_from_json(message.graph_json)
        asked = Question.about(graph, message.platform)
        graph_hash, network_hash = asked.graph_hash, asked.network_hash
    return Question(
        platform=message.platform,
        graph_hash=graph_hash,
        network_hash=network_hash,
        tier=message.tier,
        refresh=message.refresh,
        energy=message.energy,
        max_age_s=message.max_age_s,
        measure=not message.no_measure,
        repeat=message.repeat or 1,
        foreign=message.foreign,
        tags=checked_tags(message.tags),
        user=user,
        graph=graph,
    )


def questions_from_pb(message: pb.QueryManyRequest, user: str = "") -> list[Question | Exception]:
    """The questions of a message; an error in the place of each that cannot be read.

    Raises:
        UsageError: there are more than `MOST_QUESTIONS`.
    """
    if len(message.questions) > MOST_QUESTIONS:
        raise UsageError(
            f"the call asks {len(message.questions)} questions at once; ask at most "
            f"{MOST_QUESTIONS} in one call"
        )
    found: list[Question | Exception] = []
    for each in message.questions:
        try:
            found.append(question_from_pb(each, user))
        except (ControllerError, PredictorsError) as error:
            found.append(error.with_traceback(None))  # there may be many, and frames are large
    return found


def found_to_pb(found: Found) -> pb.QueryAnswer:
    """The message of an answer."""
    return pb.QueryAnswer(
        measurement=messages.measurement_to_pb(found.measurement),
        hit=found.hit,
        repeats=map(messages.measurement_to_pb, found.repeats),
    )


def found_from_pb(message: pb.QueryAnswer) -> Found:
    """The answer of a message."""
    return Found(
        messages.measurement_from_pb(message.measurement),
        message.hit,
        tuple(map(messages.measurement_from_pb, message.repeats)),
    )


def ends_to_pb(ends: Sequence[tuple[int, Ended]]) -> pb.QueryManyEvent:
    """The message of the ends of some questions."""
    return pb.QueryManyEvent(ends=[_end_to_pb(place, end) for place, end in ends])


def _end_to_pb(place: int, end: Ended) -> pb.QueryEnd:
    if isinstance(end, Found):
        return pb.QueryEnd(place=place, answer=found_to_pb(end))
    if isinstance(end, GraphNeeded):
        return pb.QueryEnd(place=place, graph_needed=True)
    return pb.QueryEnd(place=place, error=error_to_pb(end))


def end_from_pb(message: pb.QueryEnd) -> Found | GraphNeeded | ControllerError:
    """The end of one question, from its message."""
    kind = message.WhichOneof("end")
    if kind == "answer":
        return found_from_pb(message.answer)
    if kind == "graph_needed":
        return GraphNeeded()
    return error_from_pb(message.error)


def error_to_pb(error: Exception) -> pb.QueryError:
    """The message of the error that is the end of one network among many."""
    kind, text = error_codes.told(error)
    return pb.QueryError(kind=kind, text=text)


def error_from_pb(message: pb.QueryError) -> ControllerError:
    """The error of a message."""
    return error_codes.rebuilt(message.kind, message.text) or ControllerError(message.text)
