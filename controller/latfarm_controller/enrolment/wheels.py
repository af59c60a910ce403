"""Reads the metadata of single wheels, and runs pip to build and fetch them."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from latfarm_controller.enrolment.target import WheelTarget
from latfarm_controller.errors import UsageError, WheelError

_PIP_S = 1800.0  # time limit for one run of pip, in seconds


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel: the path of its file, and the content of its metadata."""

    path: Path
    name: str
    version: str
    requires: tuple[Requirement, ...]
    extras: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The hash of the file, as 64 hex digits."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def read_wheel(path: Path) -> Wheel:
    """Read a wheel from a file.

    Raises:
        UsageError: the file is not a wheel.
    """
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as archive:
            inside = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            # Distributions that are vendored in a wheel have such a file too, in a deeper folder.
            text = archive.read(next(each for each in inside if each.count("/") == 1)).decode()
    except (OSError, ValueError, zipfile.BadZipFile, StopIteration) as error:
        raise UsageError(f"{path}: is no wheel: {error}") from error
    fields = HeaderParser().parsestr(text)
    requires = tuple(Requirement(each) for each in fields.get_all("Requires-Dist") or ())
    return Wheel(path, name, str(version), requires, tuple(fields.get_all("Provides-Extra") or ()))


def build(sources: Sequence[Path], folder: Path) -> None:
    """Build wheels from source folders, and write them to `folder`.

    Raises:
        WheelError: a wheel cannot be built.
    """
    _pip("wheel", "--no-deps", f"--wheel-dir={folder}", *map(str, sources))


def fetch(wanted: Sequence[str], target: WheelTarget, pins: Sequence[str], folder: Path) -> None:
    """Fetch wheels that fit a board, with all their requirements.

    Args:
        wanted: requirements in the form that pip reads.
        target: the Python of the board.
        pins: exact versions to use for some distributions.
        folder: the folder to which the wheels are written.

    Raises:
        WheelError: a wheel cannot be fetched.
    """
    constraints = folder / "pins.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in pins))
    try:
        options = [f"--constraint={constraints}", f"--dest={folder}"]
        _pip("download", *target.pip_options(), *options, *wanted)
    finally:
        constraints.unlink()


def closure(
    roots: Iterable[Wheel], others: Iterable[Wheel], extras: Iterable[str], target: WheelTarget
) -> tuple[list[Wheel], list[str]]:
    """Find which wheels are needed on a board.

    Args:
        roots: wheels that are always needed.
        others: wheels to choose from.
        extras: extras of the roots that are needed too.
        target: the Python of the board.

    Returns:
        the wheels that are needed, and the requirements that no wheel meets.
    """
    known = {canonicalize_name(wheel.name): wheel for wheel in others}
    found: dict[str, Wheel] = {}
    missing: dict[str, None] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    ahead = [(wheel, frozenset(extras)) for wheel in roots]
    known.update((canonicalize_name(wheel.name), wheel) for wheel, _ in ahead)
    while ahead:
        wheel, with_extras = ahead.pop()
        name = canonicalize_name(wheel.name)
        if (name, with_extras) in seen:
            continue
        seen.add((name, with_extras))
        found[name] = wheel
        for requirement in wheel.requires:
            if not target.wants(requirement, with_extras):
                continue
            met = known.get(canonicalize_name(requirement.name))
            if met is None or not requirement.specifier.contains(met.version, prereleases=True):
                missing[f"{requirement.name}{requirement.specifier}"] = None
            else:
                ahead.append((met, frozenset(requirement.extras)))
    return [found[name] for name in sorted(found)], list(missing)


def _pip(verb: str, *arguments: str) -> None:
    if importlib.util.find_spec("pip") is None:
        raise WheelError(
            f"{sys.prefix} has no pip, which fetches the wheels of boards: install it there with "
            f"`{sys.executable} -m ensurepip`; a controller that was deployed gets it from "
            "latfarm.farm.upgrade_controller"
        )
    # -P: whatever modules the present folder has
    command = [sys.executable, "-P", "-m", "pip", verb, "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PIP_S,
        )
    except subprocess.TimeoutExpired as error:
        raise WheelError(f"pip {verb} did not end within {_PIP_S:.0f} s") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise WheelError(f"pip {verb}: {' | '.join(said[-4:])[-1500:] or 'failed'}")
