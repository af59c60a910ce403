import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from latfarm_predictors.whole_file import SUFFIX, written_whole

KILLED = """
import os, signal, sys
from pathlib import Path
from latfarm_predictors.whole_file import written_whole
with written_whole(Path(sys.argv[1])) as part:
    part.write_text("half of what was to be wri")
    os.kill(os.getpid(), signal.SIGKILL)
"""
FULL = """
import errno, sys
from pathlib import Path
from latfarm_predictors.whole_file import written_whole
path = Path(sys.argv[1]) / "data.json"
path.write_text("before")
try:
    with written_whole(path) as part:
        part.write_bytes(bytes(2**20))
except OSError as error:
    left = [entry.name for entry in path.parent.iterdir()]
    print(errno.errorcode[error.errno], path.read_text(), *left)
"""


def _content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("durable", [False, True])
def test_the_file_is_there_when_the_block_ends(durable: bool, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("before")
    with written_whole(path, durable=durable) as part:
        part.write_text("after")
        assert path.read_text() == "before"
    assert _content(tmp_path) == {"data.json": "after"}


def test_a_failing_block_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("before")

    def write() -> None:
        with written_whole(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert _content(tmp_path) == {"data.json": "before"}


def test_a_block_that_writes_nothing_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("before")
    with pytest.raises(FileNotFoundError), written_whole(path):
        pass
    assert _content(tmp_path) == {"data.json": "before"}


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("before")
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "before"
    # The left-over file is hidden and ends in another suffix, so listings by suffix ignore it.
    (left,) = [entry for entry in tmp_path.iterdir() if entry != path]
    assert left.name.startswith(".data.json.")
    assert left in tmp_path.glob(f"*{SUFFIX}")
    assert left not in tmp_path.glob("*.json")
    with written_whole(path) as part:
        part.write_text("after")
    assert path.read_text() == "after"


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1"'
    own_mounts = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*own_mounts, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a mount of its own needs root, or user namespaces")
    done = subprocess.run(
        [*own_mounts, "sh", "-c", mount, "sh", tmp_path, sys.executable, FULL],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["ENOSPC", "before", "data.json"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_mode_holds_from_the_first_byte_on(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "ca.key"
    path.write_text("before")
    path.chmod(0o666)
    before = os.umask(0)
    try:
        with written_whole(path, mode=mode) as part:
            assert stat.S_IMODE(part.stat().st_mode) == mode
            part.write_text("after")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_text() == "after"


def test_without_a_mode_the_umask_decides(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    before = os.umask(0o027)
    try:
        with written_whole(path) as part:
            part.write_text("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("before")
    link = tmp_path / "data.json"
    link.symlink_to(elsewhere)
    with written_whole(link) as part:
        part.write_text("after")
    assert not link.is_symlink()
    assert _content(tmp_path) == {"elsewhere": "before", "data.json": "after"}


def test_a_missing_folder_is_made_only_where_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "data.json"
    with pytest.raises(FileNotFoundError), written_whole(path) as part:
        part.write_text("new")
    assert not path.parent.parent.exists()
    with written_whole(path, make_folder=True) as part:
        part.write_text("new")
    assert path.read_text() == "new"


def test_two_writers_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    with written_whole(path) as outer:
        with written_whole(path) as inner:
            outer.write_text("outer")
            inner.write_text("inner")
        assert path.read_text() == "inner"
    assert _content(tmp_path) == {"data.json": "outer"}
