"""What every command-line tool has: a version, and completion in the user's shell."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from latfarm_controller.cli.main import run


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"latfarm {version('latfarm-controller')}\n"


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
