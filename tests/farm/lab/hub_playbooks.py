"""Playbooks for boards on the machine of a deployed controller, run by the controller's account."""

from __future__ import annotations

import json
from typing import Any

from tests.farm.boards.patience import scaled_s
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.boards.wheels import MACHINES
from tests.farm.lab.deployed_controller import HOME
from tests.farm.lab.enrolment import CONNECT_S, HEALTH_S, PLAY_S, PlaybookResult, read_result
from tests.farm.lab.wheelhouses import GLIBC, PYTHON

ACCOUNT = "latfarm-controller"
"""Account of a deployed controller."""

_INVENTORY = "/etc/latfarm-controller/boards.json"
_COMMAND = "/usr/local/bin/latfarm-playbook"
_SSH = f"{HOME}/.ssh"


def kind_of(board: VirtualBoard) -> dict[str, Any]:
    """The kind of a board without runtimes, as the variable `controller_board_kinds` names it."""
    return {"python": PYTHON, "arch": MACHINES[board.arch], "glibc": GLIBC, "runtimes": []}


class HubPlaybooks:
    """Runs playbooks of boards with what the deployment has brought to the machine.

    The account gets the rack's key, as an admin gives it a key.

    Args:
        hub: the machine of the controller, which is deployed.
        board: the one board of the inventory, of the type linux_cpu.
        variables: variables of Ansible for it.
    """

    def __init__(self, hub: VirtualBoard, board: VirtualBoard, **variables: Any) -> None:
        self._hub = hub
        hub.push(hub.rack.key, f"{_SSH}/id_ed25519")
        hub.push(hub.rack.known_hosts, f"{_SSH}/known_hosts")
        hub.run(f"chown -R {ACCOUNT}: {_SSH} && chmod 0700 {_SSH} && chmod 0600 {_SSH}/*")
        given = {
            "ansible_host": board.address,
            "ansible_user": "root",
            "latfarm_health_timeout_s": round(scaled_s(HEALTH_S)),
            "latfarm_compile": False,
            **variables,
        }
        groups = {"boards": {"children": {"linux_cpu": {"hosts": {board.name: given}}}}}
        hub.write(_INVENTORY, json.dumps(groups))

    def play(self, name: str, *words: str) -> PlaybookResult:
        """Run a playbook of the collection, for example "enroll"; root calls the command."""
        connecting = f"ANSIBLE_TIMEOUT={round(scaled_s(CONNECT_S))}"
        command = ("env", connecting, "ANSIBLE_NOCOLOR=1", _COMMAND, "-i", _INVENTORY)
        done = self._hub.run(
            [*command, f"latfarm.farm.{name}", *words], check=False, timeout_s=PLAY_S
        )
        return read_result(done)
