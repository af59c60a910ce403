"""Tells what a lower clock does to a core apart from what a neighbour does.

The probe takes longer while a neighbour computes on the same core, and while the core's clock is
low. Only the first is work of somebody else, which the controller corrects latencies for. A low
clock is a property of the board at that moment: it is reported, and it stays in the latency. So the
clock is remembered at which the probe was fastest, and what a lower one explains is taken out of
the slowdown. Where the board tells no clock, the two cannot be told apart. If a sensor says that
such a board throttles all the time, nothing of the slowdown is corrected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from latfarm_agent.board.conditions import shown
from latfarm_agent.worker import rules
from latfarm_agent.worker.channel import Message

SAME_CLOCK = 0.02
"""Share by which two readings of a clock may differ and still count as the same clock."""


@dataclass(frozen=True)
class FastestProbe:
    """The time of the probe on an undisturbed core.

    Attributes:
        probe_us: the time in microseconds; 0: not known yet.
        clock_mhz: the clock at which it was reached; None: the board does not tell it.
    """

    probe_us: float = 0.0
    clock_mhz: float | None = None

    def after(self, probe_us: float, clock_mhz: float | None) -> FastestProbe:
        """What is known after a measurement.

        Args:
            probe_us: the time of the probe on an undisturbed core, as the worker knows it now.
            clock_mhz: the clock during the measurement.
        """
        if probe_us <= 0:
            return self
        if not 0 < self.probe_us <= probe_us:  # it was faster than ever before
            return FastestProbe(probe_us, clock_mhz)
        return FastestProbe(probe_us, self.clock_mhz)

    def clock_slowdown(self, clock_mhz: float | None) -> float | None:
        """How many times slower this clock makes the core; None where it is not known."""
        if not self.clock_mhz or not clock_mhz:
            return None
        times = self.clock_mhz / clock_mhz
        return times if times > 1.0 + SAME_CLOCK else 1.0


def clock_of(done: Message, read_mhz: float | None) -> float | None:
    """The clock during a measurement in MHz: by the runtime if it knows it, else by the sensors."""
    told: Any = done["sessions"][-1].get("clock_mhz", 0.0)
    return float(told) if told > 0 else read_mhz


def without_clock(done: Message, times: float | None, conditions: dict[str, str]) -> None:
    """Take what the clock explains out of the slowdowns of a worker's answer, and tell it.

    Args:
        done: the worker's answer, whose slowdowns are changed.
        times: how many times slower the clock makes the core; None: not known.
        conditions: gets "clock_slowdown" if it is known.
    """
    if times is None:
        return
    conditions["clock_slowdown"] = shown(times)
    if times == 1.0:
        return
    _divide(done, times)


def without_throttling(done: Message, times: float | None) -> None:
    """Take slowdowns out of a worker's answer while the board throttled throughout.

    Where the clock shows how much slower that makes the core, this is taken out already. Elsewhere
    it cannot be told apart from a neighbour, so that nothing of the slowdown is corrected.

    Args:
        done: the worker's answer, whose slowdowns are changed.
        times: how many times slower the clock makes the core; None: not known.
    """
    if times is None or times == 1.0:
        _divide(done, math.inf)


def _divide(done: Message, times: float) -> None:
    """Divide the slowdowns of a worker's answer; the least slowdown is 1."""
    for data in done["sessions"]:
        slow = [max(1.0, each / times) for each in data["slowdown"]]
        data["slowdown"] = slow
        if slow:
            data["slowed_share"] = sum(each > rules.SLOWED for each in slow) / len(slow)
