"""The fuzzer of references in models finds what a careless check would miss."""

from __future__ import annotations

import pytest
from latfarm_agent.runtimes.onnx import outside

from benchmarks.fuzzing.outside import run

CASES = 300


def test_no_reference_is_missed() -> None:
    report = run(CASES, 1)
    assert report.outcomes.total() == CASES
    assert not report.violations
    assert report.outcomes["refused"] > CASES // 4
    assert report.outcomes["accepted"] > CASES // 20


def test_a_check_that_forgets_functions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    careless = dict(outside._INNER)
    careless[outside.MODEL] = {7: outside.GRAPH}
    monkeypatch.setattr(outside, "_INNER", careless)
    assert any("a reference is accepted" in line for line in run(CASES, 1).violations)
