"""The secret by which boards know a home again."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from latfarm_controller.errors import UsageError
from latfarm_controller.holder import holder_id, holder_key


def test_it_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "holder"
    key = holder_key(path)
    assert len(key) == 32
    assert holder_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_others_could_read_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "holder"
    key = holder_key(path)
    path.chmod(0o644)
    assert holder_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["", "00", "no key at all\n", "\x00" * 32])
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "holder"
    path.write_text(damage)
    key = holder_key(path)
    assert len(key) == 32
    assert holder_key(path) == key


def test_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "holder").mkdir()
    with pytest.raises(UsageError, match="holder: cannot be read"):
        holder_key(tmp_path / "holder")


def test_each_board_is_shown_another_id() -> None:
    first, second = holder_id("0" * 32, "a"), holder_id("0" * 32, "b")
    assert first != second
    assert first == holder_id("0" * 32, "a")
    assert first != holder_id("1" * 32, "a")
    assert "0" * 32 not in first
    assert holder_id("", "a") == ""
