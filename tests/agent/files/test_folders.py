"""Removing folders that a process which is still running in them changes meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.files import folders
from latfarm_agent.files.folders import remove


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    made = tmp_path / "precious"
    made.mkdir(mode=0o500)
    made.chmod(0o700)
    (made / "key").write_text("secret")
    made.chmod(0o500)
    return made


def test_a_deep_tree_without_permissions_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    inner = top
    for _ in range(200):
        inner = inner / "deep"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    closed = top / "closed" / "inner"
    closed.mkdir(parents=True)
    (closed / "file").write_text("x")
    for folder in (closed, closed.parent, top):
        folder.chmod(0)
    remove(top)
    assert not top.exists()


def test_links_are_removed_and_what_they_name_stays(tmp_path: Path, precious: Path) -> None:
    top = tmp_path / "top"
    (top / "inner").mkdir(parents=True)
    (top / "link").symlink_to(precious)
    (top / "inner" / "link").symlink_to(precious)
    remove(top)
    assert not top.exists()
    alone = tmp_path / "alone"
    alone.symlink_to(precious)
    remove(alone)
    assert not alone.is_symlink()
    assert [path.name for path in precious.iterdir()] == ["key"]
    assert precious.stat().st_mode & 0o777 == 0o500


@pytest.mark.parametrize("before", [1, 2, 3, 4, 5, 6])
def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Before one of the calls that open something, the inner folder is exchanged for a link."""
    top = tmp_path / "top"
    (top / "inner" / "more").mkdir(parents=True)
    real, calls = os.open, 0

    def opened(*args: Any, **more: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == before and (top / "inner").is_dir() and not (top / "inner").is_symlink():
            (top / "inner").rename(top / "aside")
            (top / "inner").symlink_to(precious)
        return real(*args, **more)

    monkeypatch.setattr(os, "open", opened)
    remove(top)
    assert [path.name for path in precious.iterdir()] == ["key"]
    assert precious.stat().st_mode & 0o777 == 0o500
    assert not top.exists()


def test_a_folder_that_is_filled_without_end_is_left_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "file").touch()
    monkeypatch.setattr(folders, "_LONGEST_S", 0.05)
    real = os.unlink

    def unlinked(name: str, **more: Any) -> None:
        real(name, **more)
        (top / name).touch()

    monkeypatch.setattr(os, "unlink", unlinked)
    remove(top)
    assert (top / "file").exists()
