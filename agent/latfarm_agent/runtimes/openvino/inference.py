"""What both APIs of OpenVINO have in common: running a request, and reading its kernels' times."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Sequence

from latfarm_agent.runtimes.base import RuntimeFailure

_PROFILE_WARMUP = 3
"""Runs before a profile whose times are not counted."""
_WINDOWS = 5
"""Number of stretches of runs for which a mean time is worked out, where only means are known."""

Failure = Callable[[Exception], RuntimeFailure]
"""Turns an exception that OpenVINO raised while a model ran into a typed failure."""


def infer(request: Any, failure: Failure) -> None:
    """Run one inference; inputs and outputs stay where they are.

    Args:
        request: a request whose inputs are filled; None if no model was prepared.
        failure: turns an exception of OpenVINO into a typed failure.

    Raises:
        RuntimeFailure: MODEL_FAILED without a request, otherwise what `failure` returns.
    """
    if request is None:
        raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
    try:
        request.infer()
    except Exception as error:
        raise failure(error) from error


def kernel_times(
    request: Any,
    runs: int,
    read: Callable[[Any], Iterable[tuple[str, float]]],
    failure: Failure,
    *,
    averages: bool,
) -> dict[str, list[float]]:
    """Return the times of each kernel in milliseconds.

    Args:
        request: a request of a model compiled for profiling, whose inputs are filled.
        runs: number of runs that count, after some that only warm up.
        read: returns the names and milliseconds of the kernels of the request's last run.
        failure: turns an exception of OpenVINO into a typed failure.
        averages: `read` returns the means of all runs so far, as OpenVINO's CPU plugins do. These
            include the first run, in which a kernel may bring its weights into another order. The
            result then has one time for each of a few stretches of runs, instead of one per run.

    Raises:
        RuntimeFailure: what `failure` returns.
    """
    told: list[dict[str, float]] = []
    try:
        for turn in range(_PROFILE_WARMUP + runs):
            request.infer()
            if turn >= _PROFILE_WARMUP or (averages and turn == _PROFILE_WARMUP - 1):
                told.append(dict(read(request)))
    except Exception as error:
        raise failure(error) from error
    if averages:
        told = _between(told, _PROFILE_WARMUP)
    times_ms: dict[str, list[float]] = {}
    for found in told:
        for name, spent_ms in found.items():
            times_ms.setdefault(name, []).append(spent_ms)
    return times_ms


def _between(told: Sequence[Mapping[str, float]], first: int) -> list[dict[str, float]]:
    """Work out the mean times of stretches of runs from the means of all runs so far.

    The means are in whole microseconds. Over a stretch of several runs this error is small; for a
    single run it would be as large as the time of a short kernel.

    Args:
        told: means after `first` runs, and after each further run.
        first: number of runs that the first entry of `told` covers.
    """
    stretches = min(_WINDOWS, len(told) - 1)
    ends = [round(i * (len(told) - 1) / stretches) for i in range(stretches + 1)]
    found = []
    for begin, end in zip(ends, ends[1:]):
        before, after = told[begin], told[end]
        found.append(
            {
                name: max(
                    ((first + end) * mean_ms - (first + begin) * before.get(name, 0.0))
                    / (end - begin),
                    0.0,
                )
                for name, mean_ms in after.items()
            }
        )
    return found
