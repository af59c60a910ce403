"""Playbooks and roles are tested without a board: syntax, linter, and rendered templates."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.collection import (
    COLLECTION,
    NEEDS_ANSIBLE,
    PLAYBOOKS,
    ROLES,
    ROOT,
    load,
    playbook_folder,
    run,
)

BOOKS = ("enroll", "unenroll", "upgrade", "rollback", "rotate_certs", "check", "monitoring")
"""Playbooks of boards and of monitoring; those of a controller have tests of their own."""

DESCRIBED_IN = {"monitoring": "docs/monitoring.md"}
"""Pages that describe a playbook; docs/how-to/enrol.md describes all others."""

TYPES = ("linux_cpu", "jetson", "ncs2", "imx93", "imx8mp", "android_host")
"""Types of boards, by the names of their groups in the inventory."""

pytestmark = [NEEDS_ANSIBLE, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """For each host of the example inventory: its resolved variables, and its rendered files.

    An undefined variable in a template is an error.
    """
    folder = tmp_path_factory.mktemp("rendered")
    templates = {
        path.name.removesuffix(".j2"): str(path)
        for role in ("agent", "host")
        for path in sorted((ROLES / role / "templates").glob("*.j2"))
    }
    looked_up = ", ".join(
        f"'{name}': lookup('ansible.builtin.template', '{path}')"
        for name, path in templates.items()
    )
    resolved = ", ".join(
        f"'{name}': {name}" for name in sorted(load(ROLES / "board/defaults/main.yml"))
    )
    play = {
        "hosts": "boards",
        "gather_facts": False,
        "connection": "local",
        "vars": {
            "board_is": {"groups": ["video"]},
            "ansible_python_interpreter": sys.executable,
        },
        "roles": ["latfarm.farm.board"],
        "tasks": [
            {
                "name": "Render",
                "ansible.builtin.copy": {
                    "content": f"{{{{ {{'vars': {{{resolved}}}, {looked_up}}} | to_json }}}}",
                    "dest": f"{folder}/{{{{ inventory_hostname }}}}.json",
                    "mode": "0644",
                },
            },
        ],
    }
    book = playbook_folder(folder / "play") / "book.yml"
    book.write_text(json.dumps([play]))
    done = run(
        *("ansible-playbook", "-i", "ansible/inventory.example.yml", book),
        LATFARM_HOME=str(folder),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_playbooks_parse() -> None:
    inventory = ("-i", "ansible/inventory.example.yml")
    books = [f"latfarm.farm.{name}" for name in BOOKS]
    done = run("ansible-playbook", "--syntax-check", *inventory, *books)
    assert done.returncode == 0, done.stderr
    assert all(f"latfarm/farm/playbooks/{name}.yml" in done.stdout for name in BOOKS)


def test_the_example_has_a_board_of_every_type(hosts: Mapping[str, Mapping[str, Any]]) -> None:
    types = {host["vars"]["latfarm_type"] for host in hosts.values()}
    assert types == {name.replace("_", "-") for name in TYPES}
    assert {path.stem for path in (PLAYBOOKS / "group_vars").glob("*.yml")} == set(TYPES)


@pytest.mark.parametrize("name", TYPES)
def test_the_variables_of_each_type_are_used(name: str) -> None:
    defaults = (ROLES / "board/defaults/main.yml").read_text()
    for variable in load(PLAYBOOKS / "group_vars" / f"{name}.yml"):
        if variable != "latfarm_type":
            assert variable.startswith("latfarm_type_")
            assert f"{variable} | default" in defaults, variable


def test_the_agent_accepts_its_configuration_and_settings(
    hosts: Mapping[str, Mapping[str, Any]], tmp_path: Path
) -> None:
    from latfarm_agent.agent_config import read_config
    from latfarm_agent.board.settings import read_wanted

    extras = load_extras()
    for name, host in hosts.items():
        assert set(host["vars"]["latfarm_runtimes"]) <= extras
        file = tmp_path / f"{name}.json"
        file.write_text(host["agent.json"])
        assert read_config(file).threads
        file.write_text(json.dumps(host["vars"]["latfarm_settings"]))
        read_wanted(file)


def load_extras() -> set[str]:
    import tomllib

    project = tomllib.loads((ROOT / "agent/pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


def directives(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.replace("\\\n", " ").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_agent_has_no_device_and_the_worker_no_network(
    hosts: Mapping[str, Mapping[str, Any]],
) -> None:
    for name, host in hosts.items():
        agent = directives(host["latfarm-agent.service"])
        worker = directives(host["latfarm-worker.service"])
        assert agent["PrivateDevices"] == ["yes"]
        assert "DeviceAllow" not in agent
        assert agent["MemoryDenyWriteExecute"] == ["yes"]
        assert worker["PrivateNetwork"] == ["yes"]
        assert worker["DevicePolicy"] == ["closed"]
        assert worker.get("DeviceAllow", []) == host["vars"]["latfarm_device_allow"]
        folder = "/etc/latfarm"
        run_folder = "/run/latfarm"
        if host["vars"]["latfarm_shared"]:
            folder, run_folder = f"/etc/latfarm/agents/{name}", f"/run/latfarm-{name}"
        assert f"{folder}/tls" in worker["InaccessiblePaths"][0].split()
        assert f"--tls-key {folder}/tls/agent.key" in agent["ExecStart"][0]
        assert agent["LogNamespace"] == worker["LogNamespace"] == ["latfarm"]
        assert agent["User"] != worker["User"]
        for unit in (agent, worker):
            assert unit["NoNewPrivileges"] == ["yes"]
            assert unit["CapabilityBoundingSet"] == [""]
            assert unit["ProtectSystem"] == ["strict"]
            assert unit["KillMode"] == ["mixed"], "a stop must not end workers behind their agent"
        network = {"AF_INET", "AF_INET6"} & set(worker["RestrictAddressFamilies"][0].split())
        assert not network, name
        assert f"--bench {run_folder}/bench.sock" in agent["ExecStart"][0]
        assert f"--socket {run_folder}/bench.sock" in worker["ExecStart"][0]


def test_the_agent_accepts_the_command_lines_of_the_services(
    hosts: Mapping[str, Mapping[str, Any]],
) -> None:
    import shlex

    from latfarm_agent.arguments import make_parser

    parser = make_parser()
    for host in hosts.values():
        for unit in ("latfarm-agent", "latfarm-worker", "latfarm-settings"):
            (start,) = directives(host[f"{unit}.service"])["ExecStart"]
            words = shlex.split(start)
            assert words[1:3] == ["-m", "latfarm_agent.cli"]
            assert parser.parse_args(words[3:]).command in ("serve", "work", "settle")


def test_udev_rules_give_devices_to_the_worker_alone(
    hosts: Mapping[str, Mapping[str, Any]],
) -> None:
    with_rules = [host for host in hosts.values() if host["vars"]["latfarm_udev"]]
    assert len(with_rules) >= 4
    for host in with_rules:
        rules = [line for line in host["70-latfarm.rules"].splitlines() if not line.startswith("#")]
        assert len(rules) == len(host["vars"]["latfarm_udev"])
        for rule in rules:
            assert rule.endswith(', GROUP="latfarm-devices", MODE="0660"')
            assert re.match(r'(SUBSYSTEM|KERNEL)=="', rule)


def udevadm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["udevadm", *words], capture_output=True, text=True)


def test_udev_understands_the_rules(hosts: Mapping[str, Mapping[str, Any]], tmp_path: Path) -> None:
    if shutil.which("udevadm") is None or "verify" not in udevadm("--help").stdout:
        pytest.skip("this udevadm cannot verify rules")
    for name, host in hosts.items():
        file = tmp_path / f"70-{name}.rules"
        file.write_text(host["70-latfarm.rules"])
        done = udevadm("verify", "--resolve-names=never", str(file))
        assert done.returncode == 0, done.stdout + done.stderr


def imported(book: str) -> Iterator[tuple[str, str, str]]:
    """Role, part and condition of each role that a playbook imports."""
    for play in load(PLAYBOOKS / f"{book}.yml"):
        for task in play["tasks"]:
            if role := task.get("ansible.builtin.import_role"):
                name = str(role["name"]).removeprefix("latfarm.farm.")
                yield name, str(role.get("tasks_from", "main")), str(task.get("when", ""))


def test_all_tags_are_documented() -> None:
    for name in BOOKS:
        told = (ROOT / DESCRIBED_IN.get(name, "docs/how-to/enrol.md")).read_text()
        roles = [
            load(ROLES / role / "tasks/main.yml")
            for role, part, _ in imported(name)
            if part == "main"
        ]
        plays = [play["tasks"] for play in load(PLAYBOOKS / f"{name}.yml")]
        tags = {tag for tasks in (*plays, *roles) for task in tasks for tag in task.get("tags", [])}
        for tag in tags - {"always"}:
            assert f"`{tag}`" in told, (name, tag)


def test_enrolment_changes_nothing_that_a_member_runs() -> None:
    """Only these parts may run for a board that may be measuring; the others are guarded."""
    harmless = {
        *(
            ("board", "look"),
            ("board", "health"),
            ("registration", "standing"),
            ("agent", "wheels"),
        ),
        *(("certificates", "authority"), ("certificates", "certificate")),
    }
    parts = list(imported("enroll"))
    assert harmless <= {(role, part) for role, part, _ in parts}
    for role, part, guard in parts:
        if (role, part) == ("agent", "pending"):
            assert guard == "board_member"
        elif (role, part) not in harmless:
            assert guard.startswith("not board_member"), (role, part)


def test_a_rollback_keeps_every_file_that_an_upgrade_brings() -> None:
    """What `pending` compares is what deployment.sh keeps; both lists must name the same files."""
    kept = (ROLES / "agent/files/deployment.sh").read_text()
    names = re.findall(r"path: \"?([^,\"]+)", (ROLES / "agent/vars/main.yml").read_text())
    assert len(names) >= 10
    for template in re.findall(r"from: ([^}]+)}", (ROLES / "agent/vars/main.yml").read_text()):
        assert (ROLES / "agent" / template).exists(), template
    for name in names:
        last = name.rpartition("/")[2]
        unit = re.fullmatch(r"\{\{ latfarm_(agent|worker|settings)_unit \}\}", last)
        known = "latfarm-$unit" if unit else last.replace("{{ latfarm_rules_file }}", "70-latfarm")
        assert known in kept, name


def test_every_handler_that_a_task_notifies_exists() -> None:
    roles = sorted(ROLES.iterdir())
    notified = 0
    for role in roles:
        handlers = role / "handlers" / "main.yml"
        text = handlers.read_text() if handlers.exists() else ""
        known = set(re.findall(r"^- name: (.+)$", text, re.MULTILINE))
        for tasks in sorted((role / "tasks").glob("*.yml")):
            for name in re.findall(r"^ *notify: (.+)$", tasks.read_text(), re.MULTILINE):
                assert name in known, f"{tasks.relative_to(COLLECTION)} notifies {name!r}"
                notified += 1
    assert notified >= 10


def test_every_file_that_a_task_names_is_in_its_role() -> None:
    found = 0
    for tasks in sorted(ROLES.glob("*/tasks/*.yml")):
        text = tasks.read_text()
        others = re.findall(
            r"(?:(?:include|import)_tasks:|^ +file:) (\w+\.yml)$", text, re.MULTILINE
        )
        own = re.findall(r"(?:src|template): ([\w.-]+\.(?:j2|json))", text)
        scripts = re.findall(r"cmd:(?: >-\n)? +([\w-]+\.sh)", text)
        role = tasks.parents[1]
        present = {path.name for path in (*role.glob("templates/*"), *role.glob("files/*"))}
        assert set(others) <= {path.name for path in tasks.parent.iterdir()}, tasks
        assert {*own, *scripts} <= present, tasks
        found += len(others) + len(own) + len(scripts)
    assert found >= 80
