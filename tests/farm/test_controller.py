"""A controller is deployed on a machine, backed up, lost, restored, upgraded, and rolled back.

From its machine, which reaches no package index, a board is enrolled, upgraded and removed.

Each test starts from the state in which the previous test ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from latfarm_controller.store.migrate import known_migrations

from tests.farm.boards import debs, wheels
from tests.farm.boards.host import NATIVE
from tests.farm.boards.rack import Rack
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import cannot
from tests.farm.lab import deployed_controller, enrolment
from tests.farm.lab.deployed_controller import HOME, DeployedController
from tests.farm.lab.hub_playbooks import HubPlaybooks, kind_of
from tests.farm.lab.monitored_board import PROFILE
from tests.farm.lab.processes import until
from tests.integration.conftest import write_model

pytestmark = [pytest.mark.farm, pytest.mark.slow, pytest.mark.timeout(3600)]

PLATFORM = "nuc-sim1.0-fp32-1t"
ENROLLED = "enrolled-sim1.0-fp32-1t"
"""Platform of the board that is enrolled from the machine of the controller."""

PROFILE_FILE = "/srv/board.json"
BACKUPS = "/var/backups/latfarm"
PORT = 50051
EXPOSURE = re.compile(r"Overall exposure level for \S+: ([\d.]+)")
UPGRADES = f"{BACKUPS}/before-upgrades"
QUERY = ("query", "/srv/model.onnx", "-p", PLATFORM, "--survey")
QUERY_ENROLLED = ("query", "/srv/model.onnx", "-p", ENROLLED, "--survey")
AGENT_UNIT = (
    "[Service]\nExecStart={command}\nRestart=always\n[Install]\nWantedBy=multi-user.target\n"
)


@dataclass(frozen=True)
class DeploymentLab:
    """The machine of the controller, two boards, the playbooks, and the wheels of this project.

    The agent of `board` is set up by hand, and `fresh` is a board to enrol.
    """

    hub: VirtualBoard
    board: VirtualBoard
    fresh: VirtualBoard
    controller: DeployedController
    own: Path
    folder: Path


@pytest.fixture(scope="module")
def lab(
    rack: Rack, own_wheels: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DeploymentLab]:
    """A bare machine, a board with an agent that is not started yet, and a bare board."""
    if reason := enrolment.lacks():
        cannot(reason)
    folder = tmp_path_factory.mktemp("deployment")
    own = deployed_controller.build(folder / "own")
    site = wheels.site(wheels.requirements(), arch=NATIVE)
    with (
        VirtualBoard("hub", rack=rack) as hub,
        VirtualBoard("nuc", rack=rack) as board,
        VirtualBoard("enrolled", rack=rack) as fresh,
    ):
        debs.offer(hub, debs.CONTROLLER)
        hub.run("useradd ada && useradd eve")
        wheels.install(board, site, own_wheels)
        board.write(PROFILE_FILE, json.dumps({"platform": PLATFORM, **PROFILE}))
        fresh.write(PROFILE_FILE, json.dumps({"platform": ENROLLED, **PROFILE}))
        (folder / "lab").mkdir()
        controller = DeployedController(
            folder / "lab",
            own,
            hub,
            controller_members=["ada"],
            controller_board_kinds=[kind_of(fresh)],
        )
        yield DeploymentLab(hub, board, fresh, controller, own, folder)


def play(lab: DeploymentLab, name: str, own: Path, **variables: object) -> enrolment.PlaybookResult:
    """Run a playbook; if it fails, what it printed ends with the journal of the controller."""
    played = lab.controller.play(name, controller_own_wheels=str(own), **variables)
    if played.well:
        return played
    journal = lab.hub.run("journalctl -u latfarm-controller --no-pager -n 40", check=False).stdout
    return replace(played, out=played.out + journal)


def schema_version(lab: DeploymentLab) -> int:
    return int(lab.controller.ask("db", "info")["schema_version"])


def measurements(lab: DeploymentLab) -> int:
    return int(lab.controller.ask("db", "info")["rows"]["measurements"])


def release(lab: DeploymentLab) -> str:
    return lab.hub.run("readlink /opt/latfarm-controller/venv").stdout.strip()


def platforms(lab: DeploymentLab) -> dict[str, list[str]]:
    """The platforms that each board offers, as the controller says."""
    return {each["name"]: each["platforms"] for each in lab.controller.ask("boards")}


def enrolled(lab: DeploymentLab) -> HubPlaybooks:
    """The playbooks of boards on the controller's machine, for one board that simulates."""
    return HubPlaybooks(
        lab.hub,
        lab.fresh,
        latfarm_runtimes=[],
        latfarm_work_options=["--simulate", PROFILE_FILE],
        latfarm_hardware="sim",
    )


