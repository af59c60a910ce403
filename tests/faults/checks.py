"""What a run showed: what was lost, doubled or left over, and how soon boards measured again.

Everything here is pure: what was found in the store, the spools and the journal is passed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from latfarm_predictors.measurement import Measurement

from tests.faults import scenario as kinds
from tests.faults.boards_under_test import LeftAtBoard, board_name
from tests.faults.fault_actions import Strike
from tests.faults.journal import BEGAN, LEASED, BoardEvent, BoardSpan, spans
from tests.faults.scenario import Scenario

CANCELLED = "CANCELLED"
"""Error code of a measurement that was stopped."""

FREE_STATES = ("idle", "cooling", "quarantined")
"""States of a board that nobody has leased."""

RECOVERY_S = 20.0
"""Pauses of boards count that begin up to this many seconds after a part of Ray was killed."""

Values = tuple[float | None, float | None, tuple[float, ...], int]
"""What must be equal in an undisturbed run: latency, least latency, sessions (ms), runs."""


@dataclass(frozen=True)
class Evidence:
    """What was found at the end of a run.

    Attributes:
        scenario: what the run did.
        requests: the ids of the requests of its campaign.
        stored: the measurements of the campaign in the store.
        undisturbed: the values of each request in an undisturbed run.
        state: the state of the campaign.
        events: the journal of the boards.
        strikes: the faults that happened.
        board_ids: the ids of the boards by their names.
        left: what the boards still had.
        processes: processes that were left, for people.
        story: what went wrong otherwise; empty: nothing.
    """

    scenario: Scenario
    requests: Sequence[str]
    stored: Sequence[Measurement]
    undisturbed: Mapping[str, Values]
    state: str
    events: Sequence[BoardEvent]
    strikes: Sequence[Strike]
    board_ids: Mapping[str, str]
    left: Sequence[LeftAtBoard]
    processes: Sequence[str]
    story: str = ""


@dataclass(frozen=True)
class Findings:
    """The figures of one run. All but the last five must be 0 or empty.

    Attributes:
        lost: requests without an answer.
        untyped: failures without an error code.
        doubled: requests with several answers in the store.
        changed: answers with another value than an undisturbed run gives.
        two_holders: times that a board measured for two leases at once.
        leases: boards that were still leased.
        spooled: results that boards still had.
        processes: processes that were left.
        hands: runs that a person would have had to help.
        repeated: finished measurements that were taken again after a death of the controller.
        story: what went wrong otherwise.
        answers: requests with a latency.
        failures: failed answers by their codes.
        missed: faults that had nothing to strike, as when the campaign had ended before.
        controller_s, ray_s, agent_s: the longest time in seconds until a board measured again
            after a death of the controller, of the raylet or GCS, and after the restart of an
            agent; None: no board had to.
    """

    lost: int = 0
    untyped: int = 0
    doubled: int = 0
    changed: int = 0
    two_holders: int = 0
    leases: int = 0
    spooled: int = 0
    processes: int = 0
    hands: int = 0
    repeated: int = 0
    story: str = ""
    answers: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    missed: int = 0
    controller_s: float | None = None
    ray_s: float | None = None
    agent_s: float | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong; times are told and not judged."""
        return not self.story and not any(getattr(self, name) for name in COUNTS)

    def to_json(self) -> dict[str, Any]:
        """The figures as plain JSON types."""
        return asdict(self) | {"failures": dict(self.failures)}


COUNTS = (
    "lost",
    "untyped",
    "doubled",
    "changed",
    "two_holders",
    "leases",
    "spooled",
    "processes",
    "hands",
    "repeated",
)
"""The figures that must be 0."""


def values_of(measurement: Measurement) -> Values:
    """The values of a measurement that an undisturbed run of the same request must have, too."""
    return (
        measurement.latency_ms,
        measurement.min_ms,
        tuple(measurement.session_ms),
        measurement.runs,
    )


def judged(found: Evidence) -> Findings:
    """The figures of a run."""
    answers = Counter(measurement.request_id for measurement in found.stored)
    failed = [measurement for measurement in found.stored if not measurement.ok]
    measured = spans(found.events)
    return Findings(
        lost=sum(request_id not in answers for request_id in found.requests),
        untyped=sum(not measurement.error_code for measurement in failed),
        doubled=sum(count > 1 for count in answers.values()),
        changed=_changed(found),
        two_holders=two_holders(measured),
        leases=sum(board.state not in FREE_STATES for board in found.left),
        spooled=sum(len(board.spooled) for board in found.left),
        processes=len(found.processes),
        hands=int(found.state != "done"),
        repeated=sum(
            repeated(measured, strike.at_s, _excused(found))
            for strike in found.strikes
            if strike.kind == kinds.CONTROLLER_KILLED
        ),
        story=found.story,
        answers=sum(measurement.ok for measurement in found.stored),
        failures=dict(Counter(measurement.error_code for measurement in failed)),
        missed=len([kind for kind in found.scenario.kinds if kind not in kinds.BOARD_FAULTS])
        - len(found.strikes),
        controller_s=_longest(found, (kinds.CONTROLLER_KILLED,), _since_new_lease),
        ray_s=_longest(found, (kinds.RAYLET_KILLED, kinds.GCS_KILLED), _longest_pause),
        agent_s=_longest(found, (kinds.AGENT_KILLED,), _since_restart),
    )


