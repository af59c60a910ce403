"""An operator who is not root enrols boards that have different passwords of sudo, from a vault."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.farm.boards import debs
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeBoards, MakeController
from tests.farm.lab.enrolment import LabController
from tests.farm.lab.monitored_board import PROFILE

pytestmark = [pytest.mark.farm, pytest.mark.timeout(1200)]

OPERATOR = "olga"
PASSWORDS = {"nuc-0": "first secret", "nuc-1": "second secret"}
"""Password of sudo on each board."""

PROFILE_FILE = "/srv/board.json"
ACCOUNT = f"""set -e
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y sudo
useradd --create-home --groups sudo --shell /bin/bash {OPERATOR}
install -d -o {OPERATOR} -g {OPERATOR} -m 0700 /home/{OPERATOR}/.ssh
install -o {OPERATOR} -g {OPERATOR} -m 0600 /root/.ssh/authorized_keys /home/{OPERATOR}/.ssh/
"""
"""Shell script that makes the operator's account, who may use sudo with a password."""


@dataclass(frozen=True)
class OperatorLab:
    """The boards, their controller, and the options that open the vault."""

    boards: list[VirtualBoard]
    controller: LabController
    vault: tuple[str, str]


@pytest.fixture(scope="module")
def lab(
    make_controller: MakeController,
    make_boards: MakeBoards,
    tmp_path_factory: pytest.TempPathFactory,
) -> OperatorLab:
    boards = make_boards(*PASSWORDS)
    for board in boards:
        debs.offer(board, debs.OPERATOR)
        board.run(ACCOUNT, timeout_s=600.0)
        board.run("chpasswd", input=f"{OPERATOR}:{PASSWORDS[board.name]}\n")
        board.write(PROFILE_FILE, json.dumps({"platform": "sim1.0-fp32-1t", **PROFILE}))
    controller = make_controller(
        boards,
        ansible_user=OPERATOR,
        latfarm_runtimes=[],
        latfarm_work_options=["--simulate", PROFILE_FILE],
        latfarm_compile=False,
    )
    key = tmp_path_factory.mktemp("vault") / "key"
    key.write_text("the key of the vault\n")
    controller.host_vars.mkdir()
    program = str(Path(sys.executable).parent / "ansible-vault")
    for name, password in PASSWORDS.items():
        file = controller.host_vars / f"{name}.yml"
        file.write_text(f"ansible_become_password: {json.dumps(password)}\n")
        words = ("encrypt", "--vault-password-file", str(key), str(file))
        subprocess.run([program, *words], check=True, capture_output=True)
        assert password not in file.read_text()
    return OperatorLab(boards, controller, ("--vault-password-file", str(key)))


def test_each_board_is_enrolled_with_its_own_password(lab: OperatorLab) -> None:
    assert lab.boards[0].run(f"runuser -u {OPERATOR} -- sudo -n true", check=False).returncode != 0
    played = lab.controller.play("enroll.yml", *lab.vault)
    assert played.well, played.out
    assert set(lab.controller.boards) == set(PASSWORDS)
    for board in lab.boards:
        assert lab.controller.latfarm("boards", "check", board.name, "--json")["well"]
        assert (lab.controller.targets / f"{board.name}.json").exists()
    assert not any(password in played.out for password in PASSWORDS.values())


def test_each_board_leaves_with_its_own_password(lab: OperatorLab) -> None:
    played = lab.controller.play("unenroll.yml", *lab.vault, latfarm_unenroll="all")
    assert played.well, played.out
    assert lab.controller.boards == {}
    for board in lab.boards:
        assert board.run("ls -d /opt/latfarm", check=False).returncode != 0
