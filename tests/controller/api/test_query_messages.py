"""A question and its answer are the same after their way over the wire."""

from __future__ import annotations

from dataclasses import replace

import pytest
from latfarm_controller.api.client import BATCH_BYTES, batches
from latfarm_controller.api.query_messages import (
    end_from_pb,
    ends_to_pb,
    found_from_pb,
    found_to_pb,
    question_from_pb,
    question_to_pb,
    questions_from_pb,
)
from latfarm_controller.app.question import Ended, Found, GraphNeeded, Question
from latfarm_controller.errors import NotMeasuredError, UsageError
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_protos.v1 import controller_pb2 as pb


@pytest.fixture(scope="module")
def graph() -> Graph:
    builder = GraphBuilder("net")
    return builder.build([builder.relu(builder.input((1, 3, 8, 8)))])


def test_a_question_with_its_network_or_its_hashes(graph: Graph) -> None:
    question = replace(
        Question.about(graph, "p"),
        tier="publish",
        refresh=True,
        energy=True,
        max_age_s=5.0,
        measure=False,
        repeat=3,
        foreign=True,
    )
    for with_graph in (False, True):
        found = question_from_pb(question_to_pb(question, with_graph=with_graph))
        assert found == question
        assert (found.graph is not None) == with_graph
    plain = Question.about(graph, "p")
    assert question_from_pb(question_to_pb(plain, with_graph=False)) == plain


def test_a_hash_is_not_believed_beside_its_network(graph: Graph) -> None:
    message = question_to_pb(Question.about(graph, "p"), with_graph=True)
    message.graph_hash = "0" * 32
    assert question_from_pb(message) == Question.about(graph, "p")


def test_an_answer_and_other_ends() -> None:
    measurement = Measurement("r", "h", "p", "query", Outcome.OK, latency_ms=1.0)
    found = Found(measurement, hit=False, repeats=(measurement, measurement))
    assert found_from_pb(found_to_pb(found)) == found
    ends: list[tuple[int, Ended]] = [
        (3, found),
        (0, GraphNeeded()),
        (1, NotMeasuredError("no")),
        (2, GraphError("bad")),
    ]
    told = [(end.place, end_from_pb(end)) for end in ends_to_pb(ends).ends]
    assert told[:2] == ends[:2]
    assert (type(told[2][1]), str(told[2][1])) == (NotMeasuredError, "no")
    assert (type(told[3][1]), str(told[3][1])) == (UsageError, "bad")


def test_a_question_that_cannot_be_read_is_an_error_in_its_place(graph: Graph) -> None:
    good = question_to_pb(Question.about(graph, "p"), with_graph=True)
    bad = pb.QueryRequest(graph_json=b"{", platform="p")
    none = pb.QueryRequest(graph_json=b"{}", platform="p")
    found = questions_from_pb(pb.QueryManyRequest(questions=[bad, good, none]))
    assert isinstance(found[0], UsageError)
    assert found[1] == Question.about(graph, "p")
    assert isinstance(found[2], Exception)


def test_calls_are_divided_by_size() -> None:
    sizes = [BATCH_BYTES // 2, BATCH_BYTES // 2, 1, 2 * BATCH_BYTES, 5]
    assert list(batches(range(5), sizes.__getitem__)) == [[0, 1], [2], [3], [4]]
    assert list(batches([], sizes.__getitem__)) == []
