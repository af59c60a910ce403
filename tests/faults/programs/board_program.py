"""`latfarm-agent` with a journal of what its boards really do, and with boards that misbehave.

A rack has faults of its own (`latfarm-agent rack --faults`). Those of this module are the ones that
no board can be asked for: it answers twice, it lies about a hash, its clock jumps.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfarm_agent.bench.records import BenchResult
from latfarm_agent.cli import main
from latfarm_agent.rack import rack as _rack  # noqa: F401  # imported here, so that forks have it
from latfarm_agent.service.conductor import Conductor
from latfarm_agent.service.job_runner import JobRunner
from latfarm_agent.service.served_work import ServedWork

from tests.faults.journal import BEGAN, ENDED, LEASED, JournalWriter
from tests.faults.programs import jumping_clock

WRONG_HASH = "0" * 32
"""The fingerprint that a lying board tells; no platform has it."""


@dataclass(frozen=True)
class BoardHooks:
    """What is changed in the processes of boards.

    Attributes:
        journal: the socket of the run's journal.
        clock: the file of the clock; empty: it does not jump.
        twice: names of boards that send each result twice.
        lies: for each board that lies, the numbers of the first and the last result with a wrong
            hash, counted from 1.
    """

    journal: str
    clock: str = ""
    twice: tuple[str, ...] = ()
    lies: dict[str, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The hooks for another process."""
        return json.dumps(dataclasses.asdict(self))


def run(arguments: list[str], hooks_json: str) -> int:
    """Run a command of `latfarm-agent`; gives its exit code."""
    hooks = BoardHooks(**json.loads(hooks_json))
    if hooks.clock:
        jumping_clock.install(Path(hooks.clock))
    _keep_journal(JournalWriter(hooks.journal))
    _lie(hooks.lies)
    _repeat(frozenset(hooks.twice))
    return main(arguments)


def _wrap(owner: type, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method by what `made` makes of it."""
    setattr(owner, name, made(getattr(owner, name)))


def _keep_journal(journal: JournalWriter) -> None:
    def running(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_job(self: Any, live: Any) -> Any:
            board = self._offer.seen[0].board_id
            request_id, token = live.job.request_id, live.job.token
            journal.write(BEGAN, board=board, request_id=request_id, token=token)
            return original(self, live)

        return run_job

    def finishing(original: Callable[..., Any]) -> Callable[..., Any]:
        def finish(self: Any, live: Any, result: Any, busy_s: float) -> Any:
            done = original(self, live, result, busy_s)
            # Only now the result is in the spool.
            outcome, code = result.outcome, result.error_code
            if live.cancellation is not None:
                outcome, code = "infrastructure_error", live.cancellation[0]
            journal.write(
                ENDED,
                board=self._offer.seen[0].board_id,
                request_id=live.job.request_id,
                token=live.job.token,
                outcome=str(outcome),
                code=str(code),
            )
            return done

        return finish

    def leasing(original: Callable[..., Any]) -> Callable[..., Any]:
        def acquire(self: Any, *args: Any, **named: Any) -> Any:
            granted = original(self, *args, **named)
            journal.write(LEASED, board=self._offer.seen[0].board_id, token=granted.token)
            return granted

        return acquire

    _wrap(JobRunner, "_run", running)
    _wrap(Conductor, "_finish", finishing)
    _wrap(Conductor, "acquire", leasing)


def _lie(lies: dict[str, tuple[int, int]]) -> None:
    counts = dict.fromkeys(lies, 0)

    def lying(original: Callable[..., Any]) -> Callable[..., Any]:
        def finish(self: Any, live: Any, result: Any, busy_s: float) -> Any:
            name = self._offer.seen[0].name
            if name in lies:
                counts[name] += 1
                first, last = lies[name]
                if first <= counts[name] <= last:
                    result.fingerprint = WRONG_HASH
            return original(self, live, result, busy_s)

        return finish

    if lies:
        _wrap(Conductor, "_finish", lying)


def _repeat(names: frozenset[str]) -> None:
    def repeating(original: Callable[..., Any]) -> Callable[..., Any]:
        def hear(self: Any, request_id: str, event: Any) -> None:
            original(self, request_id, event)
            if isinstance(event, BenchResult) and self._conductor._offer.seen[0].name in names:
                original(self, request_id, event)

        return hear

    if names:
        _wrap(ServedWork, "_hear", repeating)
