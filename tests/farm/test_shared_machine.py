"""Boards that share a machine are enrolled, upgraded, rolled back and removed one by one.

The boards are simulated. Each test starts from the state in which the previous test ended.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeBoards, MakeController
from tests.farm.lab import enrolment
from tests.farm.lab.enrolment import LabController
from tests.farm.lab.monitored_board import PROFILE

pytestmark = [pytest.mark.farm, pytest.mark.timeout(1200)]

NAMES = ("sim-0", "sim-1", "sim-2")
PROFILE_FILE = "/srv/board.json"
TRANSIENT = (
    *("/var/log", "/var/cache", "/var/lib/systemd", "/var/tmp", "/run", "/tmp", "/proc", "/sys"),
    *("/dev", "/root/.ansible", "/srv"),
)
"""Folders in which a machine writes files of its own."""


@dataclass(frozen=True)
class SharedLab:
    """The machine, its controller, our wheels, and the machine's files at first."""

    machine: VirtualBoard
    controller: LabController
    own: Path
    before: set[str]


@pytest.fixture(scope="module")
def lab(
    make_controller: MakeController, make_boards: MakeBoards, own_wheels: list[Path]
) -> SharedLab:
    (machine,) = make_boards("host")
    machine.write(PROFILE_FILE, json.dumps({"platform": "sim1.0-fp32-1t", **PROFILE}))
    controller = make_controller(
        [machine],
        latfarm_runtimes=[],
        latfarm_work_options=["--simulate", PROFILE_FILE],
        latfarm_hardware="sim",
        latfarm_compile=False,
    )
    ports = {name: {"latfarm_port": 50061 + number} for number, name in enumerate(NAMES)}
    controller.stock_machine(machine, "linux_cpu", ports)
    before = enrolment.files(machine, TRANSIENT)
    return SharedLab(machine, controller, own_wheels[0].parent, before)


def releases(lab: SharedLab) -> dict[str, str]:
    """The release of each board, by the board's name."""
    read = "cd /opt/latfarm/agents && for name in *; do echo $name $(readlink $name/venv); done"
    return dict(line.split() for line in lab.machine.run(read).stdout.splitlines())


def processes(lab: SharedLab) -> dict[str, str]:
    """Process ids of agent and worker of each board; a restart changes them."""
    show = "systemctl show --property=MainPID --value latfarm-agent@{0} latfarm-worker@{0}"
    return {name: lab.machine.run(show.format(name)).stdout for name in NAMES}


def test_each_board_has_units_a_port_and_a_certificate_of_its_own(lab: SharedLab) -> None:
    played = lab.controller.play("enroll.yml")
    assert played.well, played.out
    assert set(lab.controller.boards) == set(NAMES)
    assert len({entry["board_id"] for entry in lab.controller.boards.values()}) == len(NAMES)
    assert len(set(releases(lab).values())) == 1
    assert lab.machine.failed_units() == []
    for number, name in enumerate(NAMES):
        address = f"{lab.machine.address}:{50061 + number}"
        assert lab.controller.boards[name]["address"] == address
        (target,) = json.loads((lab.controller.targets / f"{name}.json").read_text())
        assert target["targets"] == [f"{lab.machine.address}:{9111 + number}"]
    read = "sha256sum /etc/latfarm/agents/*/tls/agent.crt | cut -d' ' -f1 | sort -u"
    assert len(lab.machine.run(read).stdout.split()) == len(NAMES)
    again = lab.controller.play("enroll.yml")
    assert again.changed == dict.fromkeys(NAMES, 0), again.out


def test_one_board_is_upgraded_and_rolled_back_while_the_others_run(
    lab: SharedLab, tmp_path: Path
) -> None:
    before, ids = releases(lab), processes(lab)
    newer = enrolment.altered(lab.own, tmp_path / "newer", "__init__.py", "# newer\n")
    words = ("--limit", "sim-1")
    played = lab.controller.play("upgrade.yml", *words, latfarm_own_wheels=str(newer))
    assert played.well, played.out
    after = releases(lab)
    assert after["sim-1"] != before["sim-1"]
    assert {name for name in NAMES if after[name] != before[name]} == {"sim-1"}
    assert {name for name in NAMES if processes(lab)[name] != ids[name]} == {"sim-1"}
    back = lab.controller.play("rollback.yml")
    assert back.well, back.out
    assert releases(lab) == before
    assert {name for name in NAMES if processes(lab)[name] != ids[name]} == {"sim-1"}
    assert lab.controller.latfarm("boards", "check", "sim-1", "--json")["well"]


def test_a_bad_release_stops_at_the_first_board(lab: SharedLab, tmp_path: Path) -> None:
    before, ids = releases(lab), processes(lab)
    broken = enrolment.altered(
        lab.own, tmp_path / "broken", "service/server.py", "raise SystemExit('broken')\n"
    )
    played = lab.controller.play(
        "upgrade.yml", latfarm_own_wheels=str(broken), latfarm_health_timeout_s=15
    )
    assert played.code != 0
    assert re.search(r"sim-0: \S+ is not well there; it runs \S+ again", played.out), played.out
    assert releases(lab) == before
    assert {name for name in NAMES if processes(lab)[name] != ids[name]} == {"sim-0"}
    assert lab.controller.latfarm("boards", "check", "sim-0", "--json")["well"]


def test_one_board_leaves_and_the_others_stay(lab: SharedLab) -> None:
    ids = processes(lab)
    played = lab.controller.play("unenroll.yml", "--limit", "sim-0")
    assert played.well, played.out
    assert set(lab.controller.boards) == {"sim-1", "sim-2"}
    assert {name for name in NAMES if processes(lab)[name] != ids[name]} == {"sim-0"}
    assert "sim-0" not in releases(lab)
    assert lab.controller.latfarm("boards", "check", "sim-1", "--json")["well"]


def test_the_last_boards_leave_nothing_on_the_machine(lab: SharedLab) -> None:
    played = lab.controller.play("unenroll.yml", latfarm_unenroll="all")
    assert played.well, played.out
    assert lab.controller.boards == {}
    assert enrolment.files(lab.machine, TRANSIENT) == lab.before
    assert "latfarm" not in lab.machine.run("cat /etc/passwd /etc/group").stdout
