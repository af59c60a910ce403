from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from latfarm_controller.errors import StoreBusyError, StoreError
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.lock import Holder, StoreLock, find_holder

HOLD = """
import sys
from pathlib import Path
from latfarm_controller.store.lock import StoreLock
lock = StoreLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process, which holds the lock until it is told to release it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holding(path) as process:
        with pytest.raises(StoreBusyError, match=f"process {process.pid} .*python") as caught:
            StoreLock(path).acquire()
        assert "LATFARM_HOME" in str(caught.value)
        holder = find_holder(path)
        assert holder is not None
        assert holder.pid == process.pid


def test_a_killed_holder_leaves_the_lock_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holding(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert "pid" in path.read_text()
    assert find_holder(path) is None
    with StoreLock(path) as lock:
        assert lock.held


def test_waiting_ends_when_the_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    told: list[Holder | None] = []
    with holding(path) as process:

        def let_go(holder: Holder | None) -> None:
            told.append(holder)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

        lock = StoreLock(path)
        lock.acquire(timeout_ms=60_000, on_wait=let_go)
        assert [holder.pid for holder in told if holder] == [process.pid]
    lock.release()


def test_waiting_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with StoreLock(path), pytest.raises(StoreBusyError, match=f"process {os.getpid()} "):
        StoreLock(path).acquire(timeout_ms=50)


def test_a_forked_copy_of_the_descriptor_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = StoreLock(path)
    lock.acquire()
    (descriptor,) = [
        int(link.name)
        for link in Path("/proc/self/fd").iterdir()
        if os.path.realpath(link) == os.path.realpath(path)
    ]
    copy = os.dup(descriptor)
    try:
        lock.release()
        with StoreLock(path) as other:
            assert other.held
    finally:
        os.close(copy)


def test_the_holder_publishes_where_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert find_holder(path) is None
    with StoreLock(path) as lock:
        lock.publish("127.0.0.1:12345")
        lock.publish("127.0.0.1:1")
        found = find_holder(path)
        assert found is not None
        assert (found.pid, found.address) == (os.getpid(), "127.0.0.1:1")
    assert find_holder(path) is None
    with pytest.raises(StoreError, match="only the holder"):
        lock.publish("127.0.0.1:2")


def test_asking_for_the_holder_never_looks_like_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(50):
        with StoreLock(path):
            assert find_holder(path) is not None
        assert find_holder(path) is None


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="LATFARM_HOME"):
        StoreLock(tmp_path / "file" / "lock").acquire()


def test_a_store_holds_the_lock_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with DuckDBStore(path), pytest.raises(StoreBusyError, match=f"process {os.getpid()} "):
        DuckDBStore(path)
    DuckDBStore(path).close()


def test_a_store_that_cannot_be_opened_lets_go_of_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"no database" * 1000)
    for _ in range(2):
        with pytest.raises(StoreError, match="no store") as caught:
            DuckDBStore(path)
        assert not isinstance(caught.value, StoreBusyError)
