"""The orders of one board: what is uploaded, sent, stopped and answered next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from latfarm_controller.farm.boards.interfaces import BoardRequest, GraphName, Order
from latfarm_controller.farm.boards.order_queue import SHORT_MS, OrderQueue, QueuedOrder
from latfarm_predictors.measurement import Measurement, Outcome, Settings

STOPPED = "CANCELLED"
"""Error code with which a board answers what it was told to stop."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def order(request_id: str, priority: int = 0) -> Order:
    request = BoardRequest(request_id, "p", "kernel", Settings(), False, GraphName("g"))
    return Order("b", request, "sha256", None, priority)


def measured(request_id: str, board_ms: float = 0.0, error_code: str = "") -> Measurement:
    outcome = Outcome.INFRASTRUCTURE_ERROR if error_code else Outcome.OK
    return Measurement(
        request_id, "g", "p", "kernel", outcome, board_ms=board_ms, error_code=error_code
    )


def queue_of(*request_ids: str, uploaded: bool = True) -> OrderQueue:
    queue = OrderQueue()
    for request_id in request_ids:
        queue.put(order(request_id))
    for item in queue.waiting:
        item.uploaded = uploaded
    return queue


def ids(items: list[QueuedOrder]) -> list[str]:
    return [item.order.request.request_id for item in items]


def send(
    queue: OrderQueue, loop: asyncio.AbstractEventLoop, now_s: float = 0.0
) -> asyncio.Future[Measurement]:
    """Send what is to be sent next; returns the answer, which is to come."""
    item = queue.next_measurement()
    assert item is not None
    answer: asyncio.Future[Measurement] = asyncio.Future(loop=loop)
    queue.sent(item, now_s, answer)
    return answer


def test_the_most_urgent_order_is_first_and_equal_ones_keep_their_order() -> None:
    queue = OrderQueue()
    for name, priority in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        queue.put(order(name, priority))
    assert ids(queue.waiting) == ["b", "d", "a", "c"]


def test_an_order_is_uploaded_before_it_is_sent() -> None:
    queue = queue_of("a", uploaded=False)
    item = queue.next_upload()
    assert item is not None
    assert queue.next_measurement() is None
    item.uploaded = True
    assert queue.next_upload() is None
    assert queue.next_measurement() is item


def test_an_order_behind_is_sent_while_the_first_is_still_being_uploaded() -> None:
    queue = queue_of("a", "b", uploaded=False)
    queue.waiting[1].uploaded = True
    found = queue.next_measurement()
    assert found is not None
    assert ids([found]) == ["b"]


