"""The machine of a controller for tests: playbooks, an inventory, `latfarm` and its home folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.farm.boards.patience import scaled_s
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.boards.wheels import ROOT
from tests.farm.lab.wheelhouses import boards_folder

PLAYBOOKS = ROOT / "ansible/collections/ansible_collections/latfarm/farm/playbooks"
_BIN = Path(sys.executable).parent
"""Folder of `latfarm` and Ansible's programs."""

_RECAP = re.compile(
    r"^(?P<host>\S+)\s+: ok=\d+\s+changed=(?P<changed>\d+)\s+unreachable=(?P<unreachable>\d+)"
    r"\s+failed=(?P<failed>\d+)",
    re.MULTILINE,
)
"""A line of the summary that Ansible prints at the end of a playbook."""

HEALTH_S = 180.0
"""How long a board may take to be well on a quiet host, in seconds; the playbooks' default."""

CONNECT_S = 10.0
"""How long Ansible waits for a connection on a quiet host, in seconds; its own default."""

PLAY_S = 1800.0
"""Limit of the time that a playbook may take on a quiet host, in seconds; emulated boards are
slow."""


def lacks() -> str:
    """Why this host cannot run playbooks, in one line; empty if it can."""
    if not (_BIN / "ansible-playbook").exists():
        return "Ansible is not installed: make setup-farm"
    return ""


@dataclass(frozen=True)
class PlaybookResult:
    """How a playbook ended.

    Attributes:
        code: exit status of Ansible.
        out: everything that Ansible printed.
        changed: number of tasks that changed something, by host.
        bad: number of tasks that failed or did not reach the host, by host.
    """

    code: int
    out: str
    changed: dict[str, int]
    bad: dict[str, int]

    @property
    def well(self) -> bool:
        """Whether every host was reached and no task failed."""
        return self.code == 0 and bool(self.changed) and not any(self.bad.values())


def read_result(done: subprocess.CompletedProcess[str]) -> PlaybookResult:
    """How a playbook ended, as `ansible-playbook` has told it."""
    hosts = list(_RECAP.finditer(done.stdout))
    return PlaybookResult(
        done.returncode,
        done.stdout + done.stderr,
        {host["host"]: int(host["changed"]) for host in hosts},
        {host["host"]: int(host["failed"]) + int(host["unreachable"]) for host in hosts},
    )


