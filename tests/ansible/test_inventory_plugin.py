"""The inventory plugin reads the boards of a controller, and tags become groups."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.registry import Registry
from latfarm_controller.app.summaries import BoardSummary
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.cli.farm.ansible_inventory import group_of, inventory_yaml

from tests.ansible.collection import NEEDS_ANSIBLE, run

TEMPLATE = "{{ 1 + 1 }}"
"""What a board that lies may give as the name of a platform."""

pytestmark = [NEEDS_ANSIBLE, pytest.mark.timeout(300)]


def listed(inventory: Path, home: Path) -> subprocess.CompletedProcess[str]:
    return run(
        *("ansible-inventory", "-i", inventory, "--list"),
        LATFARM_HOME=str(home),
        LATFARM_LOCAL_AGENT="false",
    )


def plain(value: Any) -> Any:
    """What Ansible printed, without its marks of texts in which it runs no templates."""
    if isinstance(value, dict):
        if set(value) == {"__ansible_unsafe"}:
            return value["__ansible_unsafe"]
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _instead(new: BoardProfile, _old: BoardProfile) -> BoardProfile:
    return new


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with three boards, none of which answers."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    registry = Registry(folder / "boards.json")
    for name, tags in (("orin-1", ("jetson", "lab.2")), ("orin-2", ("jetson",)), ("pi-1", ())):
        registry.add(name, f"127.0.0.1:{len(registry.list()) + 1}")
        profile = BoardProfile(tags=tags, location="rack 3", owner="alice")
        registry.set_profile(name, partial(_instead, profile))
    return folder


def test_boards_become_hosts_and_tags_become_groups(home: Path, tmp_path: Path) -> None:
    source = tmp_path / "boards.latfarm.yml"
    by_owner = "keyed_groups:\n  - key: latfarm_owner\n    prefix: of\n"
    source.write_text(f"---\nplugin: latfarm.farm.boards\n{by_owner}")
    done = listed(source, home)
    assert done.returncode == 0, done.stderr
    told = plain(json.loads(done.stdout))
    assert told["boards"]["hosts"] == ["orin-1", "orin-2", "pi-1"]
    assert told["jetson"]["hosts"] == ["orin-1", "orin-2"]
    assert told["lab_2"]["hosts"] == ["orin-1"]
    assert told["of_alice"]["hosts"] == ["orin-1", "orin-2", "pi-1"]
    variables = told["_meta"]["hostvars"]["orin-1"]
    assert (variables["ansible_host"], variables["latfarm_location"]) == ("127.0.0.1", "rack 3")
    # The roles read the host and the port apart.
    assert (variables["latfarm_address"], variables["latfarm_port"]) == ("127.0.0.1", 1)
    assert variables["latfarm_state"] == "unreachable"
    assert variables["latfarm_tags"] == ["jetson", "lab.2"]
    # The old name of the plugin works, and says what the new one is.
    assert "Name it" not in done.stderr
    source.write_text("---\nplugin: latfarm\ntags: [jetson, lab.2]\ngroup_prefix: has_\n")
    old = listed(source, home)
    assert "names the inventory plugin latfarm. Name it latfarm.farm.boards" in " ".join(
        old.stderr.split()
    )
    some = plain(json.loads(old.stdout))
    assert some["boards"]["hosts"] == ["orin-1"]
    assert some["has_jetson"]["hosts"] == ["orin-1"]


def test_a_failure_of_latfarm_is_told(home: Path, tmp_path: Path) -> None:
    source = tmp_path / "boards.latfarm.yml"
    source.write_text("---\nplugin: latfarm.farm.boards\ntags: ['no tag']\n")
    done = listed(source, home)
    assert "tag 'no tag': letters, digits" in done.stderr
    source.write_text("---\nplugin: latfarm.farm.boards\ncommand: no-such-latfarm\n")
    assert "no-such-latfarm cannot be run" in listed(source, home).stderr


def test_the_exported_inventory_is_the_same(tmp_path: Path, home: Path) -> None:
    boards = [
        BoardSummary(name="orin-1", address="[2001:db8::7]:50051", tags=("all", "jetson", "2nd")),
        BoardSummary(name="deep", address="dials in", tags=("jetson",), platforms=(TEMPLATE,)),
    ]
    source = tmp_path / "boards.yml"
    source.write_text(inventory_yaml(boards))
    done = listed(source, home)
    assert done.returncode == 0, done.stderr
    told = plain(json.loads(done.stdout))
    assert told["boards"]["hosts"] == ["deep", "orin-1"]
    assert told["jetson"]["hosts"] == ["deep", "orin-1"]
    assert told[group_of("all")]["hosts"] == told["tag_2nd"]["hosts"] == ["orin-1"]
    variables = told["_meta"]["hostvars"]["orin-1"]
    assert variables["ansible_host"] == variables["latfarm_address"] == "2001:db8::7"
    assert variables["latfarm_port"] == 50051
    assert not {"ansible_host", "latfarm_address"} & set(told["_meta"]["hostvars"]["deep"])
    assert told["_meta"]["hostvars"]["deep"]["latfarm_platforms"] == [TEMPLATE]