def test_a_quiet_board_does_one_thing_at_a_time(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("a", "b")
    queue.quiet = True
    queue.put(order("c"))
    assert queue.next_measurement() is None, "everything is uploaded first"
    queue.waiting[2].uploaded = True
    send(queue, loop).set_result(measured("a", board_ms=1.0))
    queue.put(order("d"))
    assert queue.next_upload() is None, "nothing is uploaded while something runs"
    queue.waiting[2].uploaded = True
    queue.answered(measured("a", board_ms=1.0), 0.001)
    send(queue, loop)
    assert queue.next_measurement() is None, "a quiet board is sent one request at a time"


@pytest.mark.parametrize(("took_ms", "ahead"), [(SHORT_MS - 1.0, True), (SHORT_MS, False)])
def test_two_requests_are_sent_where_the_last_one_was_short(
    loop: asyncio.AbstractEventLoop, took_ms: float, ahead: bool
) -> None:
    queue = queue_of("a", "b", "c", "d")
    send(queue, loop)
    assert queue.next_measurement() is None, "nothing is known yet of how long they take"
    queue.answered(measured("a"), took_ms / 1e3)
    send(queue, loop)
    assert (queue.next_measurement() is not None) is ahead
    if ahead:
        send(queue, loop)
        assert queue.next_measurement() is None, "at most two are sent"


def test_the_board_is_busy_from_the_answer_before(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("a", "b", "c")
    send(queue, loop, 10.0)
    assert queue.answered(measured("a"), 10.5) == pytest.approx(500.0)
    send(queue, loop, 10.5)
    send(queue, loop, 10.5)
    assert queue.answered(measured("b"), 11.0) == pytest.approx(500.0)
    assert queue.answered(measured("c"), 11.2) == pytest.approx(200.0), "it began when b ended"


def test_what_runs_without_an_answer_keeps_the_board_busy(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("a", "b", "c")
    assert queue.busy_ms(5.0) == 0.0, "nothing runs"
    send(queue, loop, 10.0)
    assert queue.busy_ms(10.5) == pytest.approx(500.0)
    queue.answered(measured("a"), 10.5)
    send(queue, loop, 10.5)
    send(queue, loop, 10.6)
    queue.answered(measured("b"), 11.0)
    assert queue.busy_ms(11.2) == pytest.approx(200.0), "it began when b ended"


def test_an_answer_from_the_spool_kept_the_board_busy_for_no_longer_than_it_took(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_of("a")
    send(queue, loop, 0.0)
    assert queue.answered(measured("a", board_ms=2.0), 100.0) == pytest.approx(2.0)


def test_a_waiting_order_is_taken_back_and_a_running_one_is_not(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_of("a", "b")
    send(queue, loop)
    assert queue.take_back("b")
    assert not queue.take_back("b")
    assert not queue.take_back("a")
    assert queue.waiting == []


def test_only_what_runs_can_be_stopped(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("a", "b")
    send(queue, loop)
    assert not queue.stop("b")
    assert not queue.needs_care()
    assert queue.stop("a")
    assert queue.needs_care()
    assert queue.to_stop == ("a",)
    assert queue.next_measurement() is None, "nothing is sent before it is stopped"
    assert queue.next_upload() is None


def test_a_stop_is_told_once_and_answered_later(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("a", "b")
    answer = send(queue, loop)
    queue.stop("a")
    queue.told_to_stop(queue.to_stop)
    assert not queue.needs_care(), "the board was told, and has not answered"
    answer.set_result(measured("a", error_code=STOPPED))
    assert queue.needs_care()
    assert queue.answered(answer.result(), 1.0) is None
    assert queue.next_measurement() is not None


def test_what_is_withdrawn_while_the_board_is_told_is_told_next(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_of("z", "a", "b")
    send(queue, loop)
    queue.answered(measured("z"), 0.001)
    answer, _ = send(queue, loop), send(queue, loop)
    queue.stop("a")
    told = queue.to_stop
    for _ in told:  # the board is told one after another, and "b" is withdrawn meanwhile
        queue.stop("b")
    queue.told_to_stop(told)
    assert queue.to_stop == ("b",)
    answer.set_result(measured("a", error_code=STOPPED))
    assert queue.answered(answer.result(), 1.0) is None
    assert queue.needs_care(), "it is the first one now"


def test_a_result_that_came_before_the_stop_counts(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("a")
    send(queue, loop, 0.0)
    queue.stop("a")
    queue.told_to_stop(queue.to_stop)
    assert queue.answered(measured("a"), 1.0) == pytest.approx(1000.0)


def test_a_board_that_stopped_by_itself_has_not_withdrawn_the_request(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_of("a")
    send(queue, loop, 0.0)
    assert queue.answered(measured("a", error_code=STOPPED), 1.0) == pytest.approx(1000.0)


def test_an_answer_that_overtakes_the_stop_ends_it(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("a", "b")
    send(queue, loop)
    queue.stop("a")
    queue.answered(measured("a"), 1.0)
    assert queue.to_stop == ()
    assert queue.next_measurement() is not None


def test_what_else_ran_waits_again_in_its_place(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("z", "a", "b", "c")
    send(queue, loop)
    queue.answered(measured("z", board_ms=1.0), 0.001)
    send(queue, loop)
    send(queue, loop)
    queue.stop("a")
    stopped = queue.stopped_all()
    assert [request.request_id for request in stopped] == ["a"]
    assert queue.running == []
    assert ids(queue.waiting) == ["b", "c"]
    assert queue.to_stop == ()


def test_an_order_that_was_taken_back_during_its_upload_is_not_dropped_again() -> None:
    queue = queue_of("a", "b", uploaded=False)
    item = queue.next_upload()
    assert item is not None
    queue.take_back("a")
    assert not queue.drop(item)
    assert queue.drop(queue.waiting[0])
    assert queue.waiting == []


def test_a_lost_board_has_no_orders(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("a", "b")
    send(queue, loop)
    queue.stop("a")
    queue.clear()
    assert (queue.waiting, queue.running, queue.to_stop) == ([], [], ())
    assert not queue.needs_care()


def test_the_model_of_what_waits_again_is_uploaded_again(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_of("z", "a", "b")
    send(queue, loop)
    queue.answered(measured("z", board_ms=1.0), 0.001)
    send(queue, loop)
    send(queue, loop)
    queue.stop("a")
    queue.stopped_all()
    again = queue.next_upload()
    assert again is not None
    assert again.order.request.request_id == "b"
    assert queue.next_measurement() is None
