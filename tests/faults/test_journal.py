"""The journal of boards: events become measurements, also of boards that were killed."""

from __future__ import annotations

from pathlib import Path

from tests.faults.journal import (
    BEGAN,
    ENDED,
    KILLED,
    LEASED,
    BoardEvent,
    BoardSpan,
    JournalReader,
    JournalWriter,
    spans,
)


def began(at_s: float, request_id: str, pid: int = 1, token: int = 1) -> BoardEvent:
    return BoardEvent(BEGAN, at_s, pid, "b", request_id, token)


def ended(at_s: float, request_id: str, outcome: str = "ok", pid: int = 1) -> BoardEvent:
    return BoardEvent(ENDED, at_s, pid, "b", request_id, 1, outcome)


def test_begin_and_end_make_a_span() -> None:
    found = spans([ended(2.0, "r"), began(1.0, "r"), began(3.0, "q"), ended(4.0, "q", "model")])
    assert found == [
        BoardSpan("b", "r", 1, 1.0, 2.0, "ok"),
        BoardSpan("b", "q", 1, 3.0, 4.0, "model"),
    ]
    assert [span.good for span in found] == [True, False]


def test_what_did_not_end_lasts_until_its_process_is_killed_or_the_journal_ends() -> None:
    killed = BoardEvent(KILLED, 5.0, 1)
    later = BoardEvent(LEASED, 9.0, 2, "b", token=3)
    found = spans([began(1.0, "r"), killed, began(6.0, "r", pid=2), later])
    assert [(span.began_s, span.ended_s, span.outcome) for span in found] == [
        (1.0, 5.0, ""),
        (6.0, 9.0, ""),
    ]


def test_no_event_is_no_span() -> None:
    assert spans([]) == []


def test_a_reader_has_heard_all_that_was_written(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path / "j")
    writer = JournalWriter(str(tmp_path / "j"))
    writer.write(BEGAN, board="b", request_id="r", token=7)
    writer.write(ENDED, board="b", request_id="r", token=7, outcome="ok", code="")
    assert reader.wait_for_ends(1, lambda: False)
    assert not reader.wait_for_ends(2, lambda: True)
    reader.killed(4)
    reader.close()
    assert [event.what for event in reader.events] == [BEGAN, ENDED, KILLED]
    (span,) = spans(reader.events)
    assert (span.token, span.good) == (7, True)
    writer.write(BEGAN, board="b")  # nobody listens any more, and that is no error
    writer.close()
