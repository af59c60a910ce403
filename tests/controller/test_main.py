"""Ctrl-C while `latfarm` or `latfarm-agent` imports its modules: exit code 130 and no traceback."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, runpy, signal, sys

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return None

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "HEAVY":
            ACTION

BEFORE
sys.meta_path.insert(0, Interrupting())
runpy.run_module("PACKAGE", run_name="__main__")
"""
SIGNAL = "os.kill(os.getpid(), signal.SIGINT)"
RAISED = "raise KeyboardInterrupt"
SWALLOWED = "Finalized()"
"""Python prints and drops what is raised in a finalizer, a KeyboardInterrupt too."""
IGNORED = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""What a shell does for commands in the background of a script."""
HEAVY = {
    "latfarm": ("latfarm_controller", "typer", "latfarm_controller.cli.farm.boards"),
    "latfarm-agent": ("latfarm_agent", "argparse", "latfarm_agent.arguments"),
}
"""The package of each program, and modules that it imports early and late."""
GIVE_UP_S = 120.0
"""Longest wait for the end of a program."""


def ran(program: str, module: str, action: str, before: str = "") -> tuple[int, str, str]:
    """Run `PROGRAM --help`, and interrupt it where it begins to import a module.

    Returns:
        exit code, standard output and standard error.
    """
    text = PROGRAM.replace("HEAVY", module).replace("ACTION", action).replace("BEFORE", before)
    done = subprocess.run(
        [sys.executable, "-c", text.replace("PACKAGE", HEAVY[program][0]), "--help"],
        capture_output=True,
        text=True,
        timeout=GIVE_UP_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("action", [SIGNAL, RAISED, SWALLOWED])
@pytest.mark.parametrize("place", [1, 2], ids=["early", "late"])
@pytest.mark.parametrize("program", HEAVY)
def test_an_interrupt_during_the_imports_ends_in_one_line(
    program: str, place: int, action: str
) -> None:
    told = ran(program, HEAVY[program][place], action)
    assert told == (130, "", f"{program}: interrupted\n")


@pytest.mark.parametrize("program", HEAVY)
def test_the_first_import_may_be_interrupted_too(program: str) -> None:
    told = ran(program, "signal", RAISED, "del sys.modules['signal']")
    assert told == (130, "", f"{program}: interrupted\n")


@pytest.mark.parametrize("program", HEAVY)
def test_an_interrupt_that_is_ignored_stays_ignored(program: str) -> None:
    code, printed, told = ran(program, HEAVY[program][2], SIGNAL, IGNORED)
    assert (code, told) == (0, "")
    assert program in printed


@pytest.mark.parametrize("program", HEAVY)
def test_the_console_script_starts_there(program: str) -> None:
    folder = ROOT / HEAVY[program][0].removeprefix("latfarm_")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {program: f"{HEAVY[program][0]}.__main__:main"}
