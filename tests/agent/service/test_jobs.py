"""Listeners of a job that come late or go away, and cancellations that come too late."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from latfarm_agent.bench.records import BenchRequest, BenchResult, BenchStage
from latfarm_agent.errors import DigestError, LatfarmAgentError, RequestError
from latfarm_agent.files.companions import MOST_COMPANIONS
from latfarm_agent.service.jobs import MAX_EVENTS, JobEvent, JobRequest, LiveJob
from latfarm_agent.session.messages import MeasurementJob


def new_job() -> LiveJob:
    return LiveJob(MeasurementJob("r1", 1, "?"), JobRequest(BenchRequest()), Path("m"))


def stage(number: int) -> BenchStage:
    return BenchStage("timing", number)


def sessions(events: Iterable[JobEvent]) -> list[int]:
    return [event.session for event in events if isinstance(event, BenchStage)]


RESULT = BenchResult(outcome="ok")


def test_every_listener_hears_everything_once_and_in_order() -> None:
    live = new_job()
    heard: list[list[int]] = [[], [], []]

    def listen(into: list[int]) -> None:
        events = list(live.listen(lambda: True))
        assert events[-1] is RESULT
        into.extend(sessions(events[:-1]))

    threads = [threading.Thread(target=listen, args=(into,)) for into in heard]
    for thread in threads[:2]:
        thread.start()
    for number in range(100):
        live.publish(stage(number))
    threads[2].start()
    live.publish(RESULT)
    live.publish(stage(100))
    for thread in threads:
        thread.join()
    assert heard == [list(range(100))] * 3


def test_a_late_listener_misses_the_oldest_stages_never_the_result() -> None:
    live = new_job()
    for number in range(MAX_EVENTS + 10):
        live.publish(stage(number))
    live.publish(RESULT)
    events = list(live.listen(lambda: True))
    assert len(events) == MAX_EVENTS
    assert sessions(events)[0] == 11
    assert events[-1] is RESULT


def test_a_slow_listener_goes_on_with_what_is_left() -> None:
    live = new_job()
    live.publish(stage(0))
    listener = live.listen(lambda: True)
    assert sessions([next(listener)]) == [0]
    for number in range(1, MAX_EVENTS + 10):
        live.publish(stage(number))
    assert sessions([next(listener)]) == [10]


def test_a_listener_that_is_gone_ends_when_woken() -> None:
    live = new_job()
    active = threading.Event()
    active.set()
    thread = threading.Thread(target=lambda: list(live.listen(active.is_set)))
    thread.start()
    active.clear()
    live.wake()
    thread.join()


def test_a_cancellation_counts_until_the_measurement_has_ended() -> None:
    live = new_job()
    live.cancel("LEASE_LOST", "first")
    live.cancel("AGENT_STOPPED", "second")
    assert live.cancelled()
    assert live.seal() == ("LEASE_LOST", "first")

    late = new_job()
    assert late.seal() is None
    late.cancel("LEASE_LOST", "too late")
    assert not late.cancelled()
    assert late.cancellation is None


SHA256 = "0" * 64


def asked(
    request_id: str = "r1",
    blob_sha256: str = SHA256,
    companions: dict[str, str] | None = None,
) -> JobRequest:
    request = BenchRequest(request_id=request_id, companions=companions or {})
    return JobRequest(request, blob_sha256=blob_sha256)


def test_a_request_that_names_its_files_rightly_passes() -> None:
    asked().check()
    asked("!" * 128, companions={"model.data": SHA256}).check()


@pytest.mark.parametrize("request_id", ["", " ", "a b", "a\n", "\u00e9", "a" * 129])
def test_a_malformed_request_id_is_refused(request_id: str) -> None:
    with pytest.raises(RequestError, match="request_id must be"):
        asked(request_id).check()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (asked(blob_sha256="../etc/passwd"), DigestError),
        (asked(companions={"model.data": "1"}), DigestError),
        (asked(companions={"../model.data": SHA256}), RequestError),
        (asked(companions={SHA256: SHA256}), RequestError),
        (asked(companions={f"f{n}": SHA256 for n in range(MOST_COMPANIONS + 1)}), RequestError),
    ],
)
def test_malformed_names_of_files_are_refused(
    wrong: JobRequest, error: type[LatfarmAgentError]
) -> None:
    with pytest.raises(error):
        wrong.check()
