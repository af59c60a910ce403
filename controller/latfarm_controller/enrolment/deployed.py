"""What the deployment of a controller has brought to its machine, so that it equips boards there.

Such a machine has no checkout and maybe no internet. The folder `share/latfarm/boards` of the
controller's environment holds wheels of the agent, and an archive for each kind of board that the
deployment was told (`controller_board_kinds` of the Ansible role).
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from latfarm_controller.enrolment.target import WheelTarget
from latfarm_controller.errors import WheelError

ABOUT = "release.json"
"""Name of the file in an archive that says for which boards the release is made."""
_ARCHIVE = re.compile(
    r"latfarm-(?!controller-).+-py\d+-(?P<arch>[a-z0-9_]+)-glibc2\.(?P<minor>\d+)\.tar"
)


class BroughtArchive(NamedTuple):
    """An archive for a kind of board: its file, what it says of itself, and its wheels' names."""

    path: Path
    about: dict[str, Any]
    wheels: tuple[str, ...]


def boards_folder() -> Path:
    """The folder of what was brought; it exists only where a controller was deployed."""
    return Path(sys.prefix) / "share" / "latfarm" / "boards"


def brought(target: WheelTarget, runtimes: Collection[str]) -> BroughtArchive | None:
    """Find the archive for a kind of board; None if there is none.

    An archive for an older C library fits a board with a newer one. Of several, the one with the
    newest C library is taken.

    Raises:
        WheelError: an archive is damaged.
    """
    fitting = []
    newest = int(target.glibc.split(".")[1])
    for path in sorted(boards_folder().glob("*.tar")):
        match = _ARCHIVE.fullmatch(path.name)
        if match is None or match["arch"] != target.arch or int(match["minor"]) > newest:
            continue
        found = _read(path)
        if found.about["python"] == target.python and set(found.about["runtimes"]) == set(runtimes):
            fitting.append((int(match["minor"]), found))
    return max(fitting, default=(0, None), key=lambda each: each[0])[1]


def remedy(target: WheelTarget, runtimes: Collection[str]) -> str:
    """How this machine gets an archive for a kind of board without a package index; one line.

    It is empty where no controller was deployed.
    """
    if not boards_folder().is_dir():
        return ""
    kind = (
        f'{{python: "{target.python}", arch: {target.arch}, glibc: "{target.glibc}", '
        f"runtimes: [{', '.join(sorted(runtimes))}]}}"
    )
    return (
        f"if this machine reaches no package index, add {kind} to controller_board_kinds of this "
        "controller, and run latfarm.farm.controller again where an index is reached"
    )


def _read(path: Path) -> BroughtArchive:
    try:
        with tarfile.open(path, "r:") as tar:
            names = tuple(name for name in tar.getnames() if name.endswith(".whl"))
            file = tar.extractfile(ABOUT)
            about: dict[str, Any] = json.loads(file.read()) if file is not None else {}
            # An archive that lacks one of these is damaged, too.
            found = {key: about[key] for key in ("release", "python", "runtimes", "left_out")}
    except (OSError, tarfile.TarError, ValueError, LookupError, TypeError) as error:
        raise WheelError(
            f"{path} is damaged ({error}): remove it, and run latfarm.farm.controller again"
        ) from error
    return BroughtArchive(path, found, names)
