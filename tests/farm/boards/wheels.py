"""What is installed on boards: wheels for their Python and architecture, fetched and unpacked here.

Boards have no network beyond the rack, and pip in emulation takes minutes. So pip runs on the host,
for the board's platform; what it fetched and unpacked is kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.farm.boards.host import cache_dir, command, fetch, unfinished
from tests.farm.boards.rootfs import locked
from tests.farm.boards.virtual_board import VirtualBoard

ROOT = Path(__file__).parents[3]
OWN = ("latfarm-protos", "latfarm-agent")
"""The distributions of this checkout that a board gets."""

HOME = "/opt/latfarm"
"""The virtual environment on the board."""

PYTHON = f"{HOME}/bin/python"
AGENT = f"{HOME}/bin/latfarm-agent"

_FOLDERS = {"latfarm-protos": "protos", "latfarm-agent": "agent"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_NEWEST_GLIBC = 36  # of Debian 12
_INDEX = "pip's package index (`pip config list` tells which)"
_PINNED_FROM = (3, 11)
"""The pins of constraints.txt are for this Python and newer ones."""

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?P<marker> *;[^\\]*)?")
_SCRIPT = f"""#!{PYTHON}
import sys
from latfarm_agent.cli import main
sys.exit(main())
"""


def requirements(extras: Sequence[str] = ()) -> list[str]:
    """What the agent of this checkout needs from others, with some of its extras.

    Args:
        extras: names of optional dependencies, as "onnxruntime".
    """
    found: set[str] = set()
    for name in OWN:
        project = tomllib.loads((ROOT / _FOLDERS[name] / "pyproject.toml").read_text())["project"]
        found.update(project["dependencies"])
        optional = project.get("optional-dependencies", {})
        if optional:
            found.update(each for extra in extras for each in optional[extra])
    return sorted(each for each in found if not each.startswith("latfarm-"))


def download(wanted: Sequence[str], python: str = "3.11", arch: str = "arm64") -> Path:
    """A folder with the wheels of these requirements and all that they need; fetched if missing.

    Args:
        wanted: as pip reads them.
        python: the board's version, as "3.11".
        arch: the board's architecture; glibc is Debian 12's.

    Raises:
        HostError: there is no such wheel, or no way to it.
    """
    pins = _pins(python)
    folder = _cached("wheels", [sorted(wanted), python, arch, pins])
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            with unfinished(folder) as scratch:
                constraints = scratch / "pins.txt"
                constraints.write_text("".join(f"{pin}\n" for pin in pins))
                # pip keeps what it has got in its own cache, too.
                options = (f"--constraint={constraints}", f"--dest={scratch}/wheels")
                pip = (*_pip("download"), *_target(python, arch), *options)
                fetch(*pip, *wanted, source=_INDEX, timeout_s=1200.0)
                (scratch / "wheels").rename(folder)
    return folder


def site(wanted: Sequence[str], python: str = "3.11", arch: str = "arm64") -> Path:
    """The same, unpacked as in a `site-packages` folder, and compiled where this is that Python.

    Raises:
        HostError: as `download`.
    """
    folder = _cached("site", [sorted(wanted), python, arch, _pins(python)])
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            wheels = sorted(download(wanted, python, arch).glob("*.whl"))
            with unfinished(folder) as scratch:
                shutil.rmtree(scratch / "site", ignore_errors=True)
                unpack(wheels, scratch / "site", python, arch)
                (scratch / "site").rename(folder)
    return folder


def own(folder: Path, names: Sequence[str] = OWN) -> list[Path]:
    """Build wheels of this checkout into a folder.

    Raises:
        HostError: one cannot be built.
    """
    pip = _pip("wheel")
    sources = [ROOT / _FOLDERS[name] for name in names]
    command(*pip, "--no-deps", "--wheel-dir", folder, *sources, timeout_s=300.0)
    return sorted(folder.glob("latfarm_*.whl"))


def install(board: VirtualBoard, packages: Path, agent: Sequence[Path] = ()) -> None:
    """Make a virtual environment on a board, with a `site` and the agent's wheels in it.

    Args:
        board: it is on.
        packages: what `site` gave, for the board's own Python.
        agent: what `own` gave; with them there is a `latfarm-agent`.
    """
    board.run(["python3", "-m", "venv", "--without-pip", HOME])
    found = board.run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    target = found.stdout.strip()
    board.push(packages, target)
    if agent:
        python = Path(target).parent.name.removeprefix("python")
        with tempfile.TemporaryDirectory() as text:
            unpack(agent, Path(text) / "site", python, board.arch)
            board.push(Path(text) / "site", target)
        board.write(AGENT, _SCRIPT, 0o755)


def _pip(verb: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check")


def _target(python: str, arch: str) -> list[str]:
    """Options that make pip choose for a board, not for this host. It derives no older platform."""
    machine = _MACHINES[arch]
    glibc = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, 4, -1)]
    names = [*glibc, "manylinux2014", "manylinux2010", "manylinux1", "linux"]
    chosen = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    return [*chosen, *(f"--platform={name}_{machine}" for name in names)]


def unpack(wheels: Sequence[Path], folder: Path, python: str, arch: str) -> None:
    """Unpack wheels into a folder, as `site-packages` holds them.

    Raises:
        HostError: pip refuses.
    """
    pip = (*_pip("install"), "--no-index", "--no-deps", *_target(python, arch))
    command(*pip, "--target", folder, *wheels, timeout_s=600.0)
    # Commands for a Python of this host, which the board does not have.
    shutil.rmtree(folder / "bin", ignore_errors=True)


def _pins(python: str) -> list[str]:
    """Our tested versions of what we ask for ourselves, where they are for this Python.

    Not of what those need in turn: uv, which chose the versions, disregards upper bounds on Python,
    and pip obeys them.
    """
    if tuple(map(int, python.split("."))) < _PINNED_FROM:
        return []
    asked: set[str] = set()
    for name in ("protos", "predictors", "agent", "controller"):
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        listed = [*project["dependencies"], "pytest", "pytest-timeout", "flatbuffers", "onnx"]
        for extra in project.get("optional-dependencies", {}).values():
            listed += extra
        asked.update(re.split(r"[^A-Za-z0-9._-]", each)[0].lower() for each in listed)
    found = []
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        match = _PIN.match(line)
        if match and match["name"].lower() in asked:
            found.append(f"{match['name']}=={match['version']}{(match['marker'] or '').rstrip()}")
    return found


def _cached(kind: str, key: object) -> Path:
    folder = cache_dir() / kind
    folder.mkdir(exist_ok=True)
    return folder / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
