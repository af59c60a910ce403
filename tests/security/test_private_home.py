"""The home is its owner's alone, whatever the umask is under which commands run."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import (
    callers_umask,
    private_folder,
    private_home,
    private_umask,
)

pytestmark = pytest.mark.timeout(300)
UMASKS = pytest.mark.parametrize("umask", [0o022, 0o002, 0o000], ids=["022", "002", "000"])
LATFARM = (sys.executable, "-m", "latfarm_controller.cli.main")


def environment(home: Path) -> Mapping[str, str]:
    return {**os.environ, "LATFARM_HOME": str(home), "LATFARM_LOCAL_AGENT": "0"}


def latfarm(home: Path, umask: int, *words: str) -> str:
    """Run a command with a umask; returns what it prints on standard error."""
    done = subprocess.run(
        [*LATFARM, *words],
        env=environment(home),
        umask=umask,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@contextlib.contextmanager
def serving(home: Path, umask: int) -> Iterator[None]:
    """Run `latfarm serve` during the block."""
    with subprocess.Popen(
        [*LATFARM, "serve"],
        env=environment(home),
        umask=umask,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stderr is not None
            assert "latfarm serves on" in process.stderr.readline()
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def modes(home: Path) -> dict[str, str]:
    """The permissions of everything in the home that differ from 0700 and 0600."""
    odd = {}
    for path in [home, *home.rglob("*")]:
        found = path.lstat().st_mode
        wanted = 0o700 if stat.S_ISDIR(found) else 0o600
        if stat.S_IMODE(found) != wanted:
            odd[str(path.relative_to(home))] = oct(stat.S_IMODE(found))
    return odd


def names(home: Path) -> set[str]:
    return {path.name for path in home.rglob("*")}


@UMASKS
def test_nothing_in_a_home_can_be_read_by_others(tmp_path: Path, umask: int) -> None:
    home = tmp_path / "new" / "home"
    latfarm(home, umask, "certs", "init")
    assert modes(home) == {}
    with serving(home, umask):
        assert modes(home) == {}
        assert {"controller.sock", "store.duckdb", "controller.lock", "ca.key"} <= names(home)
    other = tmp_path / "other"
    latfarm(other, umask, "boards", "add", "toy", "127.0.0.1:1")
    assert modes(other) == {}
    assert "boards.json" in names(other)


def test_a_home_that_was_open_is_put_right_and_it_is_said_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    latfarm(home, 0o022, "certs", "init")
    latfarm(home, 0o022, "boards", "add", "toy", "127.0.0.1:1")
    mine = home / "mine.txt"
    mine.touch()
    for path in [home, *home.rglob("*")]:
        path.chmod(0o775 if path.is_dir() else 0o664)
    told = latfarm(home, 0o022, "boards", "events")
    assert told.count("it is private now") == 1
    assert "other users of this machine could change what is in" in told
    assert modes(home) == {"mine.txt": "0o664"}, "other files than latfarm's stay as they are"
    mine.chmod(0o600)
    assert "private" not in latfarm(home, 0o022, "boards", "add", "two", "127.0.0.1:2")
    assert modes(home) == {}
    (home / "boards.json").chmod(0o644)
    told = latfarm(home, 0o022, "certs", "issue", "a", "--role=viewer")
    assert "the permissions of 1 files and folders were changed" in told
    assert modes(home) == {}


def test_files_that_somebody_asked_for_have_the_umask_of_the_caller(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with private_umask():
            (tmp_path / "ours").touch()
            with callers_umask():
                (tmp_path / "theirs").touch()
            (tmp_path / "ours too").touch()
        (tmp_path / "later").touch()
    finally:
        os.umask(before)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert found == {"ours": 0o600, "theirs": 0o644, "ours too": 0o600, "later": 0o644}


def test_a_shared_folder_and_a_link_are_not_changed(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(UsageError, match="all users share"):
        private_home(shared)
    with pytest.raises(UsageError, match="all users share"):
        private_folder(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777

    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o644)
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "boards.json").symlink_to(outside)
    private_home(home)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644


def test_a_home_that_is_a_link_to_another_disk_is_closed_there(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    disk.chmod(0o755)
    (tmp_path / "home").symlink_to(disk)
    private_home(tmp_path / "home")
    assert stat.S_IMODE(disk.stat().st_mode) == 0o700
