"""Runs commands in this process, with their exit code, standard output and standard error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from latfarm_controller.cli import main


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit code and output."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


Latfarm = Callable[..., Ended]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that does not exist yet."""
    home = tmp_path / "home"
    monkeypatch.setenv("LATFARM_HOME", str(home))
    monkeypatch.setenv("LATFARM_LOCAL_AGENT", "false")
    return home


@pytest.fixture
def latfarm(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Latfarm]:
    """Runs a command, and then restores the signal handlers and variables of this process."""
    for name in ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY", "LATFARM_HOME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("LATFARM_HOME", str(home))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: str | Path) -> Ended:
        code = main.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)
