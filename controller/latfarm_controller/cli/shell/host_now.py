"""How busy this machine is now, and whether measurements on it can be judged.

The noise of a host is known for sure only from repeated measurements (`campaigns.host_noise`). A
user should not have to wait for these to learn that a machine is far too busy. So this module lets
the processor repeat small equal pieces of work for a second, and looks at how much the durations
differ, and at who else uses the processor meanwhile.

A virtual machine may share a core's execution units with another one that it cannot see. Hashing,
of which each step waits for the one before, hardly notices that: on a host whose matrix products
took 1.5 times as long for four fifths of the time, it was slowed for 1 %. So matrix products are
timed, too. Measurements are corrected for such a neighbour, so that it does not rule out judging.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

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
MATRIX_SIZE = 96
"""Rows and columns of the matrices whose products are timed, as beside measured runs."""
PRODUCTS_AT_ONCE = 5
"""The time of a product is the median of so many."""
SHARED = 1.2
"""A product is slowed by a neighbour if it takes this many times as long as on a core alone."""
MOST_SHARED = 0.1
"""Share of slowed products from which a neighbour is told."""
_ALONE = 0.05
"""The quantile of products that counts as what the core takes alone."""
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
        shared: share of matrix products that a neighbour on the same core slowed.
        shared_slowdown: how many times as long these took.
    """

    cores: int
    busy_cores: float
    steal: float
    spread: float
    slowed: float
    shared: float = 0.0
    shared_slowdown: float = 1.0

    @property
    def hopeless(self) -> bool:
        """Whether predictions cannot be judged on this machine as it is now."""
        used = self.busy_cores > MOST_USED * self.cores
        return used or self.spread > MOST_NOISE or self.slowed > MOST_SLOWED

    @property
    def quiet(self) -> bool:
        """Whether nothing disturbs measurements noticeably."""
        steady = self.spread <= USUAL_NOISE and self.slowed <= MOST_SLOWED / 10
        return steady and not self.has_neighbour

    @property
    def has_neighbour(self) -> bool:
        """Whether something that this machine cannot see uses the same core."""
        return self.shared > MOST_SHARED

    @property
    def sentence(self) -> str:
        """What was found, in one clause."""
        told = (
            f"equal work differs by {self.spread:.0%}, {self.slowed:.0%} of it is slowed, other "
            f"programs use {self.busy_cores:.1f} of {self.cores} cores"
        )
        if self.steal > MOST_STEAL:
            told += f", the hypervisor takes {self.steal:.0%}"
        if self.has_neighbour:
            told += (
                f", and for {self.shared:.0%} of the time something that this machine cannot see "
                f"slows arithmetic {self.shared_slowdown:.1f} times"
            )
        if self.hopeless:
            return f"this host is too noisy to judge predictions: {told}"
        state = "quiet" if self.quiet else "somewhat noisy"
        return f"this host is {state}: {told}"

    @property
    def advice(self) -> str:
        """What would help; empty where nothing must be helped."""
        if self.quiet:
            return ""
        helps = []
        if self.busy_cores >= 0.3:
            helps.append("end other programs (top shows them)")
        if self.steal > MOST_STEAL or self.has_neighbour:
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

    before, own_before = psutil.cpu_times(), _own_s()
    began_s = clock()
    data = bytes(PIECE_BYTES)
    left = np.full((MATRIX_SIZE, MATRIX_SIZE), 0.5, dtype=np.float32)
    right, out = left.copy(), left.copy()
    pieces_s = _times_s(lambda: hashlib.sha256(data).digest(), began_s + duration_s / 2, clock)
    products_s = _times_s(lambda: np.matmul(left, right, out=out), began_s + duration_s, clock)
    passed_s = max(clock() - began_s, 1e-6)
    after, own_s = psutil.cpu_times(), _own_s() - own_before
    idle = _idle_s(after) - _idle_s(before)
    total = sum(after) - sum(before)
    cores = psutil.cpu_count() or 1
    steal = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    busy = max(0.0, total - idle - own_s - steal) / passed_s
    return HostNow(
        cores,
        min(busy, float(cores)),
        steal / total if total > 0 else 0.0,
        *_spread(pieces_s),
        *_shared(_medians(products_s)),
    )


def _times_s(work: Callable[[], object], ends_s: float, clock: Callable[[], float]) -> list[float]:
    """How long a piece of work took each time, in seconds, until a moment."""
    found = []
    while (at_s := clock()) < ends_s:
        work()
        found.append(clock() - at_s)
    return found


def _medians(times_s: Sequence[float]) -> list[float]:
    """The median of each `PRODUCTS_AT_ONCE` times in a row."""
    starts = range(0, len(times_s), PRODUCTS_AT_ONCE)
    return [median(times_s[start : start + PRODUCTS_AT_ONCE]) for start in starts]


def _shared(products_s: Sequence[float]) -> tuple[float, float]:
    """The share of products that a neighbour slowed, and how many times as long they took.

    Args:
        products_s: times of equal matrix products, in seconds; few of them tell nothing.
    """
    if len(products_s) < 1 / _ALONE:
        return 0.0, 1.0
    alone_s = sorted(products_s)[int(_ALONE * len(products_s))]
    slowed = [s / alone_s for s in products_s if s > SHARED * alone_s] if alone_s > 0 else []
    return len(slowed) / len(products_s), median(slowed) if slowed else 1.0


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
