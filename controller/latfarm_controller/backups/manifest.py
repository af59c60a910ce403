"""The manifest of a backup: what it holds, from which version, with the hash of every file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from latfarm_predictors.whole_file import written_whole

from latfarm_controller.backups.contents import STORE, belongs
from latfarm_controller.errors import BackupError
from latfarm_controller.private_files import FILE_MODE

FILE = "manifest.json"
"""Name of the manifest in the folder of a backup. It is written last."""
FORMAT = "latfarm-backup"
"""Name of the format."""
VERSION = 1
"""Version of the format."""
CHUNK_BYTES = 1 << 20
"""How much of a file is read at once, in bytes."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """One file of a backup: its size in bytes and its SHA-256 as 64 hex digits."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class BackupManifest:
    """What a backup is.

    Attributes:
        latfarm: the version that made it.
        made_at_s: when, as Unix time in seconds.
        host: name of the machine.
        home: the home that was backed up, as an absolute path.
        schema_version: version of the store's schema; 0: there was no store.
        measurements: number of measurements in the store.
        files: the files, by their path relative to the home.
        refused: what was not taken although it lies at a place that is kept, one sentence each.
    """

    latfarm: str
    made_at_s: float
    host: str
    home: str
    schema_version: int = 0
    measurements: int = 0
    files: Mapping[str, KeptFile] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of all files together."""
        return sum(kept.size_bytes for kept in self.files.values())

    def write(self, folder: Path) -> None:
        """Write the manifest into the folder of its backup."""
        data = {"format": FORMAT, "version": VERSION, **asdict(self)}
        with written_whole(folder / FILE, durable=True, mode=FILE_MODE) as part:
            part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    def summary(self) -> dict[str, Any]:
        """What a listing tells, as plain JSON types."""
        return {
            "made_at_s": self.made_at_s,
            "latfarm": self.latfarm,
            "host": self.host,
            "home": self.home,
            "schema_version": self.schema_version,
            "measurements": self.measurements,
            "files": len(self.files),
            "size_bytes": self.size_bytes,
            "refused": list(self.refused),
        }


def read_manifest(folder: Path) -> BackupManifest:
    """The manifest of the backup in a folder.

    Raises:
        BackupError: there is no complete backup, or it is of a newer format.
    """
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BackupError(f"{folder} is no complete backup: it has no {FILE}") from error
    except (OSError, ValueError) as error:
        raise BackupError(f"{folder / FILE}: cannot be read: {error}") from error
    try:
        if data.pop("format") != FORMAT:
            raise BackupError(f"{folder / FILE}: is not of a backup")
        if (version := data.pop("version")) != VERSION:
            raise BackupError(f"{folder}: version {version} of backups is not known here")
        kept = {str(name): KeptFile(**each) for name, each in data.pop("files").items()}
        manifest = BackupManifest(files=kept, refused=tuple(data.pop("refused")), **data)
    except (KeyError, TypeError, AttributeError) as error:
        raise BackupError(f"{folder / FILE}: is damaged: {error!r}") from error
    for name in manifest.files:
        if not belongs(name):
            raise BackupError(f"{folder / FILE}: names {name!r}, which no backup holds")
    if (STORE in manifest.files) != bool(manifest.schema_version):
        raise BackupError(f"{folder / FILE}: is damaged: it contradicts itself about the store")
    return manifest


def verify_backup(folder: Path) -> BackupManifest:
    """The manifest of a backup, after each file was read and compared with it.

    Raises:
        BackupError: a file is missing or differs, or there are other files.
    """
    manifest = read_manifest(folder)
    for name, kept in manifest.files.items():
        try:
            found = hashed(folder / name)
        except OSError as error:
            raise BackupError(f"{folder}: {name} cannot be read: {error.strerror}") from error
        if found != kept:
            raise BackupError(f"{folder}: {name} is not what the backup held: it is damaged")
    return manifest


def hashed(path: Path) -> KeptFile:
    """Size and hash of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return KeptFile(file.tell(), digest.hexdigest())


def copied(source: Path, target: Path) -> KeptFile:
    """Copy a file as one that only its owner may read, to the disk; its size and hash.

    Raises:
        OSError: it cannot be read or written.
    """
    digest, size_bytes = hashlib.sha256(), 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with source.open("rb") as file, os.fdopen(os.open(target, flags, FILE_MODE), "wb") as copy:
        while data := file.read(CHUNK_BYTES):
            digest.update(data)
            size_bytes += len(data)
            copy.write(data)
        copy.flush()
        os.fsync(copy.fileno())
    return KeptFile(size_bytes, digest.hexdigest())
