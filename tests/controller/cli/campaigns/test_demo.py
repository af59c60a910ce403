"""What the demo asks for and prints, without a board."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.kinds import STARTED_BY, make_campaign
from latfarm_controller.cli.campaigns import demo, demo_run
from latfarm_controller.cli.campaigns.demo_options import DemoOptions, measured
from latfarm_controller.cli.campaigns.demo_run import (
    LINEAGES,
    characterize_config,
    held_out_networks,
)
from latfarm_controller.cli.shell import connect, progress
from latfarm_controller.errors import UsageError
from latfarm_controller.reports.facts.network_rows import AccuracySummary, NetworkRow
from latfarm_controller.training import bundles
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.answer import Answer, KernelAnswer

WANTED = DemoOptions("", measured(500, None, None), 20, False, 0, "demo")


def row(name: str, passes_ms: list[float], predicted_ms: float) -> NetworkRow:
    kernel = KernelAnswer("Conv", ("c",), {}, predicted_ms, (1.0, 2.0), "gp")
    interval = (0.9 * predicted_ms, 1.1 * predicted_ms)
    answer = Answer(name, "p", predicted_ms, interval, 0.9, True, (kernel,), (), "0001")
    mean_ms = sum(passes_ms) / len(passes_ms)
    return NetworkRow(name, mean_ms, 1.5 * mean_ms, passes_ms, answer)


def printed(rows: list[NetworkRow], capsys: pytest.CaptureFixture[str]) -> str:
    summary = AccuracySummary.of(rows).to_json()
    record: dict[str, Any] = {
        "platform": "sim",
        "summary": summary,
        "measurements": 9,
        "board_s": 1.0,
        "wall_s": 2.0,
    }
    demo._print(rows, record)
    return " ".join(capsys.readouterr().out.split())


def test_related_families_are_left_out_of_all_draws() -> None:
    encoded = [graph.to_json() for graph in held_out_networks()[:1]]
    config = characterize_config(WANTED, encoded)
    make_campaign("characterize", "sim", config)  # raises an error for a wrong key
    assert config["exclude_kernel_lineages"] == config["exclude_lineages"] == list(LINEAGES)
    kept = zoo.calibration_families(LINEAGES)
    assert len(zoo.calibration_families()) - len(kept) >= 11
    for name in ("resnet18", "alexnet", "googlenet", "repvgg-a0"):
        assert name not in kept


def test_the_demo_judges_the_bundle_that_it_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another one may be in use: networks of an earlier demo decide which of both is promoted."""
    made = tmp_path / "bundles" / "sim" / "0002.zip"
    opened: list[Path] = []

    def load(path: Path) -> SimpleNamespace:
        opened.append(path)
        return SimpleNamespace(predict=lambda graph: graph.name, energy=None)

    def unknown(name: str) -> None:
        raise UsageError(f"there is no campaign {name}")

    done = SimpleNamespace(campaign_id="c", outcome={"bundle": str(made)}, measurements=0)
    client = SimpleNamespace(campaign=unknown, start=lambda *_: done, boards=list, hosted=False)
    rounds = SimpleNamespace(
        started=0, on_stage=None, before=lambda _: done, after=list[Measurement]
    )
    monkeypatch.setattr(bundles, "load", load)
    monkeypatch.setattr(connect, "controller", lambda: nullcontext(client))
    monkeypatch.setattr(progress, "follow", lambda *_: done)
    monkeypatch.setattr(demo_run, "JudgingRounds", lambda *_, **__: rounds)
    monkeypatch.setattr(demo_run, "plan_of", lambda *_, **__: None)
    monkeypatch.setattr(demo_run, "first_line", lambda *_, **__: None)
    monkeypatch.setattr(demo_run, "_rows", lambda *_: [])
    config = SimpleNamespace(home=tmp_path, bundles_dir=tmp_path / "bundles")
    demo_run.run_demo(replace(WANTED, platform="sim"), config)  # type: ignore[arg-type]
    assert opened == [made]


def test_a_demo_that_is_continued_keeps_the_limits_that_it_began_with() -> None:
    """The controller stores with a configuration who started the campaign."""
    wanted = replace(WANTED, platform="sim", minutes=10.0)
    config = characterize_config(wanted, [graph.to_json() for graph in held_out_networks()[:1]])
    limited = config | {"budget_minutes": 3.0}
    stored = json.loads(json.dumps(limited)) | {STARTED_BY: "unix:ann"}
    found = SimpleNamespace(kind="characterize", platform="sim", config=stored)
    client: Any = SimpleNamespace(campaign=lambda _: found)
    known = demo_run._known(client, "sim", wanted, config)
    assert known == json.loads(json.dumps(limited))
    assert demo_run._known(client, "sim", wanted, config | {"seed": 7}) is None


def test_errors_of_the_measured_and_a_perfect_predictor_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [row("a", [10.0, 10.0, 10.0, 12.0], 10.0), row("b", [20.0] * 4, 25.0)]
    told = printed(rows, capsys)
    assert "a 15.75 10.50 ±0.50" in told, "as timed, then corrected"
    assert "20.00 ±0.00" in told
    # Of the first network, the halves of the passes differ by 1 ms in every split, so that a
    # perfect predictor is within 5 % of their mean; of the second they do not differ.
    assert "within 5 and 10 %: 50% and 50%" in told
    assert "against means of 4 passes with a standard error of 2.4%: 100% and 100%" in told


def test_single_passes_tell_no_noise(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed([row("a", [10.0], 10.0)], capsys)
    assert "±" not in told
    assert "perfect" not in told


def test_a_demo_that_took_too_long_says_so() -> None:
    assert demo.lateness(10.0, 599.0) == ""
    assert demo.lateness(0.0, 9000.0) == "", "it may take any time"
    told = demo.lateness(6.0, 624.0)
    assert told.startswith("it took 10.4 minutes instead of 6: ")
