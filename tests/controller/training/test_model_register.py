"""The register of models: one is in use, whatever happens, and all changes can be undone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.training import bundles
from latfarm_controller.training.model_register import (
    FILE,
    ModelRecord,
    ModelRegister,
    changed_register,
    keep_register,
    read_register,
)

KILLED = """
import os, signal, sys
from pathlib import Path
from latfarm_controller.training.model_register import changed_register

folder, moment = Path(sys.argv[1]), sys.argv[2]
replace, fsync = Path.replace, os.fsync

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def replaced(path, goal):
    if moment == "before":
        kill()
    replace(path, goal)
    kill()

if moment == "while it is written":
    Path.write_text = kill
if moment == "before it is on disk":
    os.fsync = kill
Path.replace = replaced
with changed_register(folder) as box:
    box[0] = box[0].promote("0002", at_s=2.0)
"""
"""Promotes a model, and is killed at a certain moment."""


def put(folder: Path, *numbers: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (folder / f"{number}.zip").write_text(number)
    return folder


def states(folder: Path) -> dict[str, str]:
    return {name: model.state for name, model in read_register(folder).models.items()}


def promote(folder: Path, number: str) -> None:
    with changed_register(folder) as box:
        box[0] = box[0].promote(number, at_s=1.0)


def test_in_an_old_home_the_newest_bundle_is_in_use(tmp_path: Path) -> None:
    folder = put(tmp_path / "p", "0009", "0010")
    assert states(folder) == {"0009": "retired", "0010": "promoted"}
    assert not (folder / FILE).exists()
    assert bundles.promoted(tmp_path) == {"p": folder / "0010.zip"}
    assert bundles.choose(tmp_path, "p", "9") == folder / "0009.zip"
    with pytest.raises(UsageError, match="no model '7' of p; its models are: 0009, 0010"):
        bundles.choose(tmp_path, "p", "7")
    # An old home can be rolled back too: each bundle was in use until the next one came.
    with changed_register(folder) as box:
        box[0] = box[0].rollback(at_s=1.0)
    assert bundles.choose(tmp_path, "p") == folder / "0009.zip"


def test_a_new_bundle_waits_once_there_is_a_register(tmp_path: Path) -> None:
    folder = put(tmp_path / "p", "0001")
    keep_register(folder)
    put(folder, "0002")
    assert states(folder) == {"0001": "promoted", "0002": "candidate"}
    assert bundles.choose(tmp_path, "p").stem == "0001"
    assert bundles.newest(tmp_path)["p"].stem == "0002"
    promote(folder, "0002")
    assert states(folder) == {"0001": "retired", "0002": "promoted"}
    with pytest.raises(UsageError, match="there is no model '0003'; the models here are: 0001"):
        promote(folder, "0003")
    assert states(folder) == {"0001": "retired", "0002": "promoted"}
    keep_register(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_rollback_goes_back_step_by_step(tmp_path: Path) -> None:
    folder = put(tmp_path / "p", "0001")
    keep_register(folder)
    put(folder, "0002", "0003")
    for number in ("0002", "0003"):
        promote(folder, number)
    assert read_register(folder).earlier == ("0002", "0001")
    for number in ("0002", "0001"):
        with changed_register(folder) as box:
            box[0] = box[0].rollback(at_s=2.0, reason="it was wrong")
        assert read_register(folder).promoted == number
    with pytest.raises(UsageError, match="no model was in use before 0001"):
        read_register(folder).rollback(at_s=3.0)
    promote(folder, "0003")
    assert read_register(folder).earlier == ("0001",)
    told = [(c.action, c.model, c.replaced) for c in read_register(folder).history]
    assert told == [
        ("found", "0001", ""),
        ("promote", "0002", "0001"),
        ("promote", "0003", "0002"),
        ("rollback", "0002", "0003"),
        ("rollback", "0001", "0002"),
        ("promote", "0003", "0001"),
    ]


def test_removing_the_bundle_in_use_goes_back(tmp_path: Path) -> None:
    folder = put(tmp_path / "p", "0001")
    keep_register(folder)
    put(folder, "0002", "0003")
    promote(folder, "0003")
    assert bundles.remove(tmp_path, "p") == [folder / "0003.zip"]
    assert bundles.choose(tmp_path, "p").stem == "0001"
    # The number is not used again, because the history still names it.
    assert bundles.next_path(tmp_path, "p").name == "0004.zip"
    assert bundles.remove(tmp_path, "p", number="2") == [folder / "0002.zip"]
    assert bundles.choose(tmp_path, "p").stem == "0001"
    assert bundles.remove(tmp_path, "p", every=True) == [folder / "0001.zip"]
    assert bundles.promoted(tmp_path) == {}
    put(folder, "0004")
    assert states(folder) == {"0004": "promoted"}, "as the first bundle of a home"


def test_a_bundle_that_somebody_deleted_is_not_in_use(tmp_path: Path) -> None:
    folder = put(tmp_path / "p", "0001")
    keep_register(folder)
    put(folder, "0002")
    promote(folder, "0002")
    (folder / "0002.zip").unlink()
    assert states(folder) == {"0001": "promoted"}
    assert bundles.choose(tmp_path, "p").stem == "0001"


@pytest.mark.parametrize(
    "moment", ["while it is written", "before it is on disk", "before", "after"]
)
def test_a_promotion_that_is_killed_is_whole_or_not_at_all(tmp_path: Path, moment: str) -> None:
    folder = put(tmp_path / "p", "0001")
    keep_register(folder)
    put(folder, "0002")
    done = subprocess.run([sys.executable, "-c", KILLED, folder, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_register(folder).promoted == ("0002" if moment == "after" else "0001")
    # Nobody has to clean up: the lock went with the process.
    promote(folder, "0002")
    assert read_register(folder).promoted == "0002"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "latfarm-models", "version": 2, "models": {}, "history": []}',
        '{"format": "latfarm-models", "version": 1, "models": {"x": {}}, "history": []}',
        '{"format": "latfarm-models", "version": 1, "models": 3, "history": []}',
        '{"format": "latfarm-models", "version": 1, "models": {}, "history": [{"no": 1}]}',
        '{"format": "latfarm-models", "version": 1, "history": [], '
        '"models": {"1": {"state": "promoted"}, "2": {"state": "promoted"}}}',
    ],
)
def test_a_damaged_register_is_told_and_not_guessed(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = put(tmp_path / "p", "0001")
    put(tmp_path / "q", "0001")
    (folder / FILE).write_text(text)
    with pytest.raises(StoreError, match=r"models\.json is no register of models .*move it away"):
        bundles.choose(tmp_path, "p")
    with pytest.raises(StoreError), changed_register(folder):
        pass
    assert (folder / FILE).read_text() == text
    assert list(bundles.promoted(tmp_path)) == ["q"], "other platforms go on"
    assert "no bundle of p is used" in caplog.text
    (folder / FILE).unlink()
    assert bundles.choose(tmp_path, "p").stem == "0001"


def test_a_register_survives_its_file(tmp_path: Path) -> None:
    folder = put(tmp_path / "p", "0001", "0002")
    scores = {"frozen_set": "f", "errors": {"n": 0.1}, "covered": {"n": True}}
    with changed_register(folder) as box:
        model = ModelRecord("0001", "retired", 5.0, "0002", "r12", scores)
        box[0] = box[0].with_model(model)
        kept = box[0].promote("0001", at_s=7.0, reason="a reason", forced=True)
        box[0] = kept
    again = read_register(folder)
    assert again == kept
    assert again.history[-1].forced
    assert ModelRegister.from_json(json.loads((folder / FILE).read_text())) == kept
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600
