"""The part of the protocol during which power is measured: rest, runs back to back, rest.

It runs in the worker after the timed sessions, on the session that is still prepared. It tells when
the board ran and when it rested; the energy comes from the agent's power rails, or from the
runtime's own account.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Any, Callable

from latfarm_agent.runtimes.base import EnergyAccount, Prepared, Runtime, RuntimeFailure
from latfarm_agent.worker import rules
from latfarm_agent.worker.measure import LoopWatch
from latfarm_agent.worker.rules import TimingSettings

_SLACK_MS = 10_000.0
"""How much longer than planned a rest may take before it counts as a hang."""

_BEATS_A_TIMEOUT = 4
"""How often the loop says within the timeout of a run that it is alive."""


@dataclass(frozen=True)
class _Mark:
    at_s: float
    cpu_s: float
    energy_mj: float


class _Stand:
    """Clock, rest and energy: those of the runtime's own account, or else of this machine."""

    def __init__(self, account: EnergyAccount | None, beat: Callable[[], None]) -> None:
        self._account = account
        self._beat = beat
        own = account is not None
        self.lead_ms = account.lag_ms if account is not None else rules.LEAD_MS
        self.tail_ms = 0.0 if own else rules.TAIL_MS

    def rest(self, rest_ms: float) -> None:
        if self._account is not None:
            self._account.rest(rest_ms)
            return
        time.sleep(rest_ms / 1e3)
        self._beat()

    def now_s(self) -> float:
        return time.monotonic() if self._account is None else self._account.now_s()

    def mark(self) -> _Mark:
        if self._account is not None:
            return _Mark(self._account.now_s(), 0.0, self._account.energy_mj())
        used = resource.getrusage(resource.RUSAGE_SELF)
        return _Mark(time.monotonic(), used.ru_utime + used.ru_stime, 0.0)


def run_for_energy(
    runtime: Runtime, prepared: Prepared, session: int, settings: TimingSettings, watch: LoopWatch
) -> dict[str, Any]:
    """Rest, run for at least `settings.energy_ms`, and rest again.

    Returns:
        Plain JSON types. "spans": a list of [begin_s, end_s, runs, cpu_s, [begin_mj, end_mj]],
        where rests have 0 runs. Times are those of CLOCK_MONOTONIC, or of the runtime's own
        account; of that, "source" and "step_mj" are told too. Instead, "unavailable": why the
        account cannot tell the energy.

    Raises:
        RuntimeFailure: the model cannot run.
    """
    account = prepared.energy
    try:
        spans = _spans(runtime, _Stand(account, watch.beat), session, settings, watch)
    except RuntimeFailure as failure:
        if failure.code != rules.ENERGY_UNAVAILABLE:
            raise
        return {"unavailable": failure.message}
    told: dict[str, Any] = {"spans": spans}
    if account is not None:
        told.update(source=account.source, step_mj=account.step_mj)
    return told


def _spans(
    runtime: Runtime, stand: _Stand, session: int, settings: TimingSettings, watch: LoopWatch
) -> list[list[Any]]:
    spans: list[list[Any]] = []

    def keep(begin: _Mark, end: _Mark, runs: int) -> None:
        energies = [begin.energy_mj, end.energy_mj]
        spans.append([begin.at_s, end.at_s, runs, end.cpu_s - begin.cpu_s, energies])

    def rest() -> None:
        rest_ms = rules.rest_ms(settings)
        watch.stage("resting", session, rules.SETTLE_MS + rest_ms + rules.TAIL_MS + _SLACK_MS)
        stand.rest(rules.SETTLE_MS)
        begin = stand.mark()
        stand.rest(rest_ms)
        keep(begin, stand.mark(), 0)

    rest()
    watch.stage("energy", session, settings.run_timeout_ms * 2 + 200.0)
    runs = _BackToBack(runtime, stand, watch, settings)
    runs.for_ms(stand.lead_ms)
    begin = stand.mark()
    first_s, made = begin.at_s, 0
    span_ms = settings.energy_ms / rules.ENERGY_SPANS
    while made < rules.LEAST_RUNS or (begin.at_s - first_s) * 1e3 < settings.energy_ms:
        count = runs.for_ms(span_ms)
        end = stand.mark()
        keep(begin, end, count)
        begin, made = end, made + 1
    if runs.longest_ms < stand.tail_ms:
        runs.for_ms(stand.tail_ms)
    rest()
    stand.rest(stand.tail_ms)
    return spans


class _BackToBack:
    """Runs a model back to back, with nothing between the runs but a look at the clock."""

    def __init__(
        self, runtime: Runtime, stand: _Stand, watch: LoopWatch, settings: TimingSettings
    ) -> None:
        self._run = runtime.run
        self._now_s = stand.now_s
        self._beat = watch.beat
        self._beat_every_s = settings.run_timeout_ms / 1e3 / _BEATS_A_TIMEOUT
        self._beaten_s = time.monotonic()
        self.longest_ms = 0.0

    def for_ms(self, least_ms: float) -> int:
        """Run at least once and for at least so long; gives the number of runs."""
        begun_s = before_s = self._now_s()
        count = 0
        while True:
            self._run()
            count += 1
            now_s = self._now_s()
            self.longest_ms = max(self.longest_ms, (now_s - before_s) * 1e3)
            before_s = now_s
            if time.monotonic() - self._beaten_s > self._beat_every_s:
                self._beat()
                self._beaten_s = time.monotonic()
            if (now_s - begun_s) * 1e3 >= least_ms:
                return count