def test_a_controller_is_deployed_and_hardened(lab: DeploymentLab) -> None:
    first = play(lab, "controller.yml", lab.own)
    assert first.well, first.out
    again = play(lab, "controller.yml", lab.own)
    assert again.well, again.out
    assert again.changed["hub"] == 0, again.out
    for unit in ("latfarm-controller", "latfarm-controller-backup"):
        said = lab.hub.run(f"systemd-analyze security --no-pager {unit}.service").stdout
        match = EXPOSURE.search(said)
        assert match is not None, said
        assert float(match[1]) < 2.5
    assert lab.hub.failed_units() == []
    assert "active" in lab.hub.run("systemctl is-active latfarm-controller-backup.timer").stdout
    assert lab.hub.run(f"stat -c '%U %a' {HOME}").stdout == "latfarm-controller 700\n"


def test_a_member_of_the_group_measures_under_their_own_name(lab: DeploymentLab) -> None:
    """The whole chain under the hardened unit: Ray builds the model, and the board measures it."""
    address = lab.board.address
    lab.controller.run("certs", "issue", "nuc", "--role", "agent", "--host", address)
    for name, source in (("ca.crt", "ca.crt"), ("agent.crt", "issued/nuc.crt")):
        lab.hub.pull(f"{HOME}/tls/{source}", lab.folder / name)
        lab.board.push(lab.folder / name, f"/etc/latfarm/{name}")
    lab.hub.pull(f"{HOME}/tls/issued/nuc.key", lab.folder / "agent.key")
    lab.board.push(lab.folder / "agent.key", "/etc/latfarm/agent.key")
    words = deployed_controller.words_of_agent(lab.board, PORT, PROFILE_FILE)
    unit = AGENT_UNIT.format(command=" ".join(words))
    lab.board.write("/etc/systemd/system/latfarm-agent.service", unit)
    lab.board.run("systemctl daemon-reload && systemctl enable --quiet --now latfarm-agent")
    lab.controller.run("boards", "add", "nuc", f"{address}:{PORT}")
    lab.controller.run("boards", "check", "nuc", "--timeout", "120")
    write_model(lab.folder / "model.onnx", 3)
    lab.hub.push(lab.folder / "model.onnx", "/srv/model.onnx")
    answer = lab.controller.ask(*QUERY, user="ada")
    assert answer["hit"] is False, answer
    assert lab.controller.ask(*QUERY, user="ada")["hit"] is True
    lab.controller.run("boards", "drain", "nuc", "--reason", "by ada", user="ada")
    lab.controller.run("boards", "resume", "nuc", user="ada")
    audit = lab.controller.ask("audit")
    assert [(each["actor"], each["action"]) for each in audit[:2]] == [
        ("unix:ada", "board.resumed"),
        ("unix:ada", "board.drained"),
    ]
    assert "you may not use the controller" in lab.controller.run("boards", user="eve", check=False)
    journal = lab.hub.run("journalctl -u latfarm-controller --no-pager").stdout
    assert "Ray does not" not in journal, journal


def test_a_lost_controller_is_restored_from_last_nights_backup(lab: DeploymentLab) -> None:
    lab.hub.run("systemctl start latfarm-controller-backup.service", timeout_s=600.0)
    (backup,) = lab.controller.ask("backup", "list", BACKUPS)
    assert backup["measurements"] == measurements(lab) > 0
    lab.hub.pull(backup["backup"], lab.folder / Path(backup["backup"]).name)
    authority = lab.hub.run(f"cat {HOME}/tls/ca.crt").stdout
    # The disk is lost: another controller is deployed, with another authority, and no board.
    lab.hub.run("systemctl stop latfarm-controller && rm -rf /var/lib/latfarm-controller")
    lab.hub.run(f"rm -rf {BACKUPS}")
    played = play(lab, "controller.yml", lab.own)
    assert played.well, played.out
    assert lab.hub.run(f"cat {HOME}/tls/ca.crt").stdout != authority
    assert lab.controller.ask("boards") == []
    here = str(lab.folder / Path(backup["backup"]).name)
    played = play(lab, "restore-controller.yml", lab.own, controller_restore_upload=here)
    assert played.well, played.out
    assert lab.hub.run(f"cat {HOME}/tls/ca.crt").stdout == authority
    (listed,) = lab.controller.ask("boards")
    assert (listed["name"], listed["platforms"]) == ("nuc", [PLATFORM])
    assert measurements(lab) == backup["measurements"]
    assert lab.controller.ask(*QUERY, user="ada")["hit"] is True
    assert lab.controller.ask(*QUERY, "--refresh", user="ada")["hit"] is False


