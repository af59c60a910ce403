"""Boards that share a machine: what they must not have in common, and the units of ten phones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.collection import BIN, ROLES, playbook_folder, plugin, run

pytestmark = pytest.mark.timeout(300)

Inventory = dict[str, dict[str, Any]]
FILTERS = plugin("filter/boards.py")


def rack(count: int) -> Inventory:
    """Phones on one machine, as an inventory has them."""
    return {
        f"phone-{number}": {
            "ansible_host": "192.0.2.61",
            "latfarm_shared": True,
            "latfarm_port": 50061 + number,
            "latfarm_adb_serial": f"SN{number}",
        }
        for number in range(count)
    }


def conflicts(boards: Inventory) -> list[str]:
    found: list[str] = FILTERS.conflicts(list(boards), boards)
    return found


def test_boards_of_one_address_are_neighbours() -> None:
    boards = {**rack(3), "nuc-1": {"ansible_host": "192.0.2.11"}, "nuc-2": {}}
    of = FILTERS.neighbours
    assert of(boards, boards, "phone-1") == ["phone-0", "phone-1", "phone-2"]
    assert of(boards, boards, "nuc-1") == ["nuc-1"]
    assert of(boards, boards, "nuc-2") == ["nuc-2"]
    # Two machines behind one address differ by their port of ssh.
    boards["phone-2"]["ansible_port"] = 2222
    assert of(boards, boards, "phone-2") == ["phone-2"]


def test_ten_phones_of_one_machine_have_nothing_in_common() -> None:
    assert conflicts(rack(10)) == []


def test_one_board_of_a_machine_may_have_it_for_itself() -> None:
    boards = rack(2)
    boards["phone-0"].pop("latfarm_shared")
    assert conflicts(boards) == []
    boards["phone-1"]["latfarm_shared"] = "no"
    told = conflicts(boards)
    assert "phone-0 and phone-1 are on one machine: set latfarm_shared: true" in told[0]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("latfarm_port", 50061), ("latfarm_adb_serial", "SN0"), ("latfarm_metrics_port", 9111)],
)
def test_the_same_port_or_phone_is_refused(variable: str, value: object) -> None:
    boards = rack(2)
    boards["phone-1"][variable] = value
    told = conflicts(boards)
    assert f"the same {variable} {value}" in " ".join(told)


def test_boards_that_dial_in_have_no_port() -> None:
    boards = rack(2)
    for values in boards.values():
        values.update(latfarm_controller="farm:7450", latfarm_port=50051)
    assert conflicts(boards) == []


def test_a_name_that_no_unit_can_have_is_refused() -> None:
    boards = rack(2)
    boards["a phone"] = boards.pop("phone-1")
    assert "cannot be part of a unit's name" in conflicts(boards)[0]


def test_the_adb_server_reaches_the_chosen_phones_alone() -> None:
    boards = rack(3)
    phones = FILTERS.tcp_phones
    assert phones(boards, boards) == []
    boards["phone-0"].update(latfarm_adb_serial="192.0.2.7:5555", latfarm_adb_network=True)
    boards["phone-1"].update(latfarm_adb_serial="[2001:db8::1]:5555", latfarm_adb_network=True)
    boards["phone-2"].update(latfarm_adb_serial="192.0.2.9:5555")  # nobody has chosen it
    assert phones(boards, boards) == ["192.0.2.7", "2001:db8::1"]
    boards["phone-2"].update(latfarm_adb_serial="phone.example:5555", latfarm_adb_network="yes")
    assert "any" in phones(boards, boards)


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, str]]:
    """The units of three phones on one machine, two over USB and one over TCP, as rendered."""
    if not (BIN / "ansible-playbook").exists():
        pytest.skip("Ansible is not installed: make setup-farm")
    folder = tmp_path_factory.mktemp("units")
    boards = rack(3)
    boards["phone-2"].update(latfarm_adb_serial="192.0.2.9:5555", latfarm_adb_network=True)
    inventory = folder / "inventory.json"
    groups = {"boards": {"children": {"android_host": {"hosts": boards}}}}
    inventory.write_text(json.dumps(groups))
    names = ("latfarm-agent.service", "latfarm-worker.service", "latfarm-adb.service", "agent.env")
    place = ROLES / "agent/templates"
    texts = ", ".join(
        f"'{name}': lookup('ansible.builtin.template', '{place}/{name}.j2')" for name in names
    )
    play = {
        "hosts": "boards",
        "gather_facts": False,
        "connection": "local",
        "vars": {"board_is": {"groups": []}, "ansible_python_interpreter": sys.executable},
        "roles": ["latfarm.farm.board"],
        "tasks": [
            {
                "name": "Render",
                "ansible.builtin.copy": {
                    "content": f"{{{{ {{'leads': latfarm_leads, {texts}}} | to_json }}}}",
                    "dest": f"{folder}/{{{{ inventory_hostname }}}}.json",
                    "mode": "0644",
                },
            }
        ],
    }
    book = playbook_folder(folder / "play") / "book.yml"
    book.write_text(json.dumps([play]))
    done = run("ansible-playbook", "-i", inventory, book, LATFARM_HOME=str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("phone-*.json")}


def test_each_phone_has_folders_and_ports_of_its_own(
    units: Mapping[str, Mapping[str, Any]],
) -> None:
    assert [name for name in sorted(units) if units[name]["leads"]] == ["phone-0"]
    for number in range(3):
        name = f"phone-{number}"
        agent, worker = units[name]["latfarm-agent.service"], units[name]["latfarm-worker.service"]
        assert f"--listen 0.0.0.0:{50061 + number} --metrics-port {9111 + number}" in agent
        assert f"After=network-online.target latfarm-worker@{name}.service" in agent
        assert f"ExecStart=/opt/latfarm/agents/{name}/venv/bin/python" in agent
        assert f"StateDirectory=latfarm/agents/{name}/agent" in agent
        assert f"RuntimeDirectory=latfarm-{name}\n" in worker
        assert "PrivateNetwork=yes" in worker
        assert "RestrictAddressFamilies=AF_UNIX\n" in worker
        assert "ADB_SERVER_SOCKET=localfilesystem:/run/latfarm-adb/" in units[name]["agent.env"]


def test_the_adb_server_has_a_network_only_where_it_is_chosen(
    units: Mapping[str, Mapping[str, Any]],
) -> None:
    (adb,) = {each["latfarm-adb.service"] for each in units.values()}
    assert "IPAddressDeny=any\nIPAddressAllow=192.0.2.9\n" in adb
    assert "PrivateNetwork" not in adb


def test_systemd_understands_the_units(
    units: Mapping[str, Mapping[str, Any]], tmp_path: Path
) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this host has no systemd-analyze")
    files = [tmp_path / "latfarm-adb.service"]
    files[0].write_text(units["phone-0"]["latfarm-adb.service"])
    for kind in ("agent", "worker"):
        file = tmp_path / f"latfarm-{kind}@phone-0.service"
        # The programs of a board are not here.
        text = units["phone-0"][f"latfarm-{kind}.service"]
        file.write_text(text.replace("/opt/latfarm/agents/phone-0/venv/bin/python", "/bin/true"))
        files.append(file)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, files)],
        capture_output=True,
        text=True,
    )
    assert "Unknown" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
