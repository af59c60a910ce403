"""Boards are enrolled with each version of Python that this host has, not only with Debian's."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeBoards, MakeController
from tests.farm.lab.enrolment import LabController

pytestmark = [pytest.mark.farm, pytest.mark.timeout(900)]

VERSIONS = ("3.8", "3.9", "3.10", "3.12", "3.13")
LEFT_OUT = ("test", "site-packages", "idlelib", "tkinter", "lib2to3", "turtledemo", "config-*")
"""Folders of the standard library that boards do not need."""


@dataclass(frozen=True)
class HostPython:
    """A Python of this host: its version, for example "3.8", and the folder it is installed in."""

    version: str
    prefix: Path

    @property
    def place(self) -> str:
        """Its folder on a board; not in a home folder, which services cannot see."""
        return f"/opt/python{self.version}"

    @property
    def program(self) -> str:
        """Path of its interpreter on a board."""
        return f"{self.place}/bin/python{self.version}"


def find(version: str) -> HostPython | None:
    """A Python of this host in a folder of its own, which can be copied; None if there is none."""
    known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    names = [shutil.which(f"python{version}"), *map(str, reversed(known))]
    for name in filter(None, names):
        ask = (name, "-c", "import sys; print(sys.base_prefix)")
        done = subprocess.run(ask, capture_output=True, text=True)
        prefix = Path(done.stdout.strip() or "/usr")
        if done.returncode == 0 and prefix != Path("/usr"):
            return HostPython(version, prefix)
    return None


def bring(board: VirtualBoard, python: HostPython, scratch: Path) -> None:
    """Copy a Python and its standard library to a board."""
    tree = scratch / python.version
    name = f"python{python.version}"
    ignored = shutil.ignore_patterns(*LEFT_OUT, "__pycache__")
    shutil.copytree(python.prefix / "lib" / name, tree / "lib" / name, ignore=ignored)
    for library in (python.prefix / "lib").glob(f"libpython{python.version}*.so*"):
        shutil.copy(library, tree / "lib")
    (tree / "bin").mkdir()
    shutil.copy(python.prefix / "bin" / name, tree / "bin" / name)
    board.push(tree, python.place)
    # The interpreter looks for its shared library in the folder it was built for.
    board.write("/etc/ld.so.conf.d/python.conf", f"{python.place}/lib\n")
    board.run("ldconfig")


@dataclass(frozen=True)
class PythonsLab:
    """Boards by their version of Python, and their controller."""

    boards: dict[str, VirtualBoard]
    controller: LabController


@pytest.fixture(scope="module")
def lab(
    make_controller: MakeController,
    make_boards: MakeBoards,
    tmp_path_factory: pytest.TempPathFactory,
) -> PythonsLab:
    pythons = [python for python in map(find, VERSIONS) if python is not None]
    if not pythons:
        pytest.skip(f"this host has none of Python {', '.join(VERSIONS)} in a folder of its own")
    scratch = tmp_path_factory.mktemp("pythons")
    boards = make_boards(*(f"py{python.version.replace('.', '')}" for python in pythons))
    of = {}
    for board, python in zip(boards, pythons, strict=True):
        bring(board, python, scratch)
        # Ansible's modules use this Python as well, so the board needs no other one.
        of[board.name] = {
            "latfarm_python": python.program,
            "ansible_python_interpreter": python.program,
        }
    controller = make_controller(boards, latfarm_compile=False)
    controller.stock(boards, of)
    versions = (python.version for python in pythons)
    return PythonsLab(dict(zip(versions, boards, strict=True)), controller)


def test_boards_with_different_pythons_are_enrolled_in_one_run(lab: PythonsLab) -> None:
    played = lab.controller.play("enroll.yml")
    assert played.well, played.out
    for version, board in lab.boards.items():
        well = lab.controller.latfarm("boards", "check", board.name, "--json")
        assert well["well"], well
        ran = board.run("systemctl show --property=MainPID --value latfarm-agent").stdout.strip()
        used = board.run(f"readlink /proc/{ran}/exe").stdout.strip()
        assert used == f"/opt/python{version}/bin/python{version}"
        (name,) = (each for each in well["platforms"] if each.endswith("-fp32-1t"))
        print(f"Python {version}: {name}")
        assert name.startswith("linux-cpu-onnxruntime1.")