def test_a_release_that_does_not_come_up_is_rolled_back(lab: DeploymentLab) -> None:
    before = (release(lab), schema_version(lab), measurements(lab))
    bad = deployed_controller.altered_release(lab.own, lab.folder / "bad", breaks=True)
    played = play(lab, "upgrade-controller.yml", bad)
    assert played.bad["hub"] == 1
    assert "does not come up healthy; it runs" in played.out
    assert (release(lab), schema_version(lab), measurements(lab)) == before
    assert lab.controller.ask(*QUERY, user="ada")["hit"] is True
    (kept,) = lab.controller.ask("backup", "list", UPGRADES)
    assert kept["measurements"] == before[2]
    former = lab.hub.run(f"ls -d {HOME}/replaced-*").stdout.split()
    assert former, "the converted store is kept beside"


def test_a_board_is_enrolled_from_the_machine_of_the_controller(lab: DeploymentLab) -> None:
    """No package index is reached; wheels, Ansible and playbooks were brought there."""
    played = enrolled(lab).play("enroll")
    assert played.well, played.out
    assert "Prometheus does not know the board" in " ".join(played.out.split())
    # The running controller has read the inventory and called the board.
    until(lambda: platforms(lab) == {"nuc": [PLATFORM], "enrolled": [ENROLLED]}, "both boards")
    assert lab.controller.ask(*QUERY_ENROLLED, user="ada")["hit"] is False
    assert lab.controller.ask(*QUERY_ENROLLED, user="ada")["hit"] is True
    # The service has the same account, and does not see the key with which it becomes root there.
    service = "$(systemctl show --property=MainPID --value latfarm-controller)"
    look = f"ls {HOME}/.ssh"
    assert "id_ed25519" in lab.hub.run(look).stdout
    seen = lab.hub.run(f"nsenter --target {service} --mount {look}", check=False)
    assert seen.stdout == ""
    said = lab.hub.run("runuser -u ada -- /usr/local/bin/latfarm-playbook --version", check=False)
    assert (said.returncode, "only root and the account" in said.stderr) == (2, True)


def test_a_kind_of_board_that_was_not_brought_is_named(lab: DeploymentLab) -> None:
    words = ("--python", "3.12", "--arch", "aarch64", "--glibc", "2.39", "--runtimes", "tflite")
    said = " ".join(lab.controller.run("boards", "wheels", *words, check=False).split())
    kind = '{python: "3.12", arch: aarch64, glibc: "2.39", runtimes: [tflite]}'
    assert "pip download: " in said
    assert f"add {kind} to controller_board_kinds" in said


def test_an_upgrade_converts_the_store(lab: DeploymentLab) -> None:
    before = (release(lab), measurements(lab))
    good = deployed_controller.altered_release(lab.own, lab.folder / "good", breaks=False)
    kept = play(lab, "controller.yml", good)
    assert kept.well, kept.out
    assert "latfarm.farm.upgrade_controller brings" in kept.out
    assert release(lab) == before[0], "deploying again never changes the release"
    played = play(lab, "upgrade-controller.yml", good)
    assert played.well, played.out
    assert release(lab) != before[0]
    assert schema_version(lab) == known_migrations()[-1].version + 1
    assert measurements(lab) == before[1]
    assert lab.controller.ask(*QUERY, user="ada")["hit"] is True
    assert lab.hub.failed_units() == []


def test_the_board_gets_the_agent_of_the_upgraded_controller(lab: DeploymentLab) -> None:
    playbooks = enrolled(lab)
    before = lab.fresh.run("readlink /opt/latfarm/venv").stdout
    rows = measurements(lab)
    kept = playbooks.play("enroll")
    assert kept.well, kept.out
    assert "latfarm.farm.upgrade brings: release" in " ".join(kept.out.split())
    played = playbooks.play("upgrade")
    assert played.well, played.out
    assert lab.fresh.run("readlink /opt/latfarm/venv").stdout != before
    assert lab.controller.ask(*QUERY_ENROLLED, "--refresh", user="ada")["hit"] is False
    assert measurements(lab) > rows
    assert lab.fresh.failed_units() == []


def test_the_board_leaves_the_farm_from_there(lab: DeploymentLab) -> None:
    played = enrolled(lab).play("unenroll", "--limit", "enrolled")
    assert played.well, played.out
    until(lambda: set(platforms(lab)) == {"nuc"}, "the board to be forgotten")
    left = lab.fresh.run("find /etc /opt /var/lib -xdev -name '*latfarm*'").stdout.split()
    assert [path for path in left if "/journal" not in path] == []
    assert lab.controller.ask(*QUERY, "--refresh", user="ada")["hit"] is False
