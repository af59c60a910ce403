"""A virtual machine on which playbooks deploy a controller, and releases to deploy there."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from latfarm_controller.enrolment.wheelhouse import CONTROLLER
from latfarm_controller.store.migrate import known_migrations

from tests.farm.boards import wheels
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.lab.enrolment import LabController, _connection
from tests.farm.lab.wheelhouses import controller_folder

HOME = "/var/lib/latfarm-controller"
"""Home of the deployed controller."""
OWN = (*CONTROLLER.own, "latfarm-agent")
"""Distributions of this checkout that a controller installs, or hands on to boards."""

_CONVERTS = "CREATE TABLE farm_test (x INTEGER);\n"
_BREAKS = '\ndef tell_ready() -> bool:\n    raise SystemExit("this release never serves")\n'


class DeployedController(LabController):
    """Runs the playbooks of a controller for one machine.

    Args:
        folder: an empty folder for the inventory.
        own: folder with the wheels of this project that are installed.
        hub: the machine of the controller.
        variables: variables of Ansible for it.
    """

    def __init__(self, folder: Path, own: Path, hub: VirtualBoard, **variables: Any) -> None:
        self.hub = hub
        super().__init__(folder, own, [], **variables)

    def stock(
        self,
        boards: Iterable[VirtualBoard],
        of: Mapping[str, Mapping[str, Any]] | None = None,
        beside: Iterable[VirtualBoard] = (),
    ) -> None:
        """Write the inventory, which holds the one machine."""
        given = {"controller_wheels_dir": str(controller_folder()), "controller_compile": False}
        variables = {**self._variables, **given}
        group = {"vars": variables, "hosts": {self.hub.name: _connection(self.hub)}}
        self._inventory.write_text(json.dumps({"controllers": group}))

    def run(self, *words: str, user: str = "", check: bool = True, timeout_s: float = 300.0) -> str:
        """Run `latfarm` on the machine, as root or as another user; return what it printed.

        With `check` unset, what it printed on standard error is returned.
        """
        as_user = ["runuser", "-u", user, "--"] if user else []
        done = self.hub.run(
            [*as_user, "/usr/local/bin/latfarm", *words], check=check, timeout_s=timeout_s
        )
        return done.stdout if check else done.stderr

    def ask(self, *words: str, user: str = "") -> Any:
        """What a command of `latfarm` on the machine tells as JSON."""
        return json.loads(self.run(*words, "--json", user=user))


def build(folder: Path) -> Path:
    """Build the wheels that a controller installs from this checkout."""
    wheels.own(folder, OWN)
    return folder


def altered_release(own: Path, folder: Path, *, breaks: bool) -> Path:
    """Make a later release, which converts the store and has another agent for boards.

    Args:
        own: folder with wheels of this project.
        folder: folder of the copies; it does not exist yet.
        breaks: whether it ends before it serves, after it has converted the store.
    """
    folder.mkdir()
    number = known_migrations()[-1].version + 1
    migration = f"latfarm_controller/store/migrations/{number:04d}_farm_test.sql"
    broken = "latfarm_controller/cli/farm/service_manager.py"
    for wheel in own.glob("latfarm_*.whl"):
        with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(folder / wheel.name, "w") as copy:
            for entry in source.infolist():
                data = source.read(entry)
                if breaks and entry.filename == broken:
                    data += _BREAKS.encode()
                if entry.filename == "latfarm_agent/__init__.py":
                    data += b"\n# This is a later release.\n"
                copy.writestr(entry, data)
            if wheel.name.startswith("latfarm_controller-"):
                assert broken in source.namelist()
                copy.writestr(migration, _CONVERTS)
    return folder


def words_of_agent(board: VirtualBoard, port: int, profile: str) -> Sequence[str]:
    """The command line of an agent with a simulated board and certificates in /etc/latfarm."""
    return (
        *(wheels.AGENT, "serve", "--name", board.name, "--listen", f"{board.address}:{port}"),
        *("--state-dir", "/var/lib/latfarm", "--simulate", profile),
        *("--tls-ca", "/etc/latfarm/ca.crt", "--tls-cert", "/etc/latfarm/agent.crt"),
        *("--tls-key", "/etc/latfarm/agent.key"),
    )
