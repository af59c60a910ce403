"""A folder in which the commands of README and docs run, as in the folder of a reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


class DocsReader:
    """Runs programs and commands in a folder of its own, as a reader of the docs does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str) -> str:
        """Run a command, which must succeed; return its standard output and standard error."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith("LATFARM_")}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=plain | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,  # enough for a busy host
            check=False,
        )
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def python(self, program: Path, *arguments: str) -> str:
        """Run a Python program, which must succeed; return its output."""
        return self.run(sys.executable, str(program), *arguments)

    def latfarm(self, *arguments: str) -> str:
        """Run `latfarm`, which must succeed; return its output."""
        return self.run(sys.executable, "-m", "latfarm_controller.cli.main", *arguments)


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> DocsReader:
    """A reader whose folder contains `farm`, the home folder that the first example makes."""
    reader = DocsReader(tmp_path_factory.mktemp("reader"))
    told = reader.python(EXAMPLES / "characterize_simulated_board.py", "farm")
    assert "0 failures" in told
    return reader
