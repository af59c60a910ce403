"""A test run leaves no process behind, even if it is interrupted, terminated or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.leftovers import MARK_VARIABLE

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="there is no /proc to find processes in"
)

ROOT = Path(__file__).parents[1]
GIVE_UP_S = 90.0
LEAVES_A_PROCESS = """
import subprocess, sys, time
from pathlib import Path

def test_before():
    pass

def test_it():
    code = "import signal, time; {before}; print(flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code]
    left = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    left.stdout.readline()
    part = Path(r"{folder}", "part")
    part.write_text(str(left.pid))
    part.rename(part.with_name("pid"))
    {then}
"""


def has_ended(pid: int) -> bool:
    """Whether a process has ended; a zombie has ended, although nobody has waited for it yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def run(
    folder: Path, before: str, then: str, *options: str, out: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a test run with two tests; the second starts a process and does not end it.

    Args:
        folder: an empty folder for the test's file.
        before: Python code that the process runs first.
        then: Python code that the test runs when the process runs.
        options: options of pytest.
        out: what the run prints to, as for `subprocess.Popen`.
    """
    text = LEAVES_A_PROCESS.format(folder=folder, before=before, then=then)
    (folder / "test_it.py").write_text(text)
    plain = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    words = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull)
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *words, f"--rootdir={folder}", *options, str(folder)],
        cwd=ROOT,
        env=plain | {"PYTEST_ADDOPTS": ""},
        stdout=out,
        stderr=subprocess.DEVNULL,
    )


def left_behind(folder: Path, run: subprocess.Popen[bytes]) -> int:
    """Wait until the test has written the process id of its process; return it."""
    while not (folder / "pid").exists():
        assert run.poll() is None
        time.sleep(0.02)
    return int((folder / "pid").read_text())


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "workers"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    with run(tmp_path, "pass", "time.sleep(600)", *options) as tests:
        pid = left_behind(tmp_path, tests)
        tests.send_signal(number)
        assert tests.wait(GIVE_UP_S) != 0
    deadline_s = time.monotonic() + GIVE_UP_S
    while not has_ended(pid):
        assert time.monotonic() < deadline_s, f"process {pid} was left behind"
        time.sleep(0.05)


@pytest.mark.timeout(900)  # it starts a run, which takes long on a busy host
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "workers"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_prints_its_summary(
    tmp_path: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    with run(tmp_path, "pass", "time.sleep(600)", "-v", *options, out=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        while b"PASSED" not in (line := tests.stdout.readline()):
            assert line, "the run has ended"
        left_behind(tmp_path, tests)
        tests.send_signal(number)
        told, _ = tests.communicate()
    assert tests.returncode == pytest.ExitCode.INTERRUPTED
    assert b"KeyboardInterrupt" in told
    assert b"1 passed in " in told


def test_a_run_that_ends_waits_until_nothing_is_left(tmp_path: Path) -> None:
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with run(tmp_path, ignores, "left.stdout.close()") as tests:
        tests.wait(GIVE_UP_S)
    assert has_ended(int((tmp_path / "pid").read_text()))
