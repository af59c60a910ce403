"""`latfarm train` and the commands that put models in use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.training.model_register import keep_register, read_register
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle

from tests.controller.reports.toy import PLATFORM
from tests.controller.training.toy_home import ToyHome, asked_networks, more_depthwise

pytestmark = pytest.mark.slow

Latfarm = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one model, and with rows that are newer than it."""
    folder = tmp_path_factory.mktemp("trained")
    made = ToyHome(folder)
    made.characterise()
    made.ask(asked_networks())
    made.train()
    made.cover(more_depthwise(), "more", 2000.0)
    made.store.close()
    return folder


@pytest.fixture
def home(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that home, which the commands use."""
    folder = Path(shutil.copytree(trained, tmp_path / "home"))
    monkeypatch.setenv("LATFARM_LOCAL_AGENT", "false")
    return folder


def told(ended: Any) -> Any:
    """What a command prints as JSON."""
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def add_worse(home: Path) -> Path:
    """A second bundle, for which a call takes thirty times as long."""
    folder = home / "bundles" / PLATFORM
    assert read_register(folder).promoted == "0001"
    keep_register(folder)
    predictor = load_bundle(folder / "0001.zip")
    predictor.call_overhead_ms *= 30
    save_bundle(predictor, folder / "0002.zip", read_provenance(folder / "0001.zip"))
    return folder


def test_train_since_a_model(latfarm: Latfarm, home: Path) -> None:
    first = told(latfarm("train", "-p", PLATFORM, "--since", "1", "--promote", "--json"))
    assert first["trained"]
    assert (first["model"], first["parent"], first["state"]) == ("0002", "0001", "promoted")
    assert first["scores"]["networks"] == len(asked_networks())
    assert first["scores"]["frozen_set"].startswith("frozen-")
    nothing = {"platform": PLATFORM, "trained": False}
    assert told(latfarm("train", "-p", PLATFORM, "--since", "2", "--json")) == nothing
    ended = latfarm("train", "-p", PLATFORM, "--since", first["data_revision"])
    assert ended.code == 0
    assert "has no new rows since r" in ended.err
    assert len(list((home / "bundles" / PLATFORM).glob("*.zip"))) == 2
    models = told(latfarm("bundle", "list", "--all", "--json"))
    states = [(model["model"], model["state"]) for model in models]
    assert states == [("0001", "retired"), ("0002", "promoted")]
    shown = told(latfarm("bundle", "show", "-p", PLATFORM, "--model", "1", "--json"))
    assert (shown["model"], shown["state"]) == ("0001", "retired")
    assert shown["changes"][0]["action"] == "found"


def test_train_from_all_rows(latfarm: Latfarm, home: Path) -> None:
    ended = latfarm("train", "-p", PLATFORM)
    assert ended.code == 0, ended.err
    err = " ".join(ended.err.split())
    assert "model 0002 is a candidate; latfarm bundle promote puts it in use" in err
    assert "mean error" in err
    assert "\\n" not in err
    assert told(latfarm("bundle", "list", "--json")) == [
        {"platform": PLATFORM, "path": str(home / "bundles" / PLATFORM / "0001.zip")}
    ]
    wrong = latfarm("train", "-p", PLATFORM, "--since", "yesterday")
    assert wrong.code == 2
    assert "give the number of a model" in wrong.line


def test_promote_and_roll_back(latfarm: Latfarm, home: Path) -> None:
    add_worse(home)
    refused = latfarm("bundle", "promote", "-p", PLATFORM)
    assert refused.code == 1
    assert "is not promoted: its mean error is" in refused.line
    bare = latfarm("bundle", "promote", "-p", PLATFORM, "--force")
    assert bare.code == 2
    assert "--force needs --reason" in bare.line
    forced = ("--force", "--reason", "a test", "--json")
    found = told(latfarm("bundle", "promote", "-p", PLATFORM, *forced))
    assert found["state"] == "promoted"
    assert not found["verdict"]["allowed"]
    shown = " ".join(latfarm("bundle", "show", "-p", PLATFORM).out.split())
    assert "forced into use" in shown
    assert "a test" in shown
    assert told(latfarm("bundle", "rollback", "-p", PLATFORM, "--json")) == {
        "platform": PLATFORM,
        "model": "0001",
        "replaced": "0002",
    }
    last = latfarm("bundle", "rollback", "-p", PLATFORM)
    assert last.code == 2
    assert "nothing to go back to" in last.line
    assert "retired" in latfarm("bundle", "list", "--all").out


def test_remove_and_export_another_model(latfarm: Latfarm, home: Path, tmp_path: Path) -> None:
    folder, out = add_worse(home), tmp_path / "out.zip"
    assert latfarm("bundle", "export", PLATFORM, out, "--model", "2").code == 0
    assert out.read_bytes() == (folder / "0002.zip").read_bytes()
    found = told(latfarm("bundle", "remove", "-p", PLATFORM, "--model", "0002", "--json"))
    assert found["removed"] == [str(folder / "0002.zip")]
    assert found["bundle"] == str(folder / "0001.zip")
    # What is imported is judged too.
    ended = latfarm("bundle", "import", out)
    assert ended.code == 0
    assert "is a candidate, and was not promoted" in " ".join(ended.err.split())
    assert read_register(folder).promoted == "0001"
