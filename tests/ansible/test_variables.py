"""A mistyped variable of a host is an error, and every variable is declared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.ansible.collection import (
    COLLECTION,
    NEEDS_ANSIBLE,
    PLAYBOOKS,
    ROLES,
    load,
    plugin,
    run,
    specs,
)

WITH_DEFAULTS = ("board", "controller", "monitoring")
PREFIXES = {
    "board": ("latfarm_",),
    "controller": ("controller_",),
    "monitoring": ("prometheus_", "alertmanager_", "grafana_"),
}
"""What the names of variables begin with, for roles whose variables an inventory sets."""

WORD = re.compile(r"\blatfarm_[a-z0-9_]+")
NO_VARIABLES = {"latfarm_agent", "latfarm_upgrade_due", "latfarm_rollback_due"}
"""A package of Python, and groups that playbooks make."""

OPTION_KEYS = {"type", "description", "default", "elements", "choices", "required", "options"}

pytestmark = [NEEDS_ANSIBLE, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def names() -> ModuleType:
    return plugin("plugin_utils/variables.py")


def unknown(names: ModuleType, *given: str, others: tuple[str, ...] = ()) -> list[str]:
    found: list[str] = names.mistakes(given, names.declared(ROLES), others)
    return found


def test_a_mistyped_name_is_told_with_the_nearest_one(names: ModuleType) -> None:
    for wrong, right in (
        ("latfarm_runtime", "latfarm_runtimes"),
        ("latfarm_adb_networks", "latfarm_adb_network"),
        ("latfarm_ntp_server", "latfarm_ntp_servers"),
        ("prometheus_retentoin", "prometheus_retention"),
        ("controller_member", "controller_members"),
        ("alertmanager_webhok_url", "alertmanager_webhook_url"),
        ("grafana_packages", "grafana_package"),
    ):
        assert unknown(names, wrong) == [f"there is no variable {wrong}; did you mean {right}?"]
    assert unknown(names, "latfarm_xyzzy") == ["there is no variable latfarm_xyzzy"]


def test_names_of_others_are_left_alone(names: ModuleType) -> None:
    """Variables of other collections, and those that a user has declared."""
    assert unknown(names, "prometheus_web_listen_address", "prometheus_version") == []
    assert unknown(names, "controller_hostname", "grafana_ini", "alertmanager_config_dir") == []
    assert unknown(names, "ansible_host", "my_latfarm_note", "latfarm") == []
    assert unknown(names, "latfarm_rack", others=("latfarm_rack",)) == []
    assert unknown(names, "alertmanager_receivers", others=("alertmanager_receivers",)) == []


def set_by_roles() -> Iterator[str]:
    """Names of the facts, results and variables that the tasks of roles set."""
    for path in ROLES.glob("*/tasks/*.yml"):
        text = path.read_text()
        yield from re.findall(r"^ *register: (\w+)$", text, re.MULTILINE)
        for block in re.findall(
            r"^( *)(?:ansible\.builtin\.set_fact|vars):\n((?:\1 +.*\n)+)", text, re.M
        ):
            yield from re.findall(r"^ *([a-z_0-9]+):", block[1], re.MULTILINE)


def test_what_the_roles_set_themselves_is_no_mistake(names: ModuleType) -> None:
    """Facts of one play are variables of the host in the next one."""
    found = set(set_by_roles())
    assert len(found) >= 80
    assert unknown(names, *found) == []


def test_every_variable_that_the_collection_names_is_declared(names: ModuleType) -> None:
    known = names.declared(ROLES)
    used = 0
    for path in (*ROLES.rglob("*.yml"), *ROLES.rglob("*.j2"), *PLAYBOOKS.rglob("*.yml")):
        if path.name in ("alerts.yml.j2", "rules.yml.j2"):
            continue  # these name metrics
        words = {word for word in WORD.findall(path.read_text()) if not word.endswith("_")}
        unknown_here = words - known - NO_VARIABLES
        assert not unknown_here, (path.relative_to(COLLECTION), unknown_here)
        used += len(words)
    assert used >= 200


@pytest.mark.parametrize("role", WITH_DEFAULTS)
def test_defaults_are_those_of_the_specification(role: str) -> None:
    """What depends on other variables has no default there, and its description says what it is."""
    defaults = load(ROLES / role / "defaults/main.yml")
    declared = specs(role)["main"]
    assert set(defaults) <= set(declared)
    for name, option in declared.items():
        assert name.startswith(PREFIXES[role])
        assert {"type", "description"} <= set(option) <= OPTION_KEYS, name
        assert option["type"] != "list" or "elements" in option, name
        value = defaults.get(name)
        if isinstance(value, str) and "{{" in value:
            assert "default" not in option, name
            assert "By default" in option["description"], name
        elif name in defaults:
            assert option["default"] == value, name
            assert type(option["default"]) is type(value), name


@pytest.mark.parametrize("role", sorted(path.name for path in ROLES.iterdir()))
def test_every_role_has_a_specification(role: str) -> None:
    declared = specs(role)
    assert "main" in declared
    for part, options in declared.items():
        assert (ROLES / role / "tasks" / f"{part}.yml").exists()
        for name, option in options.items():
            assert set(option) <= OPTION_KEYS, name


def refused(folder: Path, variables: dict[str, Any], book: str, *words: str) -> str:
    """What Ansible says about these variables of a machine that cannot be reached."""
    inventory = folder / "inventory.json"
    host = {"ansible_host": "127.0.0.1", "ansible_port": 1, **variables}
    groups = {"boards": {"hosts": {"nuc-1": host}}, "controllers": {"hosts": {"hub": host}}}
    inventory.write_text(json.dumps(groups))
    done = run(
        *("ansible-playbook", "-i", str(inventory), book, *words),
        LATFARM_HOME=str(folder / "home"),
    )
    assert done.returncode != 0, done.stdout
    assert "unreachable=0" in done.stdout, "it is refused before the machine is asked"
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("words", [(), ("--tags", "certificate")], ids=["all", "tag"])
def test_a_playbook_of_boards_refuses_a_mistyped_variable(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    told = refused(tmp_path, {"latfarm_runtime": ["onnxruntime"]}, "latfarm.farm.enroll", *words)
    assert "nuc-1: there is no variable latfarm_runtime; did you mean latfarm_runtimes?" in told


def test_a_playbook_of_boards_refuses_a_value_of_another_type(tmp_path: Path) -> None:
    told = refused(tmp_path, {"latfarm_port": "many"}, "latfarm.farm.upgrade")
    assert "latfarm_port" in told
    assert "Validation of arguments failed" in told


def test_the_playbook_of_the_controller_refuses_a_mistyped_variable(tmp_path: Path) -> None:
    told = refused(tmp_path, {"controller_member": ["ada"]}, "latfarm.farm.controller")
    assert "hub: there is no variable controller_member; did you mean controller_members?" in told


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ({"python": "3.11", "arch": "x86_64"}, "missing required arguments: glibc"),
        ({"python": "3.11", "arch": "sparc", "glibc": "2.36"}, "sparc"),
        ({"python": "3.11", "arch": "x86_64", "glibc": "2.36", "runtime": ["a"]}, "runtime"),
    ],
)
def test_a_mistyped_kind_of_board_is_refused(
    tmp_path: Path, kind: dict[str, Any], told: str
) -> None:
    said = refused(tmp_path, {"controller_board_kinds": [kind]}, "latfarm.farm.controller")
    assert "controller_board_kinds" in said
    assert told in said


def test_a_variable_on_the_command_line_is_checked_and_others_can_be_named(tmp_path: Path) -> None:
    words = ("-e", "latfarm_upgrade_serials=2", "-e", "latfarm_rack=7")
    variables = {"latfarm_other_variables": ["latfarm_rack"]}
    told = refused(tmp_path, variables, "latfarm.farm.rollback", *words)
    assert "latfarm_upgrade_serials; did you mean latfarm_upgrade_serial?" in told
    assert "variable latfarm_rack" not in told
