"""The correction for a slow core, learned from repeated measurements."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from latfarm_controller.campaigns.slow_core import LEAST_PAIRS, felt
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.slow_core import SlowCore, slowdown_of


def timed(model: int, at: float, slowdown: float | str, latency_ms: float) -> Measurement:
    return Measurement(
        f"{model}-{at}",
        f"model {model}",
        "p",
        "kernel",
        Outcome.OK,
        board_id="b",
        fingerprint="f",
        latency_ms=latency_ms,
        mad_ms=0.02 * latency_ms,
        session_ms=(latency_ms, 1.1 * latency_ms),
        measured_at_s=at,
        conditions={"slowdown": str(slowdown)},
    )


def repeats(left: float, count: int, noise: float = 0.03, seed: int = 0) -> list[Measurement]:
    """Each model at two slowdowns; the latency has the slowdown to the power of `left` in it."""
    draw = random.Random(seed)
    found = []
    for model in range(count):
        for at, slowdown in enumerate(draw.sample([1.0, 1.0 + draw.random(), 1.8], 2)):
            kept = slowdown**left * draw.lognormvariate(0.0, noise)
            found.append(timed(model, at, slowdown, 0.1 * (1 + model) * kept))
    return found


@pytest.mark.parametrize("left", [-0.25, 0.3])
def test_a_wrong_exponent_is_found_and_corrected(left: float) -> None:
    found = felt(repeats(left, 120))
    assert found.shift == pytest.approx(left, abs=0.05)
    assert found.pairs > LEAST_PAIRS
    mended = [found.settled(m) for m in repeats(left, 120)]
    assert felt(mended).shift == 0.0


def test_noise_few_pairs_and_equal_slowdowns_give_no_correction() -> None:
    assert felt(repeats(0.0, 120)).shift == 0.0
    assert felt(repeats(-0.3, 20)).shift == 0.0
    assert felt([timed(n // 2, n, 1.5, 1.0 + n % 2) for n in range(200)]).pairs == 0
    assert felt([]) == SlowCore()


def test_other_boards_outliers_and_failures_are_not_compared() -> None:
    for changed in (
        {"board_id": "another"},
        {"fingerprint": "another"},
        {"latency_ms": 1e4},
        {"latency_ms": None, "outcome": Outcome.MODEL_ERROR},
    ):
        mixed = [replace(m, **changed) if at % 2 else m for at, m in enumerate(repeats(-0.3, 120))]
        assert felt(mixed).pairs == 0


def test_all_latencies_of_a_measurement_are_corrected() -> None:
    core = SlowCore(-0.5, 0.01, 50)
    mended = core.settled(timed(0, 0.0, 4.0, 1.0))
    assert (mended.latency_ms, mended.mad_ms) == pytest.approx((2.0, 0.04))
    assert mended.session_ms == pytest.approx((2.0, 2.2))
    assert mended.min_ms is None
    for told in ("1", "0.5", "nan", "inf", "unknown"):
        quiet = timed(0, 0.0, told, 1.0)
        assert slowdown_of(quiet) == 1.0
        assert core.settled(quiet) is quiet
    assert SlowCore.from_json(core.to_json()) == core
    assert SlowCore.from_json(None) == SlowCore()


def test_sentinels_tell_where_nothing_else_was_repeated() -> None:
    draw = random.Random(2)
    marks = [
        timed(0, at, slowdown, 0.1 * slowdown**-0.3 * draw.lognormvariate(0.0, 0.02))
        for at, slowdown in enumerate(draw.choice([1.0, 1.4, 1.8]) for _ in range(90))
    ]
    found = felt(marks)
    assert found.pairs >= LEAST_PAIRS
    assert found.shift == pytest.approx(-0.3, abs=0.05)


def test_many_sentinels_do_not_speak_for_all_models() -> None:
    marks = [timed(999, at, 1.0 + 0.8 * (at % 2), 1.0) for at in range(200)]
    kernels = repeats(-0.3, 120)
    assert felt(marks).shift == 0.0, "the sentinel feels what was assumed"
    assert felt([*marks, *kernels]).shift == pytest.approx(-0.3, abs=0.06)
