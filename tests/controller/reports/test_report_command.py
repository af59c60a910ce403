"""`latfarm report` on a home with a platform: command, service, controller and store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from latfarm_controller.cli import main
from latfarm_controller.cli.answers import report as command
from latfarm_controller.errors import ControllerError
from latfarm_controller.reports.facts.platform_record import PlatformRecord
from latfarm_controller.reports.platform_report import platform_facts
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.reports import toy


@pytest.fixture
def home(lab: toy.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the toy platform's bundle, and a campaign with one failure."""
    graph = toy.conv(3, 8, 9)
    with DuckDBStore(tmp_path / "store.duckdb") as store:
        store.put_campaign(toy.campaign(state="failed", error="no board", outcome={}))
        bad = toy.failed(graph, "kernel", 1, "MODEL_TIMEOUT", "too slow")
        store.add_measurements(toy.CAMPAIGN, [(bad, graph)])
    shutil.copytree(lab.bundles, tmp_path / "bundles")
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path))
    monkeypatch.setenv("LATFARM_LOCAL_AGENT", "false")
    return tmp_path


def test_the_command_writes_the_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["report", "-p", toy.PLATFORM]) == 0
    path = home / "reports" / f"{toy.PLATFORM}.html"
    assert str(path) in capsys.readouterr().out
    html = path.read_text(encoding="utf-8")
    assert f"What is known about {toy.PLATFORM}" in html
    assert "MODEL_TIMEOUT" in html
    assert 'id="kernels"' in html


def test_the_same_facts_come_as_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = home / "deep" / "again.html"
    arguments = ["report", "-p", toy.PLATFORM, "--campaign", "toy", "--json", "-o", str(target)]
    assert main.run(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["platform"] == toy.PLATFORM
    assert facts["campaign"]["state"] == "failed"
    assert facts["failures"][0]["code"] == "MODEL_TIMEOUT"
    assert facts["kernels"]["methods"]["latfarm"]["count"] == 33
    assert "Campaign toy is failed: no board" in target.read_text(encoding="utf-8")


def test_who_asks_for_nothing_known_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["report", "-p", "no-such"]) == 2
    assert "nothing is known about platform 'no-such'" in capsys.readouterr().err
    assert not (home / "reports").exists() or not list((home / "reports").iterdir())


def test_a_strangers_platform_chooses_no_folder(home: Path) -> None:
    facts = platform_facts(PlatformRecord("../../etc/<b>"))
    path = command.write(facts)
    assert path.parent == home / "reports"
    assert path.name == "_.._etc_b_.html"


def test_no_fault_of_a_report_fails_its_campaign(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def report(self, _platform: str, _campaign: str) -> dict[str, object]:
            raise ControllerError("the disk is full")

    assert command.make(Broken(), "toy", "c") is None  # type: ignore[arg-type]
    assert (
        "the report could not be made: the disk is full; to try again: latfarm report -p toy"
        in capsys.readouterr().err
    )
