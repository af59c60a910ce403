"""The conditions of a measurement on an NVIDIA GPU, from its runs and the sensors of the GPU."""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import Callable, Iterator, Mapping

from latfarm_agent.nvidia.gpu import GpuReading
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.tensorrt.session import Times

_KEPT_RUNS = 4096
"""Number of runs whose times are kept."""
_EVERY_S = 1.0
"""Seconds between two readings of the sensors."""
_CLOCK_DROP = 0.98
"""A locked clock that falls below this share of its highest reading has throttled; our choice."""


class SessionLog(Mapping[str, str]):
    """The conditions of a session, which are worked out when they are first read.

    Reading them ends the log. The latencies are medians over the later half of the session's runs
    (of the last 4,096), which excludes the warm-up and the first run.

    Args:
        told: conditions that are known from the start.
        read: a function that reads the GPU's sensors.
        locked: whether the GPU's clock is fixed, so that a lower clock is a fault.
        end: a function that releases the sensors; it is called when the log is read or a run fails.
        now: a clock in seconds.
    """

    def __init__(
        self,
        told: Mapping[str, str],
        read: Callable[[], GpuReading],
        *,
        locked: bool,
        end: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._told = dict(told)
        self._read = read
        self._locked = locked
        self._end = end
        self._now = now
        self._runs: deque[Times] = deque(maxlen=_KEPT_RUNS)
        self._readings = [read()]
        self._next_s = now() + _EVERY_S
        self._finished: dict[str, str] | None = None

    def add(self, times: Times) -> None:
        """Add the times of one run; reads the sensors once a second, outside of the timed part.

        Raises:
            RuntimeFailure: THROTTLED if the GPU slowed down because of heat or its power supply.
        """
        self._runs.append(times)
        if self._now() < self._next_s:
            return
        self._next_s = self._now() + _EVERY_S
        self._readings.append(self._read())
        why = self._spoiled()
        if why:
            self.close()
            raise RuntimeFailure("THROTTLED", why)

    def close(self) -> None:
        """Release the sensors. Idempotent."""
        self._end()

    def _spoiled(self) -> str:
        first, last = self._readings[0], self._readings[-1]
        if last.throttles is not None and last.throttles > (first.throttles or 0):
            why = f" ({', '.join(last.reasons)})" if last.reasons else ""
            return f"the GPU throttled while it measured{why}"
        clocks = [r.clock_mhz for r in self._readings[1:] if r.clock_mhz is not None]
        if self._locked and clocks and clocks[-1] < _CLOCK_DROP * max(clocks):
            return f"the GPU's locked clock fell from {max(clocks):.0f} to {clocks[-1]:.0f} MHz"
        return ""

    def _summary(self) -> dict[str, str]:
        told = dict(self._told)
        later = list(self._runs)[len(self._runs) // 2 :]
        if later:
            told["host_latency_ms"] = f"{median(times.host_ms for times in later):.6g}"
            told["gpu_latency_ms"] = f"{median(times.gpu_ms for times in later):.6g}"
        # The first reading was taken before the GPU had any work.
        readings = self._readings[1:] or self._readings
        logs = {
            "gpu_clock_mhz_log": [r.clock_mhz for r in readings],
            "gpu_memory_clock_mhz_log": [r.memory_clock_mhz for r in readings],
            "gpu_temperature_c_log": [r.temperature_c for r in readings],
            "gpu_power_mw_log": [r.power_mw for r in readings],
        }
        for name, values in logs.items():
            known = [f"{value:g}" for value in values if value is not None]
            if known:
                told[name] = ",".join(known)
        reasons = sorted({reason for reading in readings for reason in reading.reasons})
        if reasons:
            told["gpu_clock_limited_by"] = ", ".join(reasons)
        last = readings[-1].throttles
        told["gpu_throttling"] = "unknown" if last is None else str(last)
        states = [r.throttled for r in self._readings if r.throttled is not None]
        if states:
            told["gpu_throttled_throughout"] = "yes" if all(states) else "no"
        return told

    def _finish(self) -> dict[str, str]:
        if self._finished is None:
            self._finished = self._summary()
            self.close()
        return self._finished

    def __getitem__(self, name: str) -> str:
        return self._finish()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._finish())

    def __len__(self) -> int:
        return len(self._finish())
