"""Which files of a controller's home a backup holds, and which it leaves out.

In it is what a controller on another machine needs to go on: the store, the inventory of boards,
the authority with all certificates, the list of revoked ones, the bundles with their registers, the
settings, the secret by which boards know this home, and the audit log. A backup is therefore as
secret as the home. What can be made again, or belongs to a process or to this machine, is not in
it. Nor is the passphrase of the authority's key, so that a stolen backup does not have both.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from latfarm_predictors.whole_file import SUFFIX as PART

from latfarm_controller.config import ControllerConfig
from latfarm_controller.home import BUNDLES, CONFIG_FILE
from latfarm_controller.training.bundles import FITTED
from latfarm_controller.training.model_register import FILE as REGISTER

STORE = "store.duckdb"
"""Name of the store in a home and in a backup."""
KEPT_FILES = (CONFIG_FILE, "boards.json", "holder", "audit.jsonl")
"""Files of a home that a backup holds, besides the store."""
KEPT_FOLDERS = ("tls", BUNDLES)
"""Folders of a home that a backup holds, with everything in them."""
LEFT_OUT = {
    "agents": "the state of this machine as a board, which another machine is not",
    "logs": "the logs, which nothing needs",
    "ray": "the files of running processes",
    "reports": "reports, which latfarm report makes again",
    "wheels": "wheels for boards, which are collected again",
    "controller.lock": "the lock of the running controller",
    "controller.sock": "the socket of the running controller",
}
"""Parts of a home that no backup holds, and why."""
_LOCKS = ".lock"


class Listed(NamedTuple):
    """The files of a home for a backup, and what was not taken although it lies among them."""

    files: list[PurePosixPath]
    refused: list[str]


def listed(config: ControllerConfig) -> Listed:
    """The files of a home that a backup holds, without the store, relative to the home.

    Registers come before the bundles, so that no register names a bundle that was added later.
    Symbolic links and special files are not taken, and are told.
    """
    files: list[PurePosixPath] = []
    refused: list[str] = []
    passphrase = config.passphrase_file
    secret = None if passphrase is None else Path(os.path.realpath(passphrase))
    for path in _candidates(config.home):
        name = path.relative_to(config.home).as_posix()
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if secret is not None and Path(os.path.realpath(path)) == secret:
            continue
        if stat.S_ISREG(mode):
            files.append(PurePosixPath(name))
        else:
            refused.append(f"{name} is no regular file")
    files.sort(key=lambda path: (path.name != REGISTER, path.parts))
    return Listed(files, refused)


def belongs(name: str) -> bool:
    """Whether a backup may hold a file of this name, relative to the home."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.as_posix() != name:
        return False
    if len(path.parts) == 1:
        return name == STORE or name in KEPT_FILES
    return path.parts[0] in KEPT_FOLDERS


def _candidates(home: Path) -> Iterator[Path]:
    """What lies at the places that a backup holds, folders left out."""
    for name in KEPT_FILES:
        yield home / name
    for name in KEPT_FOLDERS:
        for folder, folders, names in os.walk(home / name):
            if FITTED in folders:
                folders.remove(FITTED)  # what predictors fit again when they are first asked
            place = Path(folder)
            yield from (place / each for each in folders if (place / each).is_symlink())
            yield from (place / each for each in names if not each.endswith((_LOCKS, PART)))
