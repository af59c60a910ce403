"""What every command-line tool has: a version, and completion in the user's shell."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from latfarm_controller.cli.main import run


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"latfarm {version('latfarm-controller')}\n"


def test_output_that_a_full_disk_does_not_take_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # That it is closed must not fail either, as Python closes it at its end.
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert run(["--version"]) == 1
    told = capsys.readouterr().err
    assert told == "latfarm: standard output cannot be written: No space left on device\n"


def test_a_closed_standard_output_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["--version"]) == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_LATFARM_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "latfarm pre")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "latfarm pre")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit, match="0"):
        run([])
    assert "predict" in capsys.readouterr().out
