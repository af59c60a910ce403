"""What both APIs of OpenVINO have in common: a request that is inferred, and its kernels' times."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from latfarm_agent.runtimes.base import RuntimeFailure

_PROFILE_WARMUP = 3

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
) -> dict[str, list[float]]:
    """Milliseconds of each kernel, one for each of so many runs that it was told in.

    Args:
        request: of a model compiled for profiling, with its inputs filled.
        runs: how many are told; some before them warm up.
        read: names and milliseconds of the kernels of the request's last run.
        failure: see `Failure`.

    Raises:
        RuntimeFailure: what `failure` tells.
    """
    times_ms: dict[str, list[float]] = {}
    try:
        for turn in range(_PROFILE_WARMUP + runs):
            request.infer()
            if turn < _PROFILE_WARMUP:
                continue
            for name, spent_ms in read(request):
                times_ms.setdefault(name, []).append(spent_ms)
    except Exception as error:
        raise failure(error) from error
    return times_ms
