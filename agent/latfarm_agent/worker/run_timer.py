"""Times single runs of a model, and probes the speed of the core between them.

The loop of the protocol, in `measure`, decides how many runs there are.
"""

from __future__ import annotations

import time
from numbers import Real
from typing import Callable, cast

from latfarm_agent.runtimes.base import Prepared, Runtime, RuntimeFailure
from latfarm_agent.worker import rules
from latfarm_agent.worker.replies import LONGEST_MS

BEATS_A_TIMEOUT = 4
"""How often the loop says within the timeout of a run that it is alive."""

_LOOP = range(200)
"""Length of the probe's loop where a runtime has no probe of its own."""

_PROBE_UNTIMED = 3
_PROBE_TIMED = 5
"""How often the probe's work is done untimed and timed, each time that the core is probed."""

PROBE_EVERY_NS = 1_000_000
"""The core is probed again after a run when the last probe is older than this."""
MOST_PROBING = 4
"""It is probed again only after this many times what the last probe took, so that probes take a
fifth of the time at most."""

AWAKE = 1.1
"""A core is awake when the probe takes at most this many times as long as ever before."""
WAKES_WITHIN_NS = 5_000_000
"""A core that is slow for longer than this does not wake up: somebody else slows it."""

_CALIBRATION_NS = 250_000_000
"""How long the probe is repeated where nothing is known yet of an undisturbed core."""

_LEAST_MS = 1e-3
"""Least time that a run counts for, so that a clock that stands still does not stop the loop."""


def _loop() -> None:
    for _ in _LOOP:
        pass


class RunTimer:
    """Times single runs, with the runtime's own clock if it has one, and probes the core.

    On some hosts the vector units of a core fall asleep while a model hardly uses them, and take
    milliseconds to wake up. The probe, which needs them, would call such a core slow, although the
    model did not feel it. So the probe's work is repeated until the core is awake (decision 51).

    Args:
        runtime: runs the model.
        prepared: the session, with its probe and the clock of what computes.
        beat: called now and then, to tell that runs go on.
        timeout_ms: how long one run may take; `beat` is called several times in that time.
        known_us: the probe's time on an undisturbed core, as far as it is known; 0: it is not.

    Attributes:
        elapsed_ms: how long the runs since the last restart took together.
        probes_us: the times of the probes since then, in microseconds.
    """

    def __init__(
        self,
        runtime: Runtime,
        prepared: Prepared,
        beat: Callable[[], None],
        timeout_ms: float,
        known_us: float = 0.0,
    ) -> None:
        self._run = runtime.run
        clocks: dict[str, Callable[[], int] | None] = {
            "thread": time.thread_time_ns,
            "process": time.process_time_ns,
            "none": None,
        }
        self._cpu = clocks[prepared.cpu_clock]
        self._probe = prepared.probe or _loop
        self._told_probe_us = prepared.probe_us
        self._beat = beat
        self._beat_every_ns = timeout_ms * 1e6 / BEATS_A_TIMEOUT
        self._beaten_ns = time.perf_counter_ns()
        self._probe_next_ns = self._beaten_ns + PROBE_EVERY_NS
        self._fastest_us = known_us
        self._whole_calls = prepared.whole_calls
        self.elapsed_ms = 0.0
        self.probes_us: list[float] = []

    def restart(self) -> None:
        """Reset elapsed time and probes, and probe once."""
        self.elapsed_ms = 0.0
        self.probes_us = []
        self.probe()

    def probe(self) -> None:
        """Time work of a fixed length, which tells how fast the core is now."""
        if self._told_probe_us is not None:
            self.probes_us.append(_told(self._told_probe_us()))
            return
        if self._cpu is None:
            self.probes_us.append(0.0)
            return
        # Untimed at first: a large model may have evicted the probe's data and code.
        began_ns = time.perf_counter_ns()
        for _ in range(_PROBE_UNTIMED):
            self._probe()
        probe_us, ended_ns = self._timed()
        while probe_us > AWAKE * self._fastest_us > 0.0 and ended_ns - began_ns < WAKES_WITHIN_NS:
            probe_us, ended_ns = self._timed()
        self._fastest_us = min(probe_us, self._fastest_us or probe_us)
        self._probe_next_ns = ended_ns + max(PROBE_EVERY_NS, MOST_PROBING * (ended_ns - began_ns))
        self.probes_us.append(probe_us)

    def _timed(self) -> tuple[float, int]:
        """Median time of the probe's work in microseconds, and when the last one ended."""
        marks = [time.perf_counter_ns()]
        for _ in range(_PROBE_TIMED):
            self._probe()
            marks.append(time.perf_counter_ns())
        return rules.median([b - a for a, b in zip(marks, marks[1:])]) / 1e3, marks[-1]

    def calibrate(self) -> float:
        """The probe's time on an undisturbed core, from repeated probes of this one."""
        self.restart()
        began_ns = time.perf_counter_ns()
        while self._cpu is not None and time.perf_counter_ns() - began_ns < _CALIBRATION_NS:
            self.probe()
        return rules.fastest(self.probes_us, 0.0)

    def __call__(self) -> tuple[float, bool]:
        """Run once; gives the latency, and whether the run lost the core meanwhile."""
        cpu = self._cpu
        if cpu is None:
            begun = time.perf_counter_ns()
            own = self._run()
            ended = time.perf_counter_ns()
            cpu_ns = ended - begun
            if self._told_probe_us is not None:
                self.probe()
        else:
            cpu_begun = cpu()
            begun = time.perf_counter_ns()
            own = self._run()
            ended = time.perf_counter_ns()
            cpu_ns = cpu() - cpu_begun
            if ended > self._probe_next_ns:
                self.probe()
        if ended - self._beaten_ns > self._beat_every_ns:
            self._beat()
            self._beaten_ns = ended
        latency_ms = (ended - begun) / 1e6 if own is None else _told(own)
        # A clock that stands still must not make the loop endless.
        spent_ms = (ended - begun) / 1e6 if self._whole_calls else latency_ms
        self.elapsed_ms += max(spent_ms, _LEAST_MS)
        preempted = own is None and rules.preempted(latency_ms, cpu_ns / 1e6)
        return latency_ms, preempted


