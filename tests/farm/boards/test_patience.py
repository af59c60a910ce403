"""Waits of farm tests grow with the load of the host, and end all the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.farm.boards import patience
from tests.farm.boards.patience import LEAST_SHARE, scaled_s, share
from tests.farm.lab import processes


def load(folder: Path, runnable: float) -> Path:
    """A file like /proc/loadavg."""
    file = folder / "loadavg"
    file.write_text(f"{runnable:.2f} 1.00 1.00 1/100 4711\n")
    return file


def test_a_quiet_host_gives_a_whole_core(tmp_path: Path) -> None:
    assert share(load(tmp_path, 0.0)) == 1.0
    assert share(tmp_path / "missing") == 1.0


def test_a_busy_host_gives_a_part_of_a_core(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert share(load(tmp_path, 4.0 * cores)) == pytest.approx(0.25)
    assert share(load(tmp_path, 1000.0 * cores)) == LEAST_SHARE


def test_limits_grow_as_shares_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "share", lambda: 0.25)
    assert scaled_s(30.0) == 120.0


@pytest.mark.parametrize(("part", "looks"), [(1.0, 6), (0.5, 11)])
def test_time_counts_by_the_share_of_a_core(
    monkeypatch: pytest.MonkeyPatch, part: float, looks: int
) -> None:
    now_s = 0.0
    looked = 0

    def sleep(wait_s: float) -> None:
        nonlocal now_s
        now_s += wait_s

    def never() -> bool:
        nonlocal looked
        looked += 1
        return False

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(processes, "LOOK_S", 0.25)  # sums of it are exact
    monkeypatch.setattr(patience, "share", lambda: part)
    with pytest.raises(AssertionError, match="waited in vain: the moon"):
        processes.until(never, "the moon", give_up_s=1.25)
    assert looked == looks