def two_holders(measured: Sequence[BoardSpan]) -> int:
    """How often a board began a measurement while one for another lease went on."""
    count = 0
    last: dict[str, BoardSpan] = {}
    for span in measured:
        before = last.get(span.board)
        if before is not None and before.ended_s > span.began_s and before.token != span.token:
            count += 1
        if before is None or span.ended_s >= before.ended_s:
            last[span.board] = span
    return count


def repeated(measured: Sequence[BoardSpan], death_s: float, excused: frozenset[str]) -> int:
    """How many measurements that had ended well before a death were taken again after it.

    Args:
        measured: all measurements.
        death_s: when the controller died.
        excused: ids of the boards whose results may be lost by another fault.
    """
    finished = {
        span.request_id
        for span in measured
        if span.good and span.ended_s <= death_s and span.board not in excused
    }
    # What a board has queued under a lease from before the death, nobody asked for again. Another
    # board may have measured it meanwhile, if the first one had lost its shard or its link.
    older: dict[str, int] = {}
    for span in measured:
        if span.began_s <= death_s:
            older[span.board] = max(span.token, older.get(span.board, 0))
    again = {
        span.request_id
        for span in measured
        if span.began_s > death_s
        and span.token > older.get(span.board, 0)
        and span.code != CANCELLED
    }
    return len(finished & again)


def _excused(found: Evidence) -> frozenset[str]:
    """The ids of the boards that a fault of their own, or of their link, struck."""
    names = {strike.board for strike in found.strikes if strike.board}
    names |= {name for strike in found.strikes for name in strike.boards}
    names |= _faulty_names(found, kinds.BOARD_FAULTS)
    return frozenset(found.board_ids[name] for name in names if name in found.board_ids)


def _faulty_names(found: Evidence, wanted: Sequence[str]) -> set[str]:
    """The names of the boards that had such a fault from the start."""
    made = found.scenario
    return {board_name(made, fault.board) for fault in made.faults if fault.kind in wanted}


def _changed(found: Evidence) -> int:
    """Good answers with other values, from boards that no fault lets measure otherwise."""
    names = _faulty_names(found, kinds.OTHER_VALUES)
    faulty = {found.board_ids[name] for name in names if name in found.board_ids}
    return sum(
        values_of(measurement) != found.undisturbed.get(measurement.request_id)
        for measurement in found.stored
        if measurement.ok and measurement.board_id not in faulty
    )


def _longest(found: Evidence, wanted: Sequence[str], time_of: Any) -> float | None:
    """The longest time that `time_of` gives for the strikes of some kinds."""
    times = [
        time_s
        for strike in found.strikes
        if strike.kind in wanted
        for time_s in time_of(found, strike)
    ]
    return round(max(times), 2) if times else None


def _begins(found: Evidence, board: str) -> list[BoardEvent]:
    events = [event for event in found.events if event.what == BEGAN and event.board == board]
    return sorted(events, key=lambda event: event.at_s)


def _since_new_lease(found: Evidence, strike: Strike) -> list[float]:
    """For each board, the seconds until its first measurement under a lease of the new process."""
    times = []
    for board in found.board_ids.values():
        older = [
            event.token
            for event in found.events
            if event.what == LEASED and event.board == board and event.at_s <= strike.at_s
        ]
        newest = max(older, default=0)
        for event in _begins(found, board):
            if event.at_s > strike.at_s and event.token > newest:
                times.append(event.at_s - strike.at_s)
                break
    return times


def _longest_pause(found: Evidence, strike: Strike) -> list[float]:
    """For each board, the longest time between two begins, or from the death to the first one."""
    times = []
    for board in found.board_ids.values():
        begins = [event.at_s for event in _begins(found, board) if event.at_s > strike.at_s]
        moments = [strike.at_s, *begins]
        gaps = [
            later - earlier
            for earlier, later in pairwise(moments)
            if earlier <= strike.at_s + RECOVERY_S
        ]
        times += [max(gaps)] if gaps else []
    return times


def _since_restart(found: Evidence, strike: Strike) -> list[float]:
    """For each board of the agent, the seconds from its restart to its first measurement."""
    times = []
    for name in strike.boards:
        begins = _begins(found, found.board_ids.get(name, ""))
        later = [event.at_s for event in begins if event.at_s > strike.back_s]
        times += [later[0] - strike.back_s] if later else []
    return times
