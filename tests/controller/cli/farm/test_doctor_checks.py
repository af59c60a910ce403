"""What `latfarm doctor` says of an agent that does not answer: the remedy fits the reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from latfarm_controller.cli.farm import doctor_checks
from latfarm_controller.cli.farm.doctor_checks import MISSING, WARNING, Finding


def fails_with(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise error

    return fail


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], Finding]:
    """The only finding about the board whose agent ends with an error."""

    def find(error: Exception) -> Finding:
        monkeypatch.setattr(subprocess, "run", fails_with(error))
        (found,) = doctor_checks._board()
        return found

    return find


def test_a_slow_agent_is_not_called_missing(board: Callable[[Exception], Finding]) -> None:
    found = board(subprocess.TimeoutExpired(["latfarm-agent"], 120.0))
    assert found.state == WARNING
    assert found.found == "it did not describe itself within 120 s"
    assert "install" not in found.remedy
    assert "less to do" in found.remedy


def test_an_agent_that_fails_is_told_with_its_last_line(
    board: Callable[[Exception], Finding],
) -> None:
    story = "Traceback\nRuntimeError: no such device\n"
    found = board(subprocess.CalledProcessError(1, ["latfarm-agent"], stderr=story))
    assert (found.state, found.found) == (MISSING, "RuntimeError: no such device")
    assert found.remedy.endswith("latfarm-agent describe")


def test_an_agent_that_is_not_installed_is_to_be_installed(
    board: Callable[[Exception], Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "find_spec", lambda _: None)
    story = "python: Error while finding module specification for 'latfarm_agent.cli'"
    found = board(subprocess.CalledProcessError(1, ["python"], stderr=story))
    assert (found.state, found.found) == (MISSING, "not installed")
    assert "pip install latfarm-agent" in found.remedy


def test_modules_of_the_present_folder_are_none_of_the_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []

    def run(command: list[str], **_: Any) -> NoReturn:
        started.append(command)
        raise OSError("not now")

    monkeypatch.setattr(subprocess, "run", run)
    assert [found.found for found in doctor_checks._board()] == ["not now"]
    assert [command[1] for command in started] == ["-P"]


@pytest.mark.parametrize(("throttled", "warned"), [("yes", True), ("no", False), (None, False)])
def test_a_machine_that_throttles_now_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, throttled: str | None, warned: bool
) -> None:
    conditions = {"clock_mhz": "2000"} | ({} if throttled is None else {"throttled": throttled})
    told = {"runtimes": [], "board": {"conditions": conditions, "protection": {}}}
    done = subprocess.CompletedProcess(["latfarm-agent"], 0, json.dumps(told), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    found = {each.name: each for each in doctor_checks._board()}
    assert ("throttling" in found) == warned
    if warned:
        assert found["throttling"].state == WARNING
        assert "cool it" in found["throttling"].remedy