class LabController:
    """Runs playbooks and `latfarm` with a home folder and an inventory of its own.

    Args:
        folder: an empty folder for the home folder and the inventory.
        own: folder with the wheels of this project that are installed on boards.
        boards: the boards of the inventory.
        variables: variables of Ansible for all boards.
    """

    def __init__(
        self, folder: Path, own: Path, boards: Iterable[VirtualBoard], **variables: Any
    ) -> None:
        self.home = folder / "home"
        self.targets = folder / "file_sd"
        self._folder = folder
        self._variables = {
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "latfarm_home": str(self.home),
            "latfarm_wheels_dir": str(_wheels(folder)),
            "latfarm_own_wheels": str(own),
            "latfarm_file_sd_dir": str(self.targets),
            "latfarm_file_sd_become": False,
            "latfarm_health_timeout_s": round(scaled_s(HEALTH_S)),
            **variables,
        }
        self.home.mkdir(mode=0o700)
        # The tests measure nothing on their own machine.
        (self.home / "latfarm.toml").write_text("local_agent = false\n")
        self._inventory = folder / "inventory.json"
        self.stock(boards)

    def stock(
        self,
        boards: Iterable[VirtualBoard],
        of: Mapping[str, Mapping[str, Any]] | None = None,
        beside: Iterable[VirtualBoard] = (),
    ) -> None:
        """Write the inventory.

        Args:
            boards: all boards; each is of the type linux_cpu.
            of: further variables of some boards, by the board's name.
            beside: machines that are not boards; they have the variables of the farm, too.
        """
        more = of or {}
        hosts = {board.name: {**_connection(board), **more.get(board.name, {})} for board in boards}
        others = {machine.name: _connection(machine) for machine in beside}
        groups = {
            "boards": {"vars": self._variables, "children": {"linux_cpu": {"hosts": hosts}}},
            "beside": {"vars": self._variables, "hosts": others},
        }
        self._inventory.write_text(json.dumps(groups))

    def stock_machine(
        self, machine: VirtualBoard, kind: str, of: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Write an inventory in which several boards share a machine.

        Args:
            machine: the machine that Ansible reaches for each of them.
            kind: name of the group of their type, for example "android_host".
            of: variables of each board, by the board's name.
        """
        hosts = {name: {**_connection(machine), **own} for name, own in of.items()}
        shared = {**self._variables, "latfarm_shared": True}
        groups = {"boards": {"vars": shared, "children": {kind: {"hosts": hosts}}}}
        self._inventory.write_text(json.dumps(groups))

    def play(self, name: str, *words: str, **variables: Any) -> PlaybookResult:
        """Run a playbook.

        Args:
            name: name of the playbook at its old path, for example "rotate-certs.yml".
            words: further arguments of `ansible-playbook`.
            variables: variables of Ansible for this run.
        """
        command = [str(_BIN / "ansible-playbook"), "-i", str(self._inventory)]
        if variables:
            command += ["-e", json.dumps(variables)]
        done = subprocess.run(
            [*command, f"latfarm.farm.{Path(name).stem.replace('-', '_')}", *words],
            cwd=ROOT,
            env={**self._environment(), "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=scaled_s(PLAY_S),
        )
        return read_result(done)

    def latfarm(self, *words: str, check: bool = True) -> Any:
        """Run a command of `latfarm` that prints JSON; return what it printed."""
        done = subprocess.run(
            self.command(*words), env=self._environment(), capture_output=True, text=True
        )
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of `latfarm` whose output the caller reads later."""
        return subprocess.Popen(
            self.command(*words),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *words: str) -> list[str]:
        """The command line of `latfarm` with some arguments."""
        return [str(_BIN / "latfarm"), *words]

    @property
    def boards(self) -> dict[str, Any]:
        """The boards that `latfarm` knows, by name."""
        known: dict[str, Any] = json.loads((self.home / "boards.json").read_text())["boards"]
        return known

    @property
    def host_vars(self) -> Path:
        """The folder beside the inventory where Ansible looks for variables of single hosts."""
        return self._folder / "host_vars"

    @property
    def revoked(self) -> list[str]:
        """Fingerprints of the certificates that have been revoked."""
        listed: list[str] = json.loads((self.home / "tls" / "revoked.json").read_text())["sha256"]
        return listed

    def _environment(self) -> dict[str, str]:
        connecting = str(round(scaled_s(CONNECT_S)))
        return {**os.environ, "LATFARM_HOME": str(self.home), "ANSIBLE_TIMEOUT": connecting}


def _connection(board: VirtualBoard) -> dict[str, Any]:
    """Ansible's variables for the connection to a board."""
    return {
        "ansible_host": board.address,
        "ansible_ssh_common_args": " ".join(board.ssh_options),
    }


def _wheels(folder: Path) -> Path:
    """The folder of wheelhouses; wheels of other projects in it are kept in the cache folder."""
    fetched = boards_folder() / "others"
    fetched.mkdir(exist_ok=True)
    place = folder / "wheels"
    place.mkdir()
    (place / "others").symlink_to(fetched)
    return place


def altered(own: Path, folder: Path, name: str, text: str) -> Path:
    """Make another release: copies of our wheels, with `text` before one of the agent's modules.

    Args:
        own: folder with wheels of this project.
        folder: folder of the copies; it does not exist yet.
        name: path of the module from the agent's package on, for example "service/server.py".
        text: Python code that is put before the content of the module.
    """
    folder.mkdir()
    found = False
    for wheel in own.glob("*.whl"):
        with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(folder / wheel.name, "w") as copy:
            for entry in source.infolist():
                data = source.read(entry)
                if entry.filename == f"latfarm_agent/{name}":
                    data = text.encode() + data
                    found = True
                copy.writestr(entry, data)
    assert found, f"the agent has no module {name}"
    return folder


def files(board: VirtualBoard, except_below: Sequence[str]) -> set[str]:
    """Paths of all files and folders on a board's disk, except those below some folders."""
    pruned = " -o ".join(f"-path {path}" for path in except_below)
    listed = board.run(f"find / -xdev \\( {pruned} \\) -prune -o -print", timeout_s=120.0)
    return set(listed.stdout.splitlines())
