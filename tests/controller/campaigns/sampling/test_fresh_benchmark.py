"""`make bench-sampling-fresh` on a device whose latencies are known."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

import numpy as np
import pytest
from latfarm_controller.campaigns.sampling.base import Excluded
from latfarm_controller.testing.campaigns import SimulatedPlatform
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.models.trees.forest import Forest

from benchmarks.sampling import fresh, runs
from benchmarks.sampling.runs import RULES, SAMPLERS, Draw, draws_of, judge


class KnownDevice:
    """Answers with the exact latency of a kernel and 5 % of noise, and notes every question."""

    def __init__(self) -> None:
        self._board = SimulatedPlatform(rules=RULES)
        self._random = Random(0)
        self.asked: list[tuple[str, str]] = []

    async def latency_ms(self, kernel: Kernel, label: str) -> float | None:
        self.asked.append((label, kernel.kernel_id))
        exact_ms = self._board.exact_ms(kernel.graph)
        # Latencies without a pattern keep Algorithm 2 at work, whose forest predicts them badly.
        return exact_ms * self._random.choice((0.3, 3.0)) if label == "nn-meter" else exact_ms


def test_every_count_has_a_run_of_algorithm_2_in_the_papers_proportion() -> None:
    draws = draws_of([48, 96], Excluded(), 0)
    assert [(draw.name, draw.count) for draw in draws] == [
        ("random", 96),
        ("nn-meter", 48),
        ("nn-meter", 96),
        ("annette", 96),
        ("latfarm", 96),
    ]
    small, large = (draw for draw in draws if draw.name == "nn-meter")
    first, larger = small.next_kernels(200), large.next_kernels(200)
    assert (len(first), len(larger)) == (30, 60)
    shared = {kernel.kernel_id for kernel in first} & {kernel.kernel_id for kernel in larger}
    assert len(shared) >= 20, "draws of the prior are measured once for all runs"


def test_a_large_batch_is_divided_among_rounds() -> None:
    draw = draws_of([96], Excluded(), 0)[1]
    assert [len(draw.next_kernels(45)), len(draw.next_kernels(45))] == [45, 15]
    assert draw.drawn == 60


@pytest.mark.slow
def test_the_passes_of_judged_kernels_are_spread_over_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fresh, "BATCH", 6)
    monkeypatch.setattr(runs, "REGRESSORS", {"forest": Forest})
    device = KnownDevice()
    judged, joint = fresh.judged_kernels(10, 0)
    draws, passes = asyncio.run(fresh.measure(cast(fresh.Bench, device), [20, 32], judged, seed=0))
    assert passes.shape == (fresh.PASSES, 10)
    assert np.isfinite(passes).all()
    places = [at for at, (label, _) in enumerate(device.asked) if label.startswith("judged")]
    assert places[0] < len(device.asked) / 3
    assert places[-1] > 2 * len(device.asked) / 3
    for draw in draws:
        assert draw.drawn == draw.count == len(draw.samples)
    rows = judge(draws, judged, joint, passes.mean(axis=0), [20, 32])
    told = {(row["sampler"], row["count"]) for row in rows}
    assert told == {(name, count) for name in SAMPLERS for count in (20, 32)}
    assert all(0.0 <= row["within10_percent"] <= 100.0 for row in rows)


def test_a_run_that_has_no_more_kernels_ends() -> None:
    class Empty:
        def next_batch(self, samples: object) -> list[Kernel]:
            del samples
            return []

    draw = Draw("random", Empty(), 9)
    assert draw.next_kernels(5) == []
    assert draw.done
