"""The files of a bundle as bytes by name: read, checked by their digests, written at once.

Nothing here looks into a file before its digest is known to be right. An archive ends in the digest
of all that stands before it, a directory's list of digests is compared byte by byte: any byte that
changes is found, names, dates and lengths included.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from latfarm_predictors.errors import BundleError
from latfarm_predictors.whole_file import written_whole

SUMS = "SHA256SUMS"

_MOST_BYTES = 2**31
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_SEAL = b"latfarm bundle, SHA-256 of all before this line: "
_SEALED = len(_SEAL) + 64
_UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged archive raises (RuntimeError: encrypted, or an unknown method)."""


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """The list of digests of some files, as sha256sum writes and checks it."""
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    return "".join(lines).encode()


def read_files(path: Path) -> dict[str, bytes]:
    """Every file of a bundle, the list of digests too, all of them checked.

    Raises:
        BundleError: no such bundle, a file missing, changed or added.
    """
    try:
        files = _read_zip(path) if path.is_file() else _read_directory(path)
    except _UNREADABLE as error:
        raise BundleError(f"{path}: not a bundle: {error}") from error
    listed = files.get(SUMS)
    if listed is None:
        raise BundleError(f"{path}: the bundle has no list of digests")
    others = {name: content for name, content in files.items() if name != SUMS}
    if listed != sums_of(others):
        raise BundleError(f"{path}: {_difference(listed, others)}")
    return files


def write_files(files: Mapping[str, bytes], target: Path) -> None:
    """Write a bundle: one file if `target` ends in .zip, else a directory.

    What was there before is replaced at once or not at all.

    Raises:
        BundleError: `target` is a directory that is no bundle.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".zip":
        _write_zip(files, target)
    else:
        _write_directory(files, target)


def _difference(listed: bytes, files: Mapping[str, bytes]) -> str:
    """What is wrong, as far as a damaged list tells."""
    digests: dict[str, str] = {}
    for line in listed.decode("utf-8", "replace").split("\n"):
        digest, _, name = line.partition("  ")
        digests[name] = digest
    for name in sorted(files):
        if name in digests and hashlib.sha256(files[name]).hexdigest() != digests[name]:
            return f"{name} is damaged: its digest is not the one listed"
    return "the bundle's files are not those that its digests list"


def _read_zip(path: Path) -> dict[str, bytes]:
    content = path.read_bytes()
    if not (_is_sealed(content) or _is_unsealed_archive(content)):
        raise ValueError("it is damaged or no archive: its digest is not the one that it ends in")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise ValueError("larger than 2 GiB unpacked")
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def _is_sealed(content: bytes) -> bool:
    sealed, seal = memoryview(content)[:-_SEALED], content[-_SEALED:]
    return seal == _SEAL + hashlib.sha256(sealed).hexdigest().encode()


def _is_unsealed_archive(content: bytes) -> bool:
    """Whether it ends as archives without a comment do: those of version 1, and other tools'."""
    return content[-22:-18] == b"PK\x05\x06" and content[-2:] == b"\0\0"


def _read_directory(path: Path) -> dict[str, bytes]:
    if not path.is_dir():
        raise FileNotFoundError("no such file or directory")
    entries = [entry for entry in sorted(path.rglob("*")) if entry.is_file()]
    if sum(entry.stat().st_size for entry in entries) > _MOST_BYTES:
        raise ValueError("larger than 2 GiB")
    return {entry.relative_to(path).as_posix(): entry.read_bytes() for entry in entries}


def _write_zip(files: Mapping[str, bytes], target: Path) -> None:
    with written_whole(target, durable=True) as part:
        with part.open("w+b") as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in files.items():
                    entry = zipfile.ZipInfo(name, _ZIP_DATE)
                    # arrays are compressed already
                    packed = name.endswith(".npz")
                    entry.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
                    archive.writestr(entry, content)
                archive.comment = bytes(_SEALED)  # its length is part of what is sealed
            stream.seek(0)
            sealed = stream.read()[:-_SEALED]
            stream.seek(len(sealed))
            stream.write(_SEAL + hashlib.sha256(sealed).hexdigest().encode())
        part.chmod(0o644)


def _write_directory(files: Mapping[str, bytes], target: Path) -> None:
    if target.exists() and not (target / SUMS).is_file() and not _is_empty(target):
        raise BundleError(f"{target}: exists and is no bundle: not overwritten")
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        for name, content in files.items():
            place = scratch / "new" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        if target.exists():
            target.rename(scratch / "old")
        try:
            (scratch / "new").rename(target)
        except OSError:
            if (scratch / "old").exists():
                (scratch / "old").rename(target)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
