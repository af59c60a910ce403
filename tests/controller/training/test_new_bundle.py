"""Bundles get their numbers when they are complete, whatever other processes do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.training.bundles import newest, promoted
from latfarm_controller.training.model_register import numbers_in
from latfarm_controller.training.new_bundle import numbered, unnumbered_bundle


def test_numbers_follow_the_order_in_which_bundles_are_complete(tmp_path: Path) -> None:
    with unnumbered_bundle(tmp_path, "p") as slow, unnumbered_bundle(tmp_path, "p") as fast:
        for path in (slow, fast):
            path.parent.mkdir(exist_ok=True)
            path.write_text(path.name)
        assert newest(tmp_path) == {}
        first, second = numbered(fast), numbered(slow)
    assert (first.name, second.name) == ("0001.zip", "0002.zip")
    assert (first.read_text(), second.read_text()) == (fast.name, slow.name)
    assert promoted(tmp_path) == {"p": first}, "the later one is a candidate"


def test_many_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    kept: list[str] = []
    begin = threading.Barrier(8)

    def make() -> None:
        with unnumbered_bundle(tmp_path, "p") as path:
            path.parent.mkdir(exist_ok=True)
            path.write_text("a bundle")
            begin.wait()
            kept.append(numbered(path).stem)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kept) == numbers_in(tmp_path / "p") == [f"{n:04d}" for n in range(1, 9)]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with unnumbered_bundle(tmp_path, "p") as path:
        path.parent.mkdir()
        path.write_text("a bundle that gets no number")
    assert list((tmp_path / "p").glob("*.zip")) == []
    with pytest.raises(UsageError, match="valid name"), unnumbered_bundle(tmp_path, "../p"):
        pass
    with unnumbered_bundle(tmp_path, "p") as path, pytest.raises(StoreError, match="0001"):
        numbered(path)
