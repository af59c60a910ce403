"""Python packages for boards: pip on the host fetches wheels for a board's Python and architecture.

pip does not run on the boards, because they reach no network beyond their rack, and because pip
takes minutes under emulation. Wheels that were fetched or unpacked stay in the cache folder.
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
"""Root folder of this checkout."""

OWN = ("latfarm-protos", "latfarm-agent")
"""Distributions of this checkout that are installed on a board."""

HOME = "/opt/latfarm"
"""Folder of the virtual environment on a board."""

PYTHON = f"{HOME}/bin/python"
AGENT = f"{HOME}/bin/latfarm-agent"

_FOLDERS = {f"latfarm-{name}": name for name in ("protos", "predictors", "agent", "controller")}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Name that wheels have for an architecture, by Debian's name."""

_NEWEST_GLIBC = 36  # of Debian 12
"""Newest version 2.x of glibc that a wheel may need."""

_MADE = ("__pycache__", "build", "dist")
"""Folders in a distribution's source folder that are no part of its sources."""

_INDEX = "pip's package index (`pip config list` tells which)"
_PINNED_FROM = (3, 11)
"""Oldest Python for which constraints.txt pins versions."""

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?P<marker> *;[^\\]*)?")
_SCRIPT = f"""#!{PYTHON}
import sys
from latfarm_agent.cli import main
sys.exit(main())
"""


def requirements(extras: Sequence[str] = ()) -> list[str]:
    """The requirements of the agent of this checkout, without this project's distributions.

    Args:
        extras: extras of the agent to include, for example "onnxruntime".
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
    """A folder with the wheels of requirements and of all their dependencies.

    The wheels are fetched if they are not in the cache folder.

    Args:
        wanted: requirements in the form that pip reads.
        python: version of Python on the board, for example "3.11".
        arch: architecture of the board.

    Raises:
        HostError: there is no such wheel, or it cannot be fetched.
    """
    pins = _pins(python)
    folder = _cached("wheels", [sorted(wanted), python, arch, pins])
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            with unfinished(folder) as scratch:
                constraints = scratch / "pins.txt"
                constraints.write_text("".join(f"{pin}\n" for pin in pins))
                # If this fails, the next attempt finds the fetched wheels in pip's own cache.
                options = (f"--constraint={constraints}", f"--dest={scratch}/wheels")
                pip = (*_pip("download"), *_target(python, arch), *options)
                fetch(*pip, *wanted, source=_INDEX, timeout_s=1200.0)
                (scratch / "wheels").rename(folder)
    return folder


def site(wanted: Sequence[str], python: str = "3.11", arch: str = "arm64") -> Path:
    """A folder with requirements and all their dependencies, unpacked as in `site-packages`.

    The arguments are those of `download`.

    Raises:
        HostError: there is no such wheel, or it cannot be fetched or unpacked.
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
    """Put wheels of this checkout into a folder, which is made if it is missing.

    They are built if the cache folder does not have them for these sources.

    Raises:
        HostError: a wheel cannot be built.
    """
    folder.mkdir(exist_ok=True)
    for name in names:
        built = _built(ROOT / _FOLDERS[name])
        (wheel,) = built.glob("latfarm_*.whl")
        shutil.copy(wheel, folder)
    return sorted(folder.glob("latfarm_*.whl"))


def install(board: VirtualBoard, packages: Path, agent: Sequence[Path] = ()) -> None:
    """Make a virtual environment with packages and the agent on a board.

    Args:
        board: a running board.
        packages: folder of packages for the board's Python, from `site`.
        agent: wheels of the agent, from `own`; empty: the agent is not installed.
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


def _built(source: Path) -> Path:
    """The folder with the wheel of a distribution's source folder."""
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        made = any(part.startswith(".") or part in _MADE for part in inner.parts)
        if path.is_file() and not made:
            digest.update(f"{inner}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    folder = _cached("own", [source.name, digest.hexdigest()])
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            with unfinished(folder) as scratch:
                to = ("--no-deps", f"--wheel-dir={scratch}/wheels")
                command(*_pip("wheel"), *to, source, timeout_s=300.0)
                (scratch / "wheels").rename(folder)
    return folder


def _pip(verb: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check")


def _target(python: str, arch: str) -> list[str]:
    """Options that make pip choose wheels for a board.

    pip does not derive compatible older platforms, so all of them are listed.
    """
    machine = MACHINES[arch]
    glibc = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, 4, -1)]
    names = [*glibc, "manylinux2014", "manylinux2010", "manylinux1", "linux"]
    chosen = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    return [*chosen, *(f"--platform={name}_{machine}" for name in names)]


def unpack(wheels: Sequence[Path], folder: Path, python: str, arch: str) -> None:
    """Unpack wheels into a folder, as in `site-packages`.

    Raises:
        HostError: pip cannot install the wheels.
    """
    pip = (*_pip("install"), "--no-index", "--no-deps", *_target(python, arch))
    command(*pip, "--target", folder, *wheels, timeout_s=600.0)
    # These scripts would start this host's Python, which the board does not have.
    shutil.rmtree(folder / "bin", ignore_errors=True)


def _pins(python: str) -> list[str]:
    """The versions in constraints.txt of the direct requirements of this project.

    Indirect requirements are left out: uv, which chose the versions, ignores upper limits on the
    version of Python, and pip obeys them. For a Python older than `_PINNED_FROM` there are none.
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
