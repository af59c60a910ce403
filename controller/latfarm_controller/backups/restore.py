"""Puts a backup in the place of a home's state; what was there before is kept beside it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from latfarm_predictors.whole_file import written_whole
from latfarm_protos.trust.revoked import FILE_NAME as REVOKED
from latfarm_protos.trust.revoked import RevokedError, read_revoked, revoked_text

from latfarm_controller.audit import AuditLog, unix_user
from latfarm_controller.backups.contents import KEPT_FILES, KEPT_FOLDERS, STORE
from latfarm_controller.backups.dated_names import free_path
from latfarm_controller.backups.manifest import BackupManifest, copied, verify_backup
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import BackupError, UsageError
from latfarm_controller.private_files import FILE_MODE, private_umask
from latfarm_controller.store.commit_mark import CommitMark
from latfarm_controller.store.lock import StoreLock
from latfarm_controller.store.log_file import log_of
from latfarm_controller.store.migrate import known_migrations

REPLACED = "replaced-"
"""How the names of folders in a home begin that keep what a backup has replaced."""
_STAGE = ".restoring"


@dataclass(frozen=True)
class Restored:
    """What a restore did.

    Attributes:
        manifest: of the backup.
        replaced: folder with the former state of the home; None: the home had none.
        revoked: number of certificates that were revoked after the backup, and still are.
    """

    manifest: BackupManifest
    replaced: Path | None
    revoked: int


def restore_backup(config: ControllerConfig, folder: Path, *, replace: bool = False) -> Restored:
    """Give a home the state of a backup. No controller may run on this home.

    All files are checked and copied into the home before the first one is replaced. A certificate
    that was revoked in this home after the backup was made stays revoked.

    Args:
        config: the settings, which name the home.
        folder: of the backup.
        replace: whether a home that has state already may get another one.

    Raises:
        BackupError: the backup is damaged or was made by a newer version, or cannot be written.
        UsageError: the home has state, and `replace` is not set.
        StoreBusyError: a controller runs on this home; the message names it.
    """
    manifest = verify_backup(folder)
    newest = known_migrations()[-1].version
    if manifest.schema_version > newest:
        raise BackupError(
            f"{folder}: was made by latfarm {manifest.latfarm}, whose store has version "
            f"{manifest.schema_version}; this latfarm knows versions up to {newest}: install a "
            "newer one first"
        )
    config.make_dirs()
    with StoreLock(config.lock_file):
        present = _present(config.home)
        if present and not replace:
            raise UsageError(
                f"{config.home} has state already ({', '.join(present)}); to keep it beside the "
                "restored one and use the backup, say --replace"
            )
        try:
            with private_umask():
                return _put(config, folder, manifest, present)
        except OSError as error:
            told = f"{error.filename or config.home}: {error.strerror or error}"
            raise BackupError(f"the backup cannot be restored: {told}") from error


def _put(
    config: ControllerConfig, folder: Path, manifest: BackupManifest, present: list[str]
) -> Restored:
    """Copy the backup beside the present state, then exchange both."""
    stage = config.home / _STAGE
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    try:
        for name, kept in manifest.files.items():
            target = stage / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if copied(folder / name, target) != kept:
                raise BackupError(f"{folder}: {name} changed while it was restored")
        revoked = _keep_revoked(config.home / "tls" / REVOKED, stage / "tls" / REVOKED)
        replaced = _set_aside(config, present)
        for part in sorted(stage.iterdir()):
            part.rename(config.home / part.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    AuditLog(config.audit_file).add(
        unix_user(os.getuid()), "controller.restored", str(folder), made_at_s=manifest.made_at_s
    )
    return Restored(manifest, replaced, revoked)


def _present(home: Path) -> list[str]:
    """Which parts that a backup may hold a home has; empty folders do not count."""
    names = (STORE, log_of(Path(STORE)).name, *KEPT_FILES, *KEPT_FOLDERS)
    return [name for name in names if _has_content(home / name)]


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _set_aside(config: ControllerConfig, present: list[str]) -> Path | None:
    """Move the present state into a folder of its own; None if there is none.

    The mark of the last transaction goes, too: the restored store does not have those that it
    counts, which is no loss that the next start should tell.
    """
    home, mark = config.home, CommitMark(config.store_file).path
    for name in KEPT_FOLDERS:
        if name not in present and (home / name).is_dir():
            (home / name).rmdir()
    names = [*present, *([mark.name] if mark.exists() else [])]
    if not names:
        return None
    place = free_path(home, REPLACED)
    place.mkdir()
    for name in names:
        (home / name).rename(place / name)
    return place


def _keep_revoked(present: Path, staged: Path) -> int:
    """Add the certificates that are revoked now to the list of the backup; how many are added."""
    try:
        now = read_revoked(present) if present.exists() else frozenset()
        before = read_revoked(staged) if staged.exists() else frozenset()
    except RevokedError as error:
        raise BackupError(
            f"the certificates that are revoked cannot be told: {error}; nothing was restored"
        ) from error
    added = now - before
    if added:
        with written_whole(staged, make_folder=True, mode=FILE_MODE) as part:
            part.write_text(revoked_text(now | before), encoding="ascii")
    return len(added)
