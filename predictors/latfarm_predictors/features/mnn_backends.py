"""The speeds that MNN assumes for processors (Jiang et al. 2020, appendix C).

The paper calls them FLOPS, but compares them with multiplications (Eq. 5), so they are named
`multiplications_per_ms` here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

GPU_GIGA: Mapping[str, float] = MappingProxyType(
    {
        "Mali-T860": 6.83,
        "Mali-T880": 6.83,
        "Mali-G51": 6.83,
        "Mali-G52": 6.83,
        "Mali-G71": 31.61,
        "Mali-G72": 31.61,
        "Mali-G76": 31.61,
        "Adreno (TM) 505": 3.19,
        "Adreno (TM) 506": 4.74,
        "Adreno (TM) 512": 14.23,
        "Adreno (TM) 530": 25.40,
        "Adreno (TM) 540": 42.74,
        "Adreno (TM) 615": 16.77,
        "Adreno (TM) 616": 18.77,
        "Adreno (TM) 618": 18.77,
        "Adreno (TM) 630": 42.74,
        "Adreno (TM) 640": 42.74,
    }
)
"""Speed by GPU in 10^9 FLOPS, from running MobileNet-v1 100 times (list of appendix C)."""

OTHER_GPU_GIGA = 4.0
"""Speed of a GPU that is not in the list, in 10^9 FLOPS (appendix C)."""

OTHER_CPU_GIGA = 2.0
"""Speed of a CPU with unknown clocks, in 10^9 FLOPS, for any number of threads."""

SCHEDULE_MS: Mapping[str, float] = MappingProxyType(
    {"opencl": 0.05, "opengl": 0.05, "vulkan": 0.01, "metal": 0.05}
)
"""Time in milliseconds to submit an op, by API. Metal is not in the paper: MNN's public Metal
backend has a constant 0.05 for every op."""


@dataclass(frozen=True, slots=True)
class MnnBackend:
    """A processor in Eq. 5: latency = MUL / FLOPS * 1000 + t_schedule, summed over ops.

    Attributes:
        name: for reports.
        multiplications_per_ms: the paper's FLOPS / 1000.
        schedule_ms: t_schedule, time to submit an op; 0 on a CPU.
        known: whether the clocks or the GPU are known; otherwise the speed is the paper's default.
    """

    name: str
    multiplications_per_ms: float
    schedule_ms: float = 0.0
    known: bool = True


def cpu(threads: int, clocks_mhz: Sequence[float] = ()) -> MnnBackend:
    """A CPU, whose speed is the sum of the highest clocks of its fastest cores, one per thread.

    Args:
        threads: number of threads; more than there are cores change nothing.
        clocks_mhz: highest clock of each core; empty if unknown, then the speed is 2 * 10^9
            (appendix C).

    Raises:
        ValueError: the number of threads, or a clock, is not positive.
    """
    if threads < 1 or any(clock <= 0 for clock in clocks_mhz):
        raise ValueError(f"{threads} threads at {list(clocks_mhz)} MHz: must be positive")
    if not clocks_mhz:
        return MnnBackend(f"CPU of unknown clock, {threads}t", OTHER_CPU_GIGA * 1e6, known=False)
    fastest = sorted(clocks_mhz, reverse=True)[:threads]
    return MnnBackend(f"CPU, {threads}t, {sum(fastest):.0f} MHz in sum", sum(fastest) * 1e3)


def gpu(name: str, api: str) -> MnnBackend:
    """A GPU by the name that its driver reports ("Adreno (TM) 540", "Mali-G72 MP12").

    Raises:
        ValueError: the API is unknown.
    """
    schedule_ms = SCHEDULE_MS.get(api.lower())
    if schedule_ms is None:
        raise ValueError(f"no API {api!r}; known: {', '.join(SCHEDULE_MS)}")
    wanted = _plain(name)
    found = next((giga for known, giga in GPU_GIGA.items() if _plain(known) in wanted), None)
    giga = OTHER_GPU_GIGA if found is None else found
    label = f"{name or 'unknown GPU'}, {api.lower()}"
    return MnnBackend(label, giga * 1e6, schedule_ms, found is not None)


def _plain(name: str) -> str:
    """A name reduced to letters and digits, so that "Adreno (TM) 540" equals "Adreno 540"."""
    return re.sub(r"\(tm\)|[^a-z0-9]", "", name.lower())
