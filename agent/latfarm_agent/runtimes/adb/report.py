"""What a benchmark binary is told, and what it answers: common to all kinds of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Protocol, Sequence

from latfarm_agent.runtimes.adb.options import Variant
from latfarm_agent.runtimes.base import LayerTime, RuntimeFailure


@dataclass(frozen=True)
class BinaryRun:
    """One call of a binary: a fresh process that loads a model, warms up, and runs it.

    `cold`: no warm-up and a single run. `inquire`: the first call of a session, which may ask for
    more than is asked for while timing. `expected_ms`: a run's latency where it is known already.
    """

    threads: int
    runs: int
    warmup_runs: int
    warmup_s: float
    call_s: float
    cold: bool = False
    inquire: bool = False
    expected_ms: float = 0.0


@dataclass(frozen=True)
class Report:
    """What one call gave.

    `statistic`: what `latency_ms` is of the `runs` that it stands for: "median" or "average".
    `init_ms`: loading, with a delegate's compilation. `conditions`: what else to say of it.
    """

    latency_ms: float
    runs: int
    statistic: str
    init_ms: float = 0.0
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A model that is on the phone: its file here, and the paths there of `Tool.parts`."""

    model: Path
    files: Mapping[str, str]


class Tool(Protocol):
    """One kind of benchmark binary. Decides without I/O, but for reading the model's file."""

    model_format: str
    label: str
    """In a platform's name, before the version."""

    def inspect(self, model: Path) -> None:
        """Look a model over before it is sent.

        Raises:
            RuntimeFailure: MODEL_INVALID or MODEL_UNSUPPORTED.
        """
        ...

    def parts(self, model: Path, folder: Path) -> Mapping[str, Path]:
        """The files that the binary reads, by their names on the phone; may write to `folder`."""
        ...

    def command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Arguments of one call."""
        ...

    def read(self, text: str, variant: Variant, call: BinaryRun) -> Report:
        """Read what a successful call printed.

        Raises:
            RuntimeFailure: MODEL_FAILED where that is not what this was written for, or a typed
                error that the binary told in spite of its exit code.
        """
        ...

    def failure(self, text: str, code: int) -> RuntimeFailure:
        """The typed failure for what a call printed that ended with an exit code above 0."""
        ...

    def profile_command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """As `command`, to be told times of single operators.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE.
        """
        ...

    def layers(self, text: str, variant: Variant, model: Path) -> Sequence[LayerTime]:
        """Kernels in execution order from what the profiling call printed.

        Raises:
            RuntimeFailure: see `read`.
        """
        ...


_MEMORY = ("bad_alloc", "cannot allocate memory", "out of memory", "failed to allocate")


def plausible(latency_ms: float, low_ms: float, high_ms: float) -> bool:
    """Whether a figure lies between its least and greatest run, up to the printing's rounding."""
    if not all(map(math.isfinite, (latency_ms, low_ms, high_ms))) or low_ms < 0:
        return False
    slack = 0.01 * high_ms + 0.02
    return low_ms - slack <= latency_ms <= high_ms + slack


def garbled(tool: str, reason: str, text: str) -> RuntimeFailure:
    """The failure for an answer that cannot be read."""
    return RuntimeFailure("MODEL_FAILED", f"{tool} {reason}{said(text)}")


def said(text: str, lines: int = 3) -> str:
    """The end of what was printed, in one line."""
    last = [" ".join(line.split()) for line in text.splitlines() if line.strip()][-lines:]
    return "; it printed: " + " | ".join(last)[-400:] if last else "; it printed nothing"


def ended(tool: str, text: str, code: int) -> RuntimeFailure | None:
    """The failure that every binary's exit code tells; None where its own words must."""
    low = text.lower()
    if code == 137 or any(sign in low for sign in _MEMORY):
        how = "by SIGKILL" if code == 137 else f"with exit status {code}"
        return RuntimeFailure("OUT_OF_MEMORY", f"memory ran out, {tool} ended {how}{said(text)}")
    if code in (126, 127):
        return RuntimeFailure(
            "RUNTIME_MISSING",
            f"the phone cannot run {tool}: wrong architecture or library?{said(text)}",
        )
    if 128 < code < 160:
        names = {132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 139: "SIGSEGV"}
        return RuntimeFailure(
            "MODEL_CRASHED",
            f"{tool} ended by {names.get(code, f'signal {code - 128}')}{said(text)}",
        )
    return None
