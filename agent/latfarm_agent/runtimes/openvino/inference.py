"""What both APIs of OpenVINO have in common: a request that is inferred, and its kernels' times."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Sequence

from latfarm_agent.runtimes.base import RuntimeFailure

_PROFILE_WARMUP = 3
_WINDOWS = 5

Failure = Callable[[Exception], RuntimeFailure]
"""The typed failure for an exception of the engine, raised while a model ran."""


def infer(request: Any, failure: Failure) -> None:
    """One inference; inputs and outputs stay where they are.

    Args:
        request: with its inputs filled; None: nothing was prepared.
        failure: see `Failure`.

    Raises:
        RuntimeFailure: MODEL_FAILED without a request, else what `failure` tells.
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
    """Milliseconds of each kernel, one for each of so many runs that it was told in.

    Args:
        request: of a model compiled for profiling, with its inputs filled.
        runs: how many are told; some before them warm up.
        read: names and milliseconds of the kernels of the request's last run.
        failure: see `Failure`.
        averages: what is read is the mean of all runs so far, the first one included, in which a
            kernel may order its weights anew. So tell the CPU's plugins. Times are then those of a
            few stretches of runs.

    Raises:
        RuntimeFailure: what `failure` tells.
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
    """Mean times of stretches of runs, from means of all runs up to each.

    Means are told in whole microseconds: over a stretch of some runs that is little, of one run it
    would be as much as short kernels take.

    Args:
        told: after `first` runs, and after each further one.
        first: how many runs the first of them is about.
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
