"""`latfarm boards set|power|reserve|release|drain --deadline`, as a person types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.controller.cli.conftest import Latfarm

SAY = "import os, sys; print(os.environ['LATFARM_ACTION'], *sys.argv[1:])"


@pytest.fixture
def board(latfarm: Latfarm) -> str:
    """A board of the inventory that nobody serves."""
    assert latfarm("boards", "add", "orin", "127.0.0.1:1").code == 0
    return "orin"


def hooks(home: Path) -> object:
    return json.loads((home / "boards.json").read_text())["boards"]["orin"].get("hooks")


def test_hooks_are_set_and_removed(latfarm: Latfarm, home: Path, board: str) -> None:
    url = "http://192.0.2.5/outlet/4/cycle"
    said = latfarm(
        *("boards", "set", board, "--power-cycle-hook", url),
        *("--reboot-hook", "ssh orin 'sudo reboot'"),
    )
    assert said.code == 0
    assert said.line == "board orin has these hooks: reboot, power_cycle"
    assert hooks(home) == {"power_cycle": url, "reboot": ["ssh", "orin", "sudo reboot"]}
    assert latfarm("boards", "set", board, "--reboot-hook", "").code == 0
    assert hooks(home) == {"power_cycle": url}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("orin",), "nothing is to be changed"),
        (("orin", "--reboot-hook", "'open"), "No closing quotation"),
        (("orin", "--reboot-hook", "http://"), "the URL of a hook"),
        (("jetson", "--reboot-hook", "x"), "no board 'jetson'"),
    ],
)
def test_what_cannot_be_set_is_told(
    latfarm: Latfarm, board: str, arguments: tuple[str, ...], told: str
) -> None:
    said = latfarm("boards", "set", *arguments)
    assert said.code == 2
    assert told in said.line


def test_power_runs_the_hook_and_is_an_event(latfarm: Latfarm, board: str) -> None:
    command = f'{sys.executable} -c "{SAY}" relay 4'
    assert latfarm("boards", "set", board, "--power-cycle-hook", command).code == 0
    said = latfarm("boards", "power", board, "cycle", "--reason", "it hangs")
    assert (said.code, said.line) == (0, "orin: cycle is done: power_cycle relay 4")
    (event,) = json.loads(latfarm("boards", "events", board, "--json").out)
    assert event["event"] == "power_cycle"
    assert event["reason"] == "done: power_cycle relay 4; because: it hangs"


def test_power_without_a_hook_names_the_remedy(latfarm: Latfarm, board: str) -> None:
    said = latfarm("boards", "power", board, "off")
    assert said.code == 2
    assert "latfarm boards set orin --power-off-hook COMMAND" in said.line


def test_a_hook_that_fails_is_a_failure(latfarm: Latfarm, board: str) -> None:
    command = f"{sys.executable} -c 'raise SystemExit(7)'"
    assert latfarm("boards", "set", board, "--reboot-hook", command).code == 0
    said = latfarm("boards", "power", board, "reboot")
    assert said.code == 1
    assert "the hook reboot of board orin failed: it ended with exit code 7" in said.line


def test_a_drain_with_a_deadline_tells_it(latfarm: Latfarm, board: str) -> None:
    said = latfarm("boards", "drain", board, "--deadline", "10m", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["standing"] == "drained"
    (event,) = json.loads(latfarm("boards", "events", board, "--json").out)
    details = json.loads(event["details_json"])
    assert details["deadline_s"] - event["at_s"] == pytest.approx(600.0, abs=60.0)


@pytest.mark.parametrize("text", ["soon", "10", "0s", "-5m", "31d"])
def test_a_deadline_that_is_none_is_refused(latfarm: Latfarm, board: str, text: str) -> None:
    said = latfarm("boards", "drain", board, f"--deadline={text}")
    assert said.code == 2
    assert "deadline" in said.line


def test_a_board_is_reserved_and_released(latfarm: Latfarm, board: str) -> None:
    said = latfarm("boards", "reserve", board, "--for", "2h", "--reason", "a driver", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert told["standing"] == "reserved"
    assert told["standing_reason"].endswith(": a driver")
    assert json.loads(latfarm("boards", "--json").out)[0]["standing"] == "reserved"
    assert latfarm("boards", "reserve", board, "--until", "2020-01-01T00:00").code == 2
    released = latfarm("boards", "release", board)
    assert (released.code, released.err.splitlines()[-1]) == (0, "orin is working")
    assert latfarm("boards", "release", board).code == 1


@pytest.mark.parametrize(
    "options", [(), ("--for", "1h", "--until", "2099-01-01"), ("--for", "x"), ("--until", "soon")]
)
def test_a_reservation_needs_one_time(
    latfarm: Latfarm, board: str, options: tuple[str, ...]
) -> None:
    said = latfarm("boards", "reserve", board, *options)
    assert said.code == 2
    assert "--" in said.line
