"""The table of `benchmarks.repeating.slow_core`, on made-up measurements whose truth is known."""

from __future__ import annotations

import pytest
from latfarm_predictors.measurement import Measurement, Outcome

from benchmarks.repeating.slow_core import IDLE, Rounds, learned, siblings_of, table, told

SLOW, FELT, ASSUMED = 1.8, 0.5, 0.8


def measured(model: str, number: int, slowdown: float, way: str) -> Measurement:
    timed_ms = 2.0 * slowdown**FELT
    return Measurement(
        f"{model}{number}{way}",
        model,
        "p",
        "bench",
        Outcome.OK,
        board_id="b",
        fingerprint="f",
        latency_ms=timed_ms / slowdown**ASSUMED,
        measured_at_s=float(number) + 0.5 * (way != IDLE),
        conditions={"slowdown": str(slowdown), "uncorrected_ms": str(timed_ms), "load_1m": "0.5"},
    )


def test_the_table_says_what_is_repaired() -> None:
    found: Rounds = {
        way: {
            model: [measured(model, number, slowdown, way) for number in range(40)]
            for model in ("a", "b")
        }
        for way, slowdown in ((IDLE, 1.0), ("sibling", SLOW))
    }
    assert learned(found, 0).shift == pytest.approx(FELT - ASSUMED, abs=1e-3)
    rows = {(row["disturbance"], row["model"]): row for row in table(found)}
    assert rows[IDLE, "a"]["off_timed"] == 0.0
    assert rows[IDLE, "a"]["repaired"] is None
    disturbed = rows["sibling", "b"]
    assert disturbed["idle_ms"] == 2.0
    assert disturbed["off_timed"] == pytest.approx(SLOW**FELT - 1.0)
    assert disturbed["off_corrected"] == pytest.approx(1.0 - SLOW ** (FELT - ASSUMED))
    assert disturbed["off_learned"] == pytest.approx(0.0, abs=1e-3)
    assert disturbed["repaired"] == pytest.approx(1.0, abs=0.01)
    assert told(found, "load_1m") == "0.5"
    assert told(found, "steal_share") == "unknown"


def test_a_core_is_not_its_own_sibling() -> None:
    assert 0 not in siblings_of(0)
    assert siblings_of(10**6) == []
