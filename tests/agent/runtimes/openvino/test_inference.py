"""Kernel times from engines that report each run, and from engines that report running means."""

from __future__ import annotations

from typing import Iterator

import pytest
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.openvino.inference import kernel_times
from latfarm_agent.runtimes.trace import middle_mean


def failure(error: Exception) -> RuntimeFailure:
    return RuntimeFailure("MODEL_FAILED", str(error))


class Request:
    """A kernel whose first run takes far longer, for example because it reorders its weights."""

    def __init__(self, mean: bool, late: int = -1) -> None:
        self._mean = mean
        self._late = late
        self._spent_us: list[int] = []

    def infer(self) -> None:
        turn = len(self._spent_us)
        self._spent_us.append(200_000 if turn == 0 else 4000 if turn == self._late else 47)

    def told(self) -> Iterator[tuple[str, float]]:
        ran = self._spent_us
        yield "fc", (sum(ran) // len(ran) if self._mean else ran[-1]) / 1e3


@pytest.mark.parametrize("runs", [1, 3, 10, 30])
@pytest.mark.parametrize("mean", [False, True], ids=["last", "mean"])
def test_the_first_run_is_in_no_time(runs: int, mean: bool) -> None:
    times = kernel_times(Request(mean), runs, Request.told, failure, averages=mean)
    few_us = 2 if runs > 3 else 8  # the means are whole microseconds
    assert middle_mean(times["fc"]) == pytest.approx(0.047, abs=few_us * 1e-3)
    assert len(times["fc"]) == (min(runs, 5) if mean else runs)


@pytest.mark.parametrize("mean", [False, True], ids=["last", "mean"])
def test_one_late_run_changes_little(mean: bool) -> None:
    times = kernel_times(Request(mean, late=15), 30, Request.told, failure, averages=mean)
    assert middle_mean(times["fc"]) == pytest.approx(0.047, abs=3e-3)


def test_a_run_that_fails_says_so() -> None:
    class Broken(Request):
        def infer(self) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeFailure, match="no"):
        kernel_times(Broken(True), 3, Request.told, failure, averages=True)