def _told(own: object) -> float:
    """Check a latency from the runtime's own clock.

    Raises:
        RuntimeFailure: the value is not a latency.
    """
    right = isinstance(own, Real) and not isinstance(own, bool)
    if not right or not 0.0 <= float(cast("float", own)) <= LONGEST_MS:
        raise RuntimeFailure("MODEL_FAILED", f"its own clock told {own!r:.80} ms for a run")
    return float(cast("float", own))


class TimedRuns:
    """The timed runs, and what is known about each of them.

    Args:
        timer: times them.
        known_us: the probe's time on an undisturbed core, as far as it is known; 0: it is not.

    Attributes:
        times_ms: their latencies.
        preempted: for each of them, whether it lost the core.
    """

    def __init__(self, timer: RunTimer, known_us: float) -> None:
        self._timer = timer
        self._known_us = known_us
        self._before: list[int] = []
        self.times_ms: list[float] = []
        self.preempted: list[bool] = []

    def add(self) -> None:
        """Make one run."""
        self._before.append(len(self._timer.probes_us) - 1)
        latency_ms, preempted = self._timer()
        self.times_ms.append(latency_ms)
        self.preempted.append(preempted)

    @property
    def fastest_us(self) -> float:
        """The probe's time on an undisturbed core, as far as it is known."""
        return rules.fastest(self._timer.probes_us, self._known_us)

    def kept(self, min_runs: int) -> rules.KeptRuns:
        """The runs that count so far."""
        slow = rules.slowdown(self._timer.probes_us, self._before, self.fastest_us)
        return rules.kept(self.times_ms, self.preempted, slow, min_runs)
