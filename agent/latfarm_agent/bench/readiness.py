"""Whether the board is fit to measure now, and what its sensors say while it does."""

from __future__ import annotations

import threading
import time
from typing import Callable, Sequence

from latfarm_agent.board.conditions import (
    UNKNOWN,
    CoreTicks,
    SensorReading,
    Sensors,
    shares,
    shown,
    thermally_steady,
)
from latfarm_agent.worker.failure import WorkerFailure

_BUSY_SHARE = 0.25
_BUSY_WINDOW_S = 0.1
_BUSY_GIVE_UP_S = 30.0
_COOL_WAIT_S = 600.0
_LOG_EVERY_S = 1.0

ReportStage = Callable[[str, int], None]
"""Told the name of a stage that begins, and the number of its session."""

Cancelled = Callable[[], bool]
"""Whether the measurement is no longer wanted."""


class Readiness:
    """Waits until the board is fit to measure, remembering how it was before.

    Args:
        sensors: of the measuring cores.
        cores: the measuring cores; empty: none in particular, so that none can be busy.
        busy_wait_s: how long to wait for a busy core.
        closing: set when waiting must end.
    """

    def __init__(
        self,
        sensors: Sensors,
        cores: Sequence[int],
        busy_wait_s: float,
        closing: threading.Event,
    ) -> None:
        self._sensors = sensors
        self._cores = cores
        self._busy_wait_s = busy_wait_s
        self._closing = closing
        self._last_ticks: tuple[float, CoreTicks] | None = None
        self._wait_again_s = 0.0
        self._idle_c: float | None = None

    def measured(self, ticks: CoreTicks | None) -> None:
        """A measurement has ended, with these accounts of the cores."""
        if ticks is not None:
            self._last_ticks = (time.monotonic(), ticks)

    def read(self) -> SensorReading:
        """The sensors now; the coolest reading ever counts as idle."""
        reading = self._sensors.read()
        if reading.temperature_c is not None:
            known = self._idle_c
            self._idle_c = (
                reading.temperature_c if known is None else min(known, reading.temperature_c)
            )
        return reading

    def wait_until_quiet(
        self,
        conditions: dict[str, str],
        stage: ReportStage,
        cancelled: Cancelled,
    ) -> None:
        """Wait, but not long, while others use the measuring core; say how busy it was.

        Between measurements our workers are idle, so all use is by others. Right after another
        measurement there is nothing to look back on, and the one before told how quiet it was.
        """
        if not self._cores:
            conditions["core_busy_share"] = UNKNOWN
            return
        begun = time.monotonic()
        ticks = self._sensors.ticks()
        last, self._last_ticks = self._last_ticks, None
        busy: float | None = None
        if last is not None:
            busy = shares(last[1], ticks).busy if begun - last[0] >= _BUSY_WINDOW_S else 0.0
        waiting = False
        while ticks is not None and (busy is None or busy > _BUSY_SHARE):
            if busy is not None and begun < self._wait_again_s:
                break  # the last wait was in vain, and not long ago
            if time.monotonic() - begun > self._busy_wait_s:
                self._wait_again_s = time.monotonic() + _BUSY_GIVE_UP_S
                break
            if busy is not None and not waiting:
                waiting = True
                stage("waiting", 0)
            self._pause(_BUSY_WINDOW_S, cancelled)
            before, ticks = ticks, self._sensors.ticks()
            found = shares(before, ticks).busy
            busy = 0.0 if found is None else found
        conditions["core_busy_share"] = shown(busy)
        conditions["waited_ms"] = shown((time.monotonic() - begun) * 1e3, 0)

    def wait_until_cool(self, stage: ReportStage, cancelled: Cancelled) -> None:
        """METHODS 1.3, where there is a sensor.

        Raises:
            WorkerFailure: NOT_READY after ten minutes.
        """
        begun = time.monotonic()
        samples: list[tuple[float, float]] = []
        while True:
            reading = self.read()
            if reading.temperature_c is None or self._idle_c is None:
                return
            samples.append((time.monotonic(), reading.temperature_c))
            if thermally_steady(samples, self._idle_c):
                return
            if samples[-1][0] - begun > _COOL_WAIT_S:
                raise WorkerFailure(
                    "NOT_READY",
                    f"{reading.temperature_c:.1f} degC and not steady near the idle "
                    f"{self._idle_c:.1f} degC after {_COOL_WAIT_S:.0f} s",
                )
            if len(samples) == 1:
                stage("waiting", 0)
            self._pause(_LOG_EVERY_S, cancelled)

    def _pause(self, seconds: float, cancelled: Cancelled) -> None:
        until = time.monotonic() + seconds
        while True:
            if cancelled():
                raise WorkerFailure("CANCELLED", "cancelled while waiting")
            left = until - time.monotonic()
            if left <= 0:
                return
            self._closing.wait(min(left, _BUSY_WINDOW_S))


class Monitor:
    """Logs the sensors once a second while runs are timed."""

    def __init__(self, sensors: Sensors, *, active: bool) -> None:
        self.samples: list[SensorReading] = []
        self._sensors = sensors
        self._timing = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if active:
            self._thread = threading.Thread(target=self._log, name="sensor-log", daemon=True)
            self._thread.start()

    def watch(self, timing: bool) -> None:
        """Whether what happens from now on counts."""
        self._timing = timing

    def close(self) -> None:
        """End the log. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def logged(self) -> dict[str, str]:
        """The log as conditions: one figure a second."""
        if not self.samples:
            return {}
        return {
            "clock_mhz_log": ",".join(shown(reading.clock_mhz, 0) for reading in self.samples),
            "temperature_c_log": ",".join(shown(r.temperature_c, 1) for r in self.samples),
        }

    def _log(self) -> None:
        while not self._ended.wait(_LOG_EVERY_S):
            if self._timing:
                self.samples.append(self._sensors.read())
