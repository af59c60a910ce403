"""A run that is ended while boards run prints its summary, and leaves no board and no network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.farm.boards.host import WORK_VARIABLE
from tests.farm.boards.rack import Rack, traces
from tests.farm.boards.wheels import ROOT
from tests.farm.lab.processes import until
from tests.leftovers import MARK_VARIABLE

pytestmark = [pytest.mark.farm, pytest.mark.gate, pytest.mark.timeout(300)]

BOOTS_A_BOARD = """
import time
from pathlib import Path
from tests.farm.boards.virtual_board import VirtualBoard

def test_before():
    pass

def test_it():
    with VirtualBoard("interrupted") as board:
        part = Path(r"{folder}", "part")
        part.write_text(board.rack.name)
        part.rename(part.with_name("rack"))
        time.sleep(3600)
"""


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder of racks that only the run in question uses; it has a short path for sockets."""
    with tempfile.TemporaryDirectory(prefix="lf") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGTERM, ("-n", "1")), (signal.SIGINT, ()), (signal.SIGKILL, ())],
    ids=["terminated", "interrupted", "killed"],
)
def test_leaves_nothing(
    rack: Rack, work: Path, tmp_path: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    (tmp_path / "test_it.py").write_text(BOOTS_A_BOARD.format(folder=tmp_path))
    plain = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    words = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull)
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-v", *words, f"--rootdir={tmp_path}", *options, tmp_path],
        cwd=ROOT,
        env=plain | {"PYTEST_ADDOPTS": "", WORK_VARIABLE: str(work)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout is not None
        while "PASSED" not in (line := run.stdout.readline()):
            assert line, "the run has ended"
        told = tmp_path / "rack"
        until(lambda: told.exists() or run.poll() is not None, "a board that has booted")
        assert run.poll() is None
        name = told.read_text()
        assert traces(name)
        run.send_signal(number)
        out, _ = run.communicate()
    assert run.returncode != 0
    if number != signal.SIGKILL:
        assert "1 passed in " in out
    # Only the cleaner of that rack removes it: whoever makes racks elsewhere does not see it.
    until(lambda: not traces(name), partial(traces, name))
    until(lambda: not (work / name).exists(), f"no folder {work / name}")
    assert traces(rack.name)
