"""What a benchmark binary is asked and what it answers, for all kinds of binaries."""

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

    Attributes:
        threads: threads on the CPU.
        runs: timed inferences.
        warmup_runs: inferences before them.
        warmup_s: least duration of the warm-up in seconds.
        call_s: duration in seconds after which the call makes no further inferences.
        cold: no warm-up and a single run.
        inquire: this is the first call of a session, which may ask for more facts than later ones.
        expected_ms: latency of a run, 0 if it is not known yet.
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
    """The result of one call.

    `latency_ms`: median or average latency of the `runs` inferences. `statistic`: which of the two
    it is, or "first run" of a cold call. `init_ms`: time of loading, including what a delegate
    compiles. `conditions`: more facts about the result.
    """

    latency_ms: float
    runs: int
    statistic: str
    init_ms: float = 0.0
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A model on the phone.

    `model`: its file on this host. `files`: names from `Tool.parts` -> paths on the phone.
    """

    model: Path
    files: Mapping[str, str]


class Tool(Protocol):
    """One kind of benchmark binary. Its methods do no I/O except for reading the model's file."""

    model_format: str
    """The format of the models that it runs."""
    label: str
    """What stands in a platform's name before the version of the binary."""

    def inspect(self, model: Path) -> None:
        """Check a model before it is copied to the phone.

        Raises:
            RuntimeFailure: MODEL_INVALID or MODEL_UNSUPPORTED.
        """
        ...

    def parts(self, model: Path, folder: Path) -> Mapping[str, Path]:
        """Return the files that the binary reads, by their names on the phone.

        It may write new files to `folder`.
        """
        ...

    def command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Return the arguments of one call."""
        ...

    def read(self, text: str, variant: Variant, call: BinaryRun) -> Report:
        """Read what a successful call printed.

        Raises:
            RuntimeFailure: MODEL_FAILED if the text has an unknown form, or another code if the
                binary printed an error although its exit code is 0.
        """
        ...

    def failure(self, text: str, code: int) -> RuntimeFailure:
        """Turn the text and the exit code of a failed call into a typed failure."""
        ...

    def profile_command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Return the arguments of a call that prints the times of single operators.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE if the binary cannot do that.
        """
        ...

    def layers(self, text: str, variant: Variant, model: Path) -> Sequence[LayerTime]:
        """Read the kernels from what a profiling call printed, in execution order if it has one.

        Raises:
            RuntimeFailure: as for `read`.
        """
        ...


_MEMORY = ("bad_alloc", "cannot allocate memory", "out of memory", "failed to allocate")


def plausible(latency_ms: float, low_ms: float, high_ms: float) -> bool:
    """Whether a latency lies between those of the fastest and the slowest run, up to rounding."""
    if not all(map(math.isfinite, (latency_ms, low_ms, high_ms))) or low_ms < 0:
        return False
    slack = 0.01 * high_ms + 0.02
    return low_ms - slack <= latency_ms <= high_ms + slack


def garbled(tool: str, reason: str, text: str) -> RuntimeFailure:
    """Return the failure for a printed text that cannot be read."""
    return RuntimeFailure("MODEL_FAILED", f"{tool} {reason}{said(text)}")


def said(text: str, lines: int = 3) -> str:
    """Return the last lines of what was printed, joined to one line for an error message."""
    last = [" ".join(line.split()) for line in text.splitlines() if line.strip()][-lines:]
    return "; it printed: " + " | ".join(last)[-400:] if last else "; it printed nothing"


def ended(tool: str, text: str, code: int) -> RuntimeFailure | None:
    """Return the failure that an exit code shows for all binaries; None if it shows none."""
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
