"""A controller's machine as an engineer has it: playbooks, an inventory, `latfarm`, a home."""

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

from tests.farm.boards.host import cache_dir
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.boards.wheels import ROOT

PLAYBOOKS = ROOT / "ansible"
_BIN = Path(sys.executable).parent
_RECAP = re.compile(
    r"^(?P<host>\S+)\s+: ok=\d+\s+changed=(?P<changed>\d+)\s+unreachable=(?P<unreachable>\d+)"
    r"\s+failed=(?P<failed>\d+)",
    re.MULTILINE,
)
_PLAY_S = 1800.0


def lacks() -> str:
    """Why no playbook can be run from here; empty if it can."""
    if not (_BIN / "ansible-playbook").exists():
        return "Ansible is not installed: make setup-farm"
    return ""


@dataclass(frozen=True)
class Played:
    """How a playbook ended. `changed`: tasks by host."""

    code: int
    out: str
    changed: dict[str, int]
    bad: dict[str, int]

    @property
    def well(self) -> bool:
        """Whether no task failed and every host was reached."""
        return self.code == 0 and bool(self.changed) and not any(self.bad.values())


class Controller:
    """Runs playbooks and `latfarm` in a home of its own.

    Args:
        folder: an empty one.
        own: folder with the wheels that boards get of us.
        boards: the inventory.
        variables: of all boards.
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
            **variables,
        }
        self.home.mkdir(mode=0o700)
        # The machine of the tests is no board: nothing is measured on it.
        (self.home / "latfarm.toml").write_text("local_agent = false\n")
        self._inventory = folder / "inventory.json"
        self.stock(boards)

    def stock(
        self,
        boards: Iterable[VirtualBoard],
        of: Mapping[str, Mapping[str, Any]] | None = None,
        beside: Iterable[VirtualBoard] = (),
    ) -> None:
        """Write the inventory anew.

        Args:
            boards: of the type linux_cpu.
            of: more variables of some, by name.
            beside: machines that are no boards of the farm; the farm's variables hold for them too.
        """
        more = of or {}
        hosts = {board.name: {**_reached(board), **more.get(board.name, {})} for board in boards}
        others = {machine.name: _reached(machine) for machine in beside}
        groups = {
            "boards": {"vars": self._variables, "children": {"linux_cpu": {"hosts": hosts}}},
            "beside": {"vars": self._variables, "hosts": others},
        }
        self._inventory.write_text(json.dumps(groups))

    def play(self, name: str, *words: str, **variables: Any) -> Played:
        """Run a playbook by its file's name."""
        command = [str(_BIN / "ansible-playbook"), "-i", str(self._inventory)]
        if variables:
            command += ["-e", json.dumps(variables)]
        done = subprocess.run(
            [*command, str(PLAYBOOKS / name), *words],
            cwd=ROOT,
            env={**self._environment(), "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PLAY_S,
        )
        hosts = list(_RECAP.finditer(done.stdout))
        return Played(
            done.returncode,
            done.stdout + done.stderr,
            {host["host"]: int(host["changed"]) for host in hosts},
            {host["host"]: int(host["failed"]) + int(host["unreachable"]) for host in hosts},
        )

    def latfarm(self, *words: str, check: bool = True) -> Any:
        """What a command prints as JSON."""
        done = subprocess.run(
            self.command(*words), env=self._environment(), capture_output=True, text=True
        )
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begin a command whose output is read later."""
        return subprocess.Popen(
            self.command(*words),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *words: str) -> list[str]:
        """A command line of `latfarm`."""
        return [str(_BIN / "latfarm"), *words]

    @property
    def boards(self) -> dict[str, Any]:
        """The inventory of boards that `latfarm` has."""
        known: dict[str, Any] = json.loads((self.home / "boards.json").read_text())["boards"]
        return known

    @property
    def revoked(self) -> list[str]:
        """Fingerprints of the certificates that are shut out."""
        listed: list[str] = json.loads((self.home / "tls" / "revoked.json").read_text())["sha256"]
        return listed

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LATFARM_HOME": str(self.home)}


def _reached(board: VirtualBoard) -> dict[str, Any]:
    """How Ansible reaches a board."""
    return {
        "ansible_host": board.address,
        "ansible_ssh_common_args": " ".join(board.ssh_options),
    }


def _wheels(folder: Path) -> Path:
    """Where wheelhouses go; what others' wheels were fetched for them outlives the run."""
    fetched = cache_dir() / "wheelhouse" / "others"
    fetched.mkdir(parents=True, exist_ok=True)
    place = folder / "wheels"
    place.mkdir()
    (place / "others").symlink_to(fetched)
    return place


def altered(own: Path, folder: Path, name: str, text: str) -> Path:
    """Copies of our wheels, with `text` before the agent's module `name`: another release."""
    folder.mkdir()
    for wheel in own.glob("*.whl"):
        with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(folder / wheel.name, "w") as copy:
            for entry in source.infolist():
                data = source.read(entry)
                if entry.filename == f"latfarm_agent/{name}":
                    data = text.encode() + data
                copy.writestr(entry, data)
    return folder


def files(board: VirtualBoard, except_below: Sequence[str]) -> set[str]:
    """Every file and folder on a board's disk, but for those below some folders."""
    pruned = " -o ".join(f"-path {path}" for path in except_below)
    listed = board.run(f"find / -xdev \\( {pruned} \\) -prune -o -print", timeout_s=120.0)
    return set(listed.stdout.splitlines())
