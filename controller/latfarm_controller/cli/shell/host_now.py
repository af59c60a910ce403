"""How busy this machine is now, and whether measurements on it can be judged.

The noise of a host is known for sure only from repeated measurements (`campaigns.host_noise`). A
user should not have to wait for these to learn that a machine is far too busy. So this module lets
the processor repeat a small equal piece of work for a second, and looks at how much the durations
differ, and at who else uses the processor meanwhile.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

LOOK_S = 1.0
"""Duration of a look at the machine, in seconds."""
PIECE_BYTES = 1 << 20
"""Size of the data that one piece of work hashes: a piece takes about a millisecond, as long as a
small kernel."""
USUAL_NOISE = 0.03
"""Spread of equal pieces up to which a host counts as quiet; measurements take medians of many
runs, so their own spread is smaller."""
MOST_NOISE = 0.10
"""Spread from which a host is too noisy to judge predictions; the same limit as for repeated
measurements in `campaigns.host_noise`."""
SLOW = 1.5
"""A piece is slowed if it takes this many times as long as the fastest one."""
MOST_SLOWED = 0.3
"""Share of slowed pieces from which a host is too noisy."""
MOST_USED = 0.75
"""Share of all cores from which the work of others leaves no core to measure on."""
MOST_STEAL = 0.05
"""Share of time that the hypervisor may give to other machines before it is told."""
_NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True)
class HostNow:
    """What a look at this machine found.

    Attributes:
        cores: number of processor cores.
        busy_cores: number of cores that other programs used meanwhile.
        steal: share of the time that the hypervisor gave to other machines.
        spread: standard deviation of the logarithm of the duration of equal pieces of work.
        slowed: share of pieces that took `SLOW` times as long as the fastest one.
    """

    cores: int
    busy_cores: float
    steal: float
    spread: float
    slowed: float

    @property
    def hopeless(self) -> bool:
        """Whether predictions cannot be judged on this machine as it is now."""
        used = self.busy_cores > MOST_USED * self.cores
        return used or self.spread > MOST_NOISE or self.slowed > MOST_SLOWED

    @property
    def quiet(self) -> bool:
        """Whether nothing disturbs measurements noticeably."""
        return self.spread <= USUAL_NOISE and self.slowed <= MOST_SLOWED / 10

    @property
    def sentence(self) -> str:
        """What was found, in one clause."""
        told = (
            f"equal work differs by {self.spread:.0%}, {self.slowed:.0%} of it is slowed, other "
            f"programs use {self.busy_cores:.1f} of {self.cores} cores"
        )
        steal = f", the hypervisor takes {self.steal:.0%}" if self.steal > MOST_STEAL else ""
        if self.hopeless:
            return f"this host is too noisy to judge predictions: {told}{steal}"
        state = "quiet" if self.quiet else "somewhat noisy"
        return f"this host is {state}: {told}{steal}"

    @property
    def advice(self) -> str:
        """What would help; empty where nothing must be helped."""
        if self.quiet:
            return ""
        helps = []
        if self.busy_cores >= 0.3:
            helps.append("end other programs (top shows them)")
        if self.steal > MOST_STEAL:
            helps.append("use a machine that is not shared with others, or another hour")
        if not helps:
            helps.append("give the machine a fixed clock, and let it do nothing else")
        return "; ".join(helps)

    def to_json(self) -> dict[str, Any]:
        """The findings as plain JSON types."""
        return asdict(self) | {"hopeless": self.hopeless, "advice": self.advice}


def look(duration_s: float = LOOK_S, clock: Callable[[], float] = time.perf_counter) -> HostNow:
    """Look at this machine for a second.

    Args:
        duration_s: how long, in seconds.
        clock: tells the time in seconds.
    """
    import psutil

    data = bytes(PIECE_BYTES)
    before, own_before = psutil.cpu_times(), _own_s()
    began_s = clock()
    pieces: list[float] = []
    while clock() - began_s < duration_s:
        at_s = clock()
        hashlib.sha256(data).digest()
        pieces.append(clock() - at_s)
    passed_s = max(clock() - began_s, 1e-6)
    after, own_s = psutil.cpu_times(), _own_s() - own_before
    idle = _idle_s(after) - _idle_s(before)
    total = sum(after) - sum(before)
    cores = psutil.cpu_count() or 1
    steal = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    busy = max(0.0, total - idle - own_s - steal) / passed_s
    spread, slowed = _spread(pieces)
    return HostNow(
        cores, min(busy, float(cores)), steal / total if total > 0 else 0.0, spread, slowed
    )


def _own_s() -> float:
    """Processor time of this process so far, in seconds."""
    return time.process_time()


def _idle_s(times: Any) -> float:
    """Idle time of all cores so far, in seconds."""
    return float(times.idle + getattr(times, "iowait", 0.0))


def _spread(pieces: Sequence[float]) -> tuple[float, float]:
    """The robust spread of durations, and the share of slowed ones; without any, nothing is known.

    Args:
        pieces: durations of equal pieces of work, in seconds.
    """
    good = [piece for piece in pieces if piece > 0]
    if not good:
        return math.inf, 1.0
    logs = [math.log(piece) for piece in good]
    middle = median(logs)
    spread = _NORMAL_MAD * median([abs(value - middle) for value in logs])
    fastest = min(good)
    return spread, sum(piece > SLOW * fastest for piece in good) / len(good)
