"""What the agent does around one measurement: waits, reads sensors, and judges the conditions.

`watch_of` picks the kind that a platform needs. The calls come in this order: `standing`,
`wait_until_ready`, `begin`, `stage` for each stage, `end`, and then `conditions` and `objection`.
"""

from __future__ import annotations

import time

from latfarm_agent.bench.readiness import Cancelled, Monitor, ReportStage
from latfarm_agent.bench.seats import Seat
from latfarm_agent.board.conditions import (
    THROTTLED_THROUGHOUT,
    BoardReadiness,
    shares,
    shown,
    spoiled_by,
    throttled_throughout,
    yes_or_no,
)
from latfarm_agent.worker import rules

_LEAST_SHARE_S = 0.1
"""Shortest measurement for which the share of stolen time is told: ten steps of 10 ms, in which
the kernel counts."""

_TIMED_STAGES = ("timing", "cold")
"""Stages whose sensor readings count."""


class RunWatch:
    """Watches the board during one measurement whose time is computed, not measured.

    Neither heat nor other programs change such a latency, so nothing is waited for or refused.
    """

    def __init__(self, seat: Seat) -> None:
        self._sensors = seat.sensors
        self._readiness = seat.readiness

    def standing(self) -> BoardReadiness:
        """Whether the board may be measured now."""
        return BoardReadiness()

    def wait_until_ready(
        self, conditions: dict[str, str], stage: ReportStage, cancelled: Cancelled
    ) -> None:
        """Wait until the board is quiet and cool enough, and add what was found to `conditions`.

        Raises:
            WorkerFailure: NOT_READY or CANCELLED.
        """

    def begin(self) -> None:
        """Read the sensors before the runs."""
        self._begun_s = time.monotonic()
        self._before, self._ticks = self._readiness.read(), self._sensors.ticks()

    def stage(self, name: str) -> None:
        """A stage of the measurement begins."""

    def end(self) -> None:
        """Read the sensors after the runs, however these ended."""
        self._after, self._ticks_after = self._readiness.read(), self._sensors.ticks()
        self._readiness.measured(self._ticks_after)

    def lost(self) -> str:
        """Why the board does not answer any more; empty: it answers."""
        return self._sensors.lost()

    def conditions(self) -> dict[str, str]:
        """The conditions of the measurement as the sensors tell them."""
        return {}

    def clock_mhz(self) -> float | None:
        """The clock of the measuring core while it computed; None: not known."""
        return None

    def throttled(self) -> bool | None:
        """Whether the board throttled before, during and after the runs; None: not known."""
        return None

    def objection(self) -> str:
        """Why the measurement must be rejected; empty: nothing speaks against it."""
        return ""


class RealTimeWatch(RunWatch):
    """Watches the board during one measurement whose time is real.

    Args:
        seat: where the measurement runs.
        publish: apply the rules of the publish tier: wait until the board is cool, log the sensors
            once a second, and reject the measurement when the clock falls.
    """

    def __init__(self, seat: Seat, *, publish: bool) -> None:
        super().__init__(seat)
        self._publish = publish
        self._standing = BoardReadiness()

    def standing(self) -> BoardReadiness:
        """Whether the board may be measured now, by its own rules."""
        self._standing = self._sensors.standing()
        return self._standing

    def wait_until_ready(
        self, conditions: dict[str, str], stage: ReportStage, cancelled: Cancelled
    ) -> None:
        """Wait for a quiet core, and in the publish tier for a cool board too."""
        self._readiness.wait_until_quiet(conditions, stage, cancelled)
        if self._publish:
            self._readiness.wait_until_cool(stage, cancelled)

    def begin(self) -> None:
        """Read the sensors before the runs, and begin to log them in the publish tier."""
        self._monitor = Monitor(self._sensors, active=self._publish)
        super().begin()

    def stage(self, name: str) -> None:
        """Log the sensors while runs are timed, and not in other stages."""
        self._monitor.watch(name in _TIMED_STAGES)

    def end(self) -> None:
        """End the log and read the sensors."""
        self._monitor.close()
        super().end()
        self._elapsed_s = time.monotonic() - self._begun_s

    def conditions(self) -> dict[str, str]:
        """Clock, temperature, throttling and load before and after, and the log."""
        before, after = self._before, self._after
        steal = None
        if self._elapsed_s >= _LEAST_SHARE_S:
            steal = shares(self._ticks, self._ticks_after).steal
        throttled = self.throttled()
        state = {} if throttled is None else {THROTTLED_THROUGHOUT: yes_or_no(throttled)}
        return {
            "clock_mhz_before": shown(before.clock_mhz),
            "clock_mhz_after": shown(after.clock_mhz),
            "temperature_c_before": shown(before.temperature_c),
            "temperature_c_after": shown(after.temperature_c),
            "throttling": shown(after.throttles),
            **state,
            "steal_share": shown(steal),
            "load_1m": self._sensors.load(),
            **self._monitor.logged(),
        }

    def clock_mhz(self) -> float | None:
        """The median of the log, else the reading after the runs: an idle core may clock lower."""
        logged = [r.clock_mhz for r in self._monitor.samples if r.clock_mhz is not None]
        return rules.median(logged) if logged else self._after.clock_mhz

    def throttled(self) -> bool | None:
        """Whether a sensor with a state said so in all its readings; None: there is none."""
        return throttled_throughout(self._before, self._monitor.samples, self._after)

    def objection(self) -> str:
        """That the board throttled, lost clock (publish tier) or changed meanwhile."""
        reason = spoiled_by(self._before, self._monitor.samples, self._after, clock=self._publish)
        if reason:
            return reason
        changes = self._standing.changes(self._sensors.standing())
        return f"the board changed while it measured: {changes}" if changes else ""


def watch_of(seat: Seat, *, real_time: bool, publish: bool) -> RunWatch:
    """The watch that a measurement needs."""
    return RealTimeWatch(seat, publish=publish) if real_time else RunWatch(seat)
