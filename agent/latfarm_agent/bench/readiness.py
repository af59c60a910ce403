"""Waits until the board is fit to measure, and logs its sensors while it measures."""

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
"""A core counts as busy if other programs use more than this share of it."""

_BUSY_WINDOW_S = 0.1
"""Over how long a time that share is taken."""

_BUSY_GIVE_UP_S = 30.0
"""After a wait that was in vain, no measurement waits again for so long."""

COOL_WAIT_S = 600.0
"""How long a measurement of the publish tier waits for a cool board."""

LOG_EVERY_S = 1.0
"""How often sensors are logged, and read while the board cools."""

ReportStage = Callable[[str, int], None]
"""Told the name of a stage that begins, and the number of its session."""

Cancelled = Callable[[], bool]
"""Whether the measurement is no longer wanted."""


class Readiness:
    """Waits until the board is fit to measure. Remembers earlier readings.

    Args:
        sensors: the sensors of the measuring cores.
        cores: the measuring cores; empty: no particular ones, so none is waited for.
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
        """A measurement has ended; `ticks` are the accounts of the cores at its end."""
        if ticks is not None:
            self._last_ticks = (time.monotonic(), ticks)

    def read(self) -> SensorReading:
        """Read the sensors. The lowest temperature so far counts as that of the idle board."""
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
        """Wait for a short time while other programs use the measuring core.

        Between measurements our workers are idle, so all use of the core is by other programs.
        Right after another measurement there is no time to look back on, and that measurement has
        told how busy the core was.

        Args:
            conditions: get how busy the core was, and how long the wait was.
            stage: told if there is a wait.
            cancelled: whether the measurement is no longer wanted.

        Raises:
            WorkerFailure: CANCELLED.
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
                break  # the last wait was in vain, and that was not long ago
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
        """Wait until the temperature is steady and close to that of the idle board.

        A board without a temperature sensor is not waited for.

        Raises:
            WorkerFailure: NOT_READY after ten minutes, or CANCELLED.
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
            if samples[-1][0] - begun > COOL_WAIT_S:
                raise WorkerFailure(
                    "NOT_READY",
                    f"{reading.temperature_c:.1f} degC and not steady near the idle "
                    f"{self._idle_c:.1f} degC after {COOL_WAIT_S:.0f} s",
                )
            if len(samples) == 1:
                stage("waiting", 0)
            self._pause(LOG_EVERY_S, cancelled)

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
    """Logs the sensors once a second while runs are timed; see `watch`."""

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
        """Whether readings from now on are logged."""
        self._timing = timing

    def close(self) -> None:
        """End the log. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def logged(self) -> dict[str, str]:
        """The log as conditions, with one value for each second."""
        if not self.samples:
            return {}
        return {
            "clock_mhz_log": ",".join(shown(reading.clock_mhz, 0) for reading in self.samples),
            "temperature_c_log": ",".join(shown(r.temperature_c, 1) for r in self.samples),
        }

    def _log(self) -> None:
        while not self._ended.wait(LOG_EVERY_S):
            if self._timing:
                self.samples.append(self._sensors.read())
