"""The benchmark of budgets runs on simulated boards, resumes, and keeps rows and a plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kernels.survey import SETTINGS
from latfarm_controller.zoo import build
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.slow_core import SlowCore

from benchmarks.budget import curves, host
from benchmarks.budget.boards import BoardInProcess


@pytest.mark.slow
def test_a_quick_run_keeps_its_rows_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "budget.json"
    asked = ["--quick", "--simulate", "cpu", "--results", str(path)]
    assert curves.main(asked) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["platform"] == "cpu"
    assert row["budget"] == 60
    assert 40 <= row["measurements"] <= 60
    assert sum(row["stages"].values()) == row["measurements"]
    assert row["board_minutes"] > 0
    assert row["networks"] > 12
    assert 0 <= row["within10"] <= 100
    svg = path.with_suffix(".svg").read_text()
    assert "all measurements" in svg
    assert "board minutes" in svg
    before = path.read_text()
    capsys.readouterr()
    assert curves.main(asked) == 0
    assert path.read_text() == before
    assert "no limit" not in capsys.readouterr().out


def test_a_board_without_a_profiler_shows_no_layers() -> None:
    request = MeasurementRequest(
        build("squeezenet", resolution=64), "p", "kernel", SETTINGS, profile=True
    )
    shown, hidden = BoardInProcess("gpu", 1), BoardInProcess("gpu-hidden", 1)
    first, second = shown.measure(request), hidden.measure(request)
    assert len(first.layers) > 20
    assert not second.layers
    assert first.latency_ms == second.latency_ms
    assert first.latency_ms == pytest.approx(shown.exact_ms(request.graph), rel=0.05)
    assert shown.measure(request).latency_ms == first.latency_ms


def test_curves_are_means_over_seeds() -> None:
    rows = [
        {"platform": "p", "budget": 100, "measurements": 90 + 10 * seed, "within10": 50 + seed}
        for seed in (0, 2)
    ]
    rows.append({"platform": "p", "budget": curves.UNBOUNDED, "measurements": 9, "within10": 1})
    (line,) = curves.curves(rows, "measurements")
    assert line.points == [(100.0, 51.0)]


def test_the_truth_has_the_unit_of_the_predictor() -> None:
    slow = {"slowdown": "4", "uncorrected_ms": "7"}
    found = [
        Measurement("1", "h", "p", "network", Outcome.OK, latency_ms=3.0, conditions=slow),
        Measurement("2", "h", "p", "network", Outcome.OK, latency_ms=5.0),
        Measurement("3", "h", "p", "network", Outcome.MODEL_ERROR, error_code="NO"),
    ]
    names = {"h": "a network"}
    assert host.truth_ms(SlowCore(-0.5, 0.01, 50), found, names) == {"a network": 5.5}
    assert host.truth_ms(SlowCore(), found, names) == {"a network": 4.0}
