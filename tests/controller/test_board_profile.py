"""What may be noted about a board, and who belongs to an access group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.access_groups import AccessGroups, check_groups
from latfarm_controller.agents.registry import Registry
from latfarm_controller.board_profile import (
    MOST_CHARACTERS,
    MOST_TAGS,
    MOST_WINDOWS,
    BoardProfile,
    checked_tags,
    console_command,
)
from latfarm_controller.config import load_config
from latfarm_controller.errors import UsageError
from latfarm_controller.farm.partitions import BoardChoice
from latfarm_controller.maintenance_window import MaintenanceWindow

WINDOW = MaintenanceWindow.of_texts("2026-12-24T08:00", "2026-12-24T12:00", "week")
FULL = BoardProfile(
    ("jetson", "lab2"), "rack 3", "alice", "loud fan", "vision", ("picocom", "/dev/x"), (WINDOW,)
)
GROUPS = AccessGroups(
    {"vision": ("alice", "unix:bob", "cert:carol"), "admins": ("dora",)}, owner="unix:latfarm"
)


def test_a_profile_is_kept_in_the_inventory(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "boards.json")
    registry.add("orin", "127.0.0.1:1")
    before = json.loads(registry.path.read_text())["boards"]["orin"]
    assert before == {"address": "127.0.0.1:1"}, "an inventory without profiles is as it was"
    registry.set_profile("orin", lambda _: FULL)
    assert registry.get("orin").profile == FULL
    assert registry.add("orin", "127.0.0.1:2", replace=True).profile == FULL
    registry.set_profile("orin", lambda _: BoardProfile())
    assert json.loads(registry.path.read_text())["boards"]["orin"] == before | {
        "address": "127.0.0.1:2"
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tags": "jetson"}, '"tags" must be a list of texts'),
        ({"tags": [1]}, '"tags" must be a list of texts'),
        ({"tags": ["-x"]}, "letters, digits"),
        ({"tags": ["a b"]}, "letters, digits"),
        ({"tags": ["a" * 64]}, "at most 63"),
        ({"tags": [f"t{n}" for n in range(MOST_TAGS + 1)]}, "too many"),
        ({"location": 3}, '"location" must be a text'),
        ({"note": "line\nbreak"}, "note must be printable"),
        ({"owner": "x" * (MOST_CHARACTERS + 1)}, "at most 200 characters"),
        ({"access": "no group"}, "access group 'no group'"),
        ({"console": ["-x"]}, "the program of a console command"),
        ({"console": ["x"] * 65}, "at most 64 arguments"),
        ({"maintenance": {}}, "must be a list"),
        ({"maintenance": [{"from": "2026-12-24"}]}, '"from" and "until"'),
        ({"maintenance": [WINDOW.to_json() | {"at": "x"}]}, "has no 'at'"),
        ({"maintenance": [WINDOW.to_json()] * (MOST_WINDOWS + 1)}, "at most 16"),
    ],
)
def test_what_is_malformed_is_refused(tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    path = tmp_path / "boards.json"
    entry = {"address": "127.0.0.1:1", **wrong}
    path.write_text(json.dumps({"version": 1, "boards": {"orin": entry}}))
    with pytest.raises(UsageError, match=told):
        Registry(path).list()


def test_words_of_a_console_command_are_separated_as_a_shell_does() -> None:
    assert console_command("picocom -b 115200 '/dev/my tty'") == (
        *("picocom", "-b", "115200"),
        "/dev/my tty",
    )
    with pytest.raises(UsageError, match="No closing quotation"):
        console_command("'open")


@pytest.mark.parametrize(
    ("user", "admitted"),
    [
        ("alice", True),
        ("unix:alice", True),
        ("unix:bob", True),
        ("bob", False),  # the certificate of that name is another person
        ("carol", True),
        ("unix:carol", False),
        ("dora", True),
        ("unix:latfarm", True),
        ("latfarm", False),
        ("unix:root", True),
        ("root", False),
        ("local", False),
        ("", False),
    ],
)
def test_who_belongs_to_a_group(user: str, admitted: bool) -> None:
    refusal = GROUPS.refusal(user, "vision")
    assert (refusal == "") is admitted
    assert admitted or "access group vision" in refusal
    assert GROUPS.refusal(user, "") == ""


def test_nobody_but_admins_belongs_to_a_group_that_is_not_configured() -> None:
    assert "not in latfarm.toml" in GROUPS.refusal("alice", "speech")
    assert GROUPS.refusal("dora", "speech") == ""
    assert AccessGroups().refusal("", "vision") != ""


def test_a_choice_asks_for_all_tags_and_for_the_group() -> None:
    tags = checked_tags(["lab2", "jetson", "lab2"])
    assert tags == ("jetson", "lab2")
    assert BoardChoice(tags).refusal(FULL, GROUPS) == ""
    assert BoardChoice(("jetson", "fast")).refusal(FULL, GROUPS) == "it has no tag fast"
    assert BoardChoice(tags, "alice").refusal(FULL, GROUPS) == ""
    assert "bob is no member of it" in BoardChoice(tags, "bob").refusal(FULL, GROUPS)


def test_groups_come_from_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "latfarm.toml"
    file.write_text('[access_groups]\nvision = ["alice", "unix:bob"]\n')
    config = load_config({"home": tmp_path}, {})
    assert config.access_groups == {"vision": ("alice", "unix:bob")}
    for wrong in ('vision = "alice"', 'vision = [""]', '"" = ["alice"]'):
        file.write_text(f"[access_groups]\n{wrong}\n")
        with pytest.raises(UsageError, match="access_groups"):
            load_config({"home": tmp_path}, {})


@pytest.mark.parametrize("name", ["vision", "Lab-2.b_c", "7", "g" * 63])
def test_a_board_can_name_every_group_that_the_settings_admit(name: str) -> None:
    check_groups({name: ["alice"]})
    assert BoardProfile(access=name).access == name


@pytest.mark.parametrize("name", ["no group", "-vision", "gruppe ä", "ü", "a/b", "", "g" * 64])
def test_the_settings_refuse_a_group_that_no_board_can_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"access group .*letters, digits"):
        check_groups({name: ["alice"]})
    file = tmp_path / "latfarm.toml"
    file.write_text(f'[access_groups]\n"{name}" = ["alice"]\n')
    with pytest.raises(UsageError, match="letters, digits"):
        load_config({"home": tmp_path}, {})
