"""The role of a controller is tested without a machine: syntax, linter, units and arguments."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.config import ControllerConfig

from tests.ansible.collection import NEEDS_ANSIBLE, ROLES, ROOT, load, run, specs
from tests.ansible.test_playbooks import directives

pytestmark = [NEEDS_ANSIBLE, pytest.mark.timeout(300)]

ROLE = ROLES / "controller"
BOOKS = ("controller", "upgrade_controller", "restore_controller")
UNITS = ("latfarm-controller.service", "latfarm-controller-backup.service")
MOST_EXPOSURE = 2.5
"""The exposure that `systemd-analyze security` may tell at most, from 0 to 10."""
EXPOSURE = re.compile(r"Overall exposure level for \S+: ([\d.]+)")
CHANGES: dict[str, Any] = {
    "controller_listen": "0.0.0.0:7450",
    "controller_ray_address": "192.0.2.9:6379",
    "controller_settings": {"lease_ms": 60000, "health_checks": False},
    "controller_environment": {"RAY_worker_niceness": "5"},
    "controller_memory_max": "12G",
    "controller_write_paths": ["/srv/exports"],
}
"""Variables whose part of a template is empty by default."""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all templates, as Ansible renders them with `CHANGES`."""
    folder = tmp_path_factory.mktemp("controller")
    names = sorted(path.name.removesuffix(".j2") for path in (ROLE / "templates").glob("*.j2"))
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROLE / "defaults/main.yml")],
        "tasks": [
            {
                "name": "Render",
                "ansible.builtin.template": {
                    "src": f"{ROLE}/templates/{{{{ item }}}}.j2",
                    "dest": f"{folder}/{{{{ item }}}}",
                    "mode": "0644",
                },
                "loop": names,
            }
        ],
    }
    book = folder / "render.yml"
    book.write_text(json.dumps([play]))
    done = run("ansible-playbook", "-e", json.dumps(CHANGES), book)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_playbooks_parse(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps({"controllers": {"hosts": {"hub": {}}}}))
    books = [f"latfarm.farm.{name}" for name in BOOKS]
    done = run("ansible-playbook", "--syntax-check", "-i", inventory, *books)
    assert done.returncode == 0, done.stderr
    assert all(f"latfarm/farm/playbooks/{name}.yml" in done.stdout for name in BOOKS)


def test_every_variable_is_checked_and_described() -> None:
    defaults = set(load(ROLE / "defaults/main.yml"))
    declared = specs("controller")
    assert set(declared) == {"main", "upgrade", "restore"}
    for each in declared.values():
        assert set(each) == defaults
    page = (ROOT / "docs/how-to/controller.md").read_text()
    for name in BOOKS:
        assert f"latfarm.farm.{name}" in page


@pytest.mark.parametrize("unit", UNITS)
def test_units_are_hardened(rendered: Path, unit: str) -> None:
    found = directives((rendered / unit).read_text())
    assert found["User"] == ["latfarm-controller"]
    assert found["NoNewPrivileges"] == ["yes"]
    assert found["CapabilityBoundingSet"] == [""]
    assert found["ProtectSystem"] == ["strict"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(rendered / unit)]
    done = subprocess.run(words, capture_output=True, text=True)
    match = EXPOSURE.search(done.stdout)
    if match is None:
        pytest.skip(f"systemd-analyze cannot judge a file here: {done.stderr.strip()[-200:]}")
    assert float(match[1]) < MOST_EXPOSURE, done.stdout


def test_the_controller_sees_who_has_connected(rendered: Path) -> None:
    """In a user namespace of its own, every other user would be nobody."""
    unit = directives((rendered / UNITS[0]).read_text())
    assert "PrivateUsers" not in unit
    assert unit["SupplementaryGroups"] == ["latfarm-users"]
    assert unit["Type"] == ["notify"]
    assert unit["ReadWritePaths"] == ["/var/lib/latfarm-controller /srv/exports"]


def test_the_service_cannot_become_root_on_boards(rendered: Path) -> None:
    """The account's ssh key is for playbooks alone."""
    (hidden,) = directives((rendered / UNITS[0]).read_text())["InaccessiblePaths"]
    home = "/var/lib/latfarm-controller"
    assert hidden.split() == [f"-{home}/.ssh", f"-{home}/.ansible"]


def test_ansible_there_has_the_settings_of_a_checkout(rendered: Path) -> None:
    checkout, there = configparser.ConfigParser(), configparser.ConfigParser()
    checkout.read(ROOT / "ansible.cfg")
    there.read(rendered / "ansible.cfg")
    assert dict(there["ssh_connection"]) == dict(checkout["ssh_connection"])
    own = dict(there["defaults"])
    first = own.pop("collections_path").split(":")[0]
    assert first == "/opt/latfarm-controller/venv/share/latfarm/collections"
    assert own.items() <= dict(checkout["defaults"]).items()


def test_the_command_lines_and_settings_are_accepted(rendered: Path) -> None:
    import shlex

    import typer
    from latfarm_controller.cli.main import app

    lines = (rendered / "controller.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    names = {name.removeprefix("LATFARM_").lower() for name in given if name.startswith("LATFARM_")}
    assert names <= set(ControllerConfig.model_fields)
    assert given["LATFARM_HEALTH_CHECKS"] == "false"
    assert given["RAY_worker_niceness"] == "5"
    for unit in UNITS:
        (line,) = directives((rendered / unit).read_text())["ExecStart"]
        words = shlex.split(line)
        assert words[1:3] == ["-m", "latfarm_controller.cli.main"]
        group: Any = typer.main.get_command(app)
        rest = [word for word in words[3:] if word != "-v"]
        while hasattr(group, "commands"):
            group, rest = group.commands[rest[0]], rest[1:]
        group.make_context(group.name, rest)


def test_the_installer_is_like_that_of_boards() -> None:
    """Both check every file by its hash, and need no network."""
    for path in (ROLE / "files/install-controller.sh", ROLES / "agent/files/install-release.sh"):
        text = path.read_text()
        for words in ("--no-index", "--require-hashes", "--no-deps", "set -eu"):
            assert words in text, path
