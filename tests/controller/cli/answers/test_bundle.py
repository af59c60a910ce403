"""`latfarm bundle list` and `remove`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Latfarm = Callable[..., Any]


@pytest.fixture
def folder(home: Path) -> Path:
    made = home / "bundles" / "toy"
    made.mkdir(parents=True)
    for name in ("0001.zip", "0002.zip", "notes.txt"):
        (made / name).write_text(name)
    return made


def test_list_is_what_the_bare_command_tells(latfarm: Latfarm, folder: Path) -> None:
    told = json.loads(latfarm("bundle", "list", "--json").out)
    assert told == json.loads(latfarm("bundle", "--json").out)
    assert told == [{"platform": "toy", "path": str(folder / "0002.zip")}]


def test_the_newest_is_removed_and_the_one_before_is_used(latfarm: Latfarm, folder: Path) -> None:
    ended = latfarm("bundle", "remove", "-p", "toy")
    assert ended.code == 0
    assert f"toy now uses {folder / '0001.zip'}" in ended.err
    assert {path.name for path in folder.iterdir()} == {"0001.zip", "notes.txt"}


def test_all_are_removed(latfarm: Latfarm, folder: Path) -> None:
    told = json.loads(latfarm("bundle", "remove", "-p", "toy", "--all", "--json").out)
    assert [Path(path).name for path in told["removed"]] == ["0001.zip", "0002.zip"]
    assert told["bundle"] is None
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    ended = latfarm("bundle", "remove", "-p", "toy")
    assert ended.code == 2
    assert "there is no bundle for platform 'toy'" in ended.line
