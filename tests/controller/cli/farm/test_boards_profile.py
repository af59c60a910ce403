"""`latfarm boards set|show|maintenance|console|export` and `--tag`, as a person types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controller.cli.conftest import Latfarm


@pytest.fixture
def board(latfarm: Latfarm) -> str:
    """A board of the inventory that nobody serves."""
    added = latfarm("boards", "add", "orin", "127.0.0.1:1", "--tag", "jetson", "--owner", "alice")
    assert added.code == 0
    return "orin"


def entry(home: Path, name: str = "orin") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "boards.json").read_text())["boards"][name]
    return found


def test_what_is_noted_is_changed_and_removed(latfarm: Latfarm, home: Path, board: str) -> None:
    said = latfarm(
        *("boards", "set", board, "--tag", "lab2", "--untag", "jetson", "--tag", "fast"),
        *("--location", "rack 3", "--note", "loud", "--owner", ""),
    )
    assert said.code == 0
    assert said.line == "board orin: tags: fast, lab2; location: rack 3; note: loud"
    assert entry(home) == {
        "address": "127.0.0.1:1",
        "tags": ["fast", "lab2"],
        "location": "rack 3",
        "note": "loud",
    }
    replaced = latfarm("boards", "add", board, "127.0.0.1:2", "--replace", "--tag", "new")
    assert replaced.code == 0
    assert entry(home)["tags"] == ["fast", "lab2", "new"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--tag", "two words"), "letters, digits"),
        (("--note", "x" * 201), "at most 200 characters"),
        (("--console-command", "'open"), "No closing quotation"),
        (("--access", "vision"), "there is no access group 'vision'"),
        (("--access", "vi sion"), "access group 'vi sion'"),
    ],
)
def test_what_cannot_be_noted_is_told(
    latfarm: Latfarm, home: Path, board: str, arguments: tuple[str, ...], told: str
) -> None:
    before = entry(home)
    said = latfarm("boards", "set", board, *arguments)
    assert (said.code, told in said.line) == (2, True), said.err
    assert entry(home) == before


def test_an_access_group_must_be_configured(latfarm: Latfarm, home: Path, board: str) -> None:
    (home / "latfarm.toml").write_text('[access_groups]\nvision = ["alice"]\n')
    assert "there are: vision" in latfarm("boards", "set", board, "--access", "vison").line
    assert latfarm("boards", "set", board, "--access", "vision").code == 0
    assert entry(home)["access"] == "vision"


def test_boards_are_shown_listed_and_exported_by_tag(latfarm: Latfarm, board: str) -> None:
    assert latfarm("boards", "add", "pi", "127.0.0.1:2", "--note", "{{ 1 + 1 }}").code == 0
    found = json.loads(latfarm("boards", "show", board, "--json").out)
    assert (found["tags"], found["owner"], found["state"]) == (["jetson"], "alice", "unreachable")
    assert "alice" in latfarm("boards", "show", board).out
    missing = latfarm("boards", "show", "orim")
    assert (missing.code, "did you mean" in missing.err) == (2, True)
    chosen = json.loads(latfarm("boards", "--tag", "jetson", "--json").out)
    assert [each["name"] for each in chosen] == ["orin"]
    none = latfarm("boards", "--tag", "jetson", "--tag", "jetsom", "--json")
    assert json.loads(none.out) == []
    assert "no board has the tag jetsom: did you mean jetson?" in none.err
    assert json.loads(latfarm("platforms", "--tag", "jetson", "--json").out) == []
    told = json.loads(latfarm("boards", "export", "--json").out)
    assert (told["version"], sorted(told["boards"])) == (1, ["orin", "pi"])
    yaml = latfarm("boards", "export", "--group-prefix", "has-").out
    assert 'has_jetson:\n  hosts:\n    "orin":\n' in yaml
    assert '      latfarm_note: !unsafe "{{ 1 + 1 }}"\n' in yaml


def test_maintenance_windows_are_added_listed_and_cleared(
    latfarm: Latfarm, home: Path, board: str
) -> None:
    first = ("--begin", "2026-12-24T08:00", "--until", "2026-12-24T12:00")
    assert latfarm("boards", "maintenance", board, *first).code == 0
    said = latfarm("boards", "maintenance", board, *first, "--every", "week")
    assert "2026-12-24T08:00 to 2026-12-24T12:00, again every week" in said.err
    assert len(entry(home)["maintenance"]) == 2
    found = json.loads(latfarm("boards", "maintenance", board, "--json").out)
    assert found["maintenance"][1]["every"] == "week"
    assert latfarm("boards", "maintenance", board, "--begin", "2026-12-24").code == 2
    assert latfarm("boards", "maintenance", board, "--every", "day").code == 2
    assert latfarm("boards", "maintenance", board, "--clear").code == 0
    assert "maintenance" not in entry(home)


def test_the_console_is_the_configured_command(
    latfarm: Latfarm, home: Path, board: str, tmp_path: Path
) -> None:
    assert "has no console command" in latfarm("boards", "console", board).line
    script = tmp_path / "console.py"
    script.write_text(
        "import os, sys, pathlib\n"
        "pathlib.Path(sys.argv[1]).write_text(os.environ['LATFARM_BOARD'])\n"
        "sys.exit(7)\n"
    )
    command = f"{sys.executable} {script} '{tmp_path}/the board'"
    assert latfarm("boards", "set", board, "--console-command", command).code == 0
    assert latfarm("boards", "console", board).code == 7
    assert (tmp_path / "the board").read_text() == "orin"
    lines = [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]
    assert [(line["action"], line["details"].get("exit_code")) for line in lines[-2:]] == [
        ("board.console_opened", None),
        ("board.console_closed", 7),
    ]
    kill = f"{sys.executable} -c 'import os; os.kill(os.getpid(), 15)'"
    assert latfarm("boards", "set", board, "--console-command", kill).code == 0
    assert latfarm("boards", "console", board).code == 128 + 15
    assert latfarm("boards", "set", board, "--console-command", "/no/such/program").code == 0
    assert "cannot be started" in latfarm("boards", "console", board).line
    assert latfarm("boards", "set", board, "--console-command", "").code == 0
    assert "console" not in entry(home)
