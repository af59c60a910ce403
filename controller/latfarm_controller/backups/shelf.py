"""A folder with the backups of one controller: each has the time in its name, old ones are removed.

A backup is made under a hidden name and then renamed, so that a listed backup is complete.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from platform import node

from latfarm_controller import __version__
from latfarm_controller.backups.contents import STORE, listed
from latfarm_controller.backups.dated_names import free_path, is_dated, order
from latfarm_controller.backups.manifest import (
    FILE,
    BackupManifest,
    KeptFile,
    copied,
    hashed,
    read_manifest,
)
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import BackupError
from latfarm_controller.private_files import FILE_MODE, private_folder, private_umask
from latfarm_controller.store.log_file import log_of
from latfarm_controller.store.upkeep.copy import settled_copy

PREFIX = "latfarm-"
"""How the names of backups begin; the time at which they were begun follows."""
_UNFINISHED = ".unfinished-"
_COPY = ".store-copy-"
_LOCK = ".lock"

LEFT_OVER_S = 86_400.0
"""Age in seconds from which a copy of the store in the home is one that a killed process left."""

CopyStore = Callable[[Path], None]
"""Copies the store of the home into a new file in the home, whoever holds it now. The process that
holds it may see other folders than this one, for example if it is a service with its own /tmp."""


def backups_in(folder: Path) -> list[Path]:
    """The complete backups in a folder, the oldest first."""
    try:
        found = [path for path in folder.iterdir() if is_dated(path.name, PREFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BackupError(f"{folder}: cannot be read: {error.strerror}") from error
    complete = (path for path in found if (path / FILE).is_file())
    return sorted(complete, key=lambda path: order(path.name, PREFIX))


def make_backup(config: ControllerConfig, folder: Path, copy_store: CopyStore) -> Path:
    """Back the home up into a folder of backups; returns the folder of the new backup.

    The store is copied last. So it has all campaigns from which the bundles beside it were made.

    Args:
        config: the settings, which name the home.
        folder: where the backups lie; it is made, and only its owner may use it.
        copy_store: see `CopyStore`; not called if the home has no store yet.

    Raises:
        BackupError: the backup cannot be written, or what was copied is not sound.
        UsageError: the folder belongs to another user, or lies in the home.
    """
    if folder.absolute().is_relative_to(config.home):
        raise BackupError(f"{folder} lies in the home, with which it would be lost: name another")
    private_folder(folder)
    try:
        with private_umask(), _alone(folder):
            backup = free_path(folder, PREFIX)
            place = folder / f"{_UNFINISHED}{backup.name}"
            try:
                place.mkdir()
                _fill(config, place, copy_store)
                place.rename(backup)
                _flush(folder)
            finally:
                shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        told = f"{error.filename or folder}: {error.strerror or error}"
        raise BackupError(f"the backup cannot be written: {told}") from error
    return backup


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest backups of a folder; returns those that were removed.

    Args:
        folder: where the backups lie.
        keep: how many stay, 1 at least.

    Raises:
        BackupError: one cannot be removed.
    """
    gone = backups_in(folder)[: -max(keep, 1)]
    for path in gone:
        try:
            # The manifest first: what is left of an interrupted removal counts as no backup.
            (path / FILE).unlink()
            shutil.rmtree(path)
        except OSError as error:
            raise BackupError(f"{path}: cannot be removed: {error.strerror}") from error
    return gone


def newest_backup(folder: Path) -> Path:
    """A backup itself, or the newest one of a folder of backups.

    Raises:
        BackupError: there is none.
    """
    if (folder / FILE).is_file():
        return folder
    found = backups_in(folder)
    if not found:
        raise BackupError(f"{folder} is no complete backup, and has none in it")
    return found[-1]


def _fill(config: ControllerConfig, place: Path, copy_store: CopyStore) -> None:
    """Copy everything into the folder of a backup, and its manifest last."""
    manifest = BackupManifest(__version__, time.time(), node(), str(config.home))
    found = listed(config)
    files: dict[str, KeptFile] = {}
    for name in found.files:
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            files[name.as_posix()] = copied(config.home / name, target)
        except FileNotFoundError:  # it was removed meanwhile
            target.unlink(missing_ok=True)
    if config.store_file.exists():
        store = place / STORE
        _fetch_copy(config.home, store, copy_store)
        told = settled_copy(store)
        store.chmod(FILE_MODE)
        files[STORE] = hashed(store)
        manifest = replace(
            manifest, schema_version=told.schema_version, measurements=told.measurements
        )
    replace(manifest, files=files, refused=tuple(found.refused)).write(place)
    read_manifest(place)


def _fetch_copy(home: Path, target: Path, copy_store: CopyStore) -> None:
    """Have the store copied within the home, then move the copy, with its log, to its place."""
    for left in home.glob(f"{_COPY}*"):
        if time.time() - left.stat().st_mtime > LEFT_OVER_S:
            left.unlink(missing_ok=True)
    copy = home / f"{_COPY}{secrets.token_hex(4)}"
    try:
        copy_store(copy)
        for source, place in ((copy, target), (log_of(copy), log_of(target))):
            if source.exists():
                shutil.move(source, place)
    finally:
        for left in home.glob(f"{copy.name}*"):
            left.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else makes a backup in this folder; what a killed process left is removed."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BackupError(f"{folder}: another backup is being made; wait for it") from error
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def _flush(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
