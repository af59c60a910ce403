"""`latfarm train` and the commands that put models in use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.cli.main import run
from latfarm_controller.training.model_register import read_register
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle

from tests.controller.reports.toy import PLATFORM
from tests.controller.training.toy_home import ToyHome, asked_networks, more_depthwise

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with one model, and with rows that are newer than it."""
    folder = tmp_path_factory.mktemp("trained")
    made = ToyHome(folder)
    made.characterise()
    made.ask(asked_networks())
    made.train()
    made.cover(more_depthwise(), "more", 2000.0)
    made.store.close()
    yield folder


@pytest.fixture
def home(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that home, which the commands use."""
    folder = Path(shutil.copytree(trained, tmp_path / "home"))
    monkeypatch.setenv("LATFARM_HOME", str(folder))
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    code = run([*words, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def add_worse(home: Path) -> Path:
    """A second bundle, for which a call takes thirty times as long."""
    folder = home / "bundles" / PLATFORM
    with_register = read_register(folder)
    assert with_register.promoted == "0001"
    predictor = load_bundle(folder / "0001.zip")
    predictor.call_overhead_ms *= 30
    save_bundle(predictor, folder / "0002.zip", read_provenance(folder / "0001.zip"))
    return folder


def test_train_since_a_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = told(capsys, "train", PLATFORM, "--since", "1", "--promote")
    assert first["trained"]
    assert (first["model"], first["parent"], first["state"]) == ("0002", "0001", "promoted")
    assert first["scores"]["networks"] == len(asked_networks())
    assert first["scores"]["frozen_set"].startswith("frozen-")
    assert told(capsys, "train", PLATFORM, "--since", "2") == {
        "platform": PLATFORM,
        "trained": False,
    }
    assert run(["train", PLATFORM, "--since", first["data_revision"]]) == 0
    assert "has no new rows since r" in capsys.readouterr().err
    assert len(list((home / "bundles" / PLATFORM).glob("*.zip"))) == 2
    models = told(capsys, "bundle", "list", "--all")
    assert [(m["model"], m["state"]) for m in models] == [
        ("0001", "retired"),
        ("0002", "promoted"),
    ]
    shown = told(capsys, "bundle", "show", PLATFORM, "--model", "1")
    assert (shown["model"], shown["state"]) == ("0001", "retired")
    assert shown["changes"][0]["action"] == "promote"


def test_train_from_all_rows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", PLATFORM]) == 0
    err = capsys.readouterr().err
    assert "model 0002 is a candidate; latfarm bundle promote puts it in use" in err
    assert "mean error" in err
    assert told(capsys, "bundle", "list") == [
        {"platform": PLATFORM, "path": str(home / "bundles" / PLATFORM / "0001.zip")}
    ]
    assert run(["train", PLATFORM, "--since", "yesterday"]) == 2
    assert "give the number of a model" in capsys.readouterr().err


def test_promote_and_roll_back(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_worse(home)
    assert run(["bundle", "promote", PLATFORM]) == 1
    assert "model 0002 of" in capsys.readouterr().err
    assert run(["bundle", "promote", PLATFORM, "--force"]) == 2
    assert "--force needs --reason" in capsys.readouterr().err
    found = told(capsys, "bundle", "promote", PLATFORM, "--force", "--reason", "a test")
    assert found["state"] == "promoted"
    assert not found["verdict"]["allowed"]
    assert run(["bundle", "show", PLATFORM]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "forced into use" in out
    assert "a test" in out
    assert told(capsys, "bundle", "rollback", PLATFORM) == {
        "platform": PLATFORM,
        "model": "0001",
        "replaced": "0002",
    }
    assert run(["bundle", "rollback", PLATFORM]) == 2
    assert "nothing to go back to" in capsys.readouterr().err
    assert run(["bundle", "list", "--all"]) == 0
    assert "retired" in capsys.readouterr().out


def test_remove_and_export_another_model(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = add_worse(home)
    assert run(["bundle", "export", PLATFORM, str(tmp_path / "out.zip"), "--model", "2"]) == 0
    assert (tmp_path / "out.zip").read_bytes() == (folder / "0002.zip").read_bytes()
    found = told(capsys, "bundle", "remove", PLATFORM, "--model", "0002")
    assert found["removed"] == [str(folder / "0002.zip")]
    assert found["bundle"] == str(folder / "0001.zip")
    # What is imported is judged too.
    assert run(["bundle", "import", str(tmp_path / "out.zip")]) == 0
    assert "is a candidate, and was not promoted" in " ".join(capsys.readouterr().err.split())
    assert read_register(folder).promoted == "0001"
