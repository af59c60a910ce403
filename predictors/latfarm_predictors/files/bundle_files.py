"""Reads and writes the files of a bundle, as bytes by name, and checks their digests.

No file is parsed before its digest is known to be right. An archive ends in the digest of
everything before it. A directory has a list of digests, which is compared byte by byte. So a change
of any byte is found, even of names, dates and lengths.
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
from itertools import islice
from pathlib import Path

from latfarm_predictors.errors import BundleError
from latfarm_predictors.whole_file import written_whole

SUMS = "SHA256SUMS"
"""Name of the list of digests."""

MOST_BYTES = 256 * 2**20
"""Largest size of a bundle's files together, in bytes; a usual bundle has 5 to 40 megabytes."""
MOST_FILES = 4096
"""Largest number of files in a bundle."""
_LONGEST = 200
"""Number of characters that an error tells of a name or of another error."""
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of every file in an archive, so that the same files give the same bytes."""
_SEAL = b"latfarm bundle, SHA-256 of all before this line: "
"""What stands before the digest at the end of an archive."""
_SEALED = len(_SEAL) + 64
"""Number of bytes of the seal and the digest at the end of an archive."""
_UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""The errors that reading a damaged archive may raise.

RuntimeError means that it is encrypted or that a method of compression is unknown.
"""


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """The list of digests of some files, in the format of the program sha256sum."""
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    return "".join(lines).encode()


def read_files(path: Path) -> dict[str, bytes]:
    """Every file of a bundle, with the list of digests; all of them are checked.

    Raises:
        BundleError: there is no such bundle, or a file is missing, changed or added.
    """
    try:
        files = _read_zip(path) if path.is_file() else _read_directory(path)
    except _UNREADABLE as error:
        raise BundleError(f"{path}: not a bundle: {str(error)[:_LONGEST]}") from error
    listed = files.get(SUMS)
    if listed is None:
        raise BundleError(f"{path}: the bundle has no list of digests")
    others = {name: content for name, content in files.items() if name != SUMS}
    if listed != sums_of(others):
        raise BundleError(f"{path}: {_difference(listed, others)}")
    return files


def write_files(files: Mapping[str, bytes], target: Path) -> None:
    """Write a bundle: one file if `target` ends in .zip, else a directory.

    An older bundle at `target` is replaced as a whole or not at all.

    Raises:
        BundleError: `target` is a directory, but not a bundle.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".zip":
        _write_zip(files, target)
    else:
        _write_directory(files, target)


def _difference(listed: bytes, files: Mapping[str, bytes]) -> str:
    """What is wrong with a bundle, as far as its list of digests shows."""
    digests: dict[str, str] = {}
    for line in listed.decode("utf-8", "replace").split("\n"):
        digest, _, name = line.partition("  ")
        digests[name] = digest
    for name in sorted(files):
        if name in digests and hashlib.sha256(files[name]).hexdigest() != digests[name]:
            return f"{ascii(name)[1:-1][:_LONGEST]} is damaged: its digest is not the one listed"
    return "the bundle's files are not those that its digests list"


def _read_zip(path: Path) -> dict[str, bytes]:
    _check_budget(1, path.stat().st_size)
    content = path.read_bytes()
    if not (_is_sealed(content) or _is_unsealed_archive(content)):
        raise ValueError("it is damaged or no archive: it does not end in its digest")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        _check_budget(len(entries), sum(entry.file_size for entry in entries))
        return {entry.filename: archive.read(entry) for entry in entries}


def _check_budget(count: int, size_bytes: int) -> None:
    """Check that files are not too many and, unpacked, not too large together."""
    if count > MOST_FILES:
        raise ValueError(f"more than {MOST_FILES} files")
    if size_bytes > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES // 2**20} MiB")


def _is_sealed(content: bytes) -> bool:
    """Whether an archive ends in the digest of everything before the seal."""
    sealed, seal = memoryview(content)[:-_SEALED], content[-_SEALED:]
    return seal == _SEAL + hashlib.sha256(sealed).hexdigest().encode()


def _is_unsealed_archive(content: bytes) -> bool:
    """Whether an archive ends without a comment, as those of version 1 and of other tools do."""
    return content[-22:-18] == b"PK\x05\x06" and content[-2:] == b"\0\0"


def _read_directory(path: Path) -> dict[str, bytes]:
    if not path.is_dir():
        raise FileNotFoundError("no such file or directory")
    found = list(islice(path.rglob("*"), 2 * MOST_FILES + 1))  # files, and folders between them
    entries = [entry for entry in sorted(found) if entry.is_file()]
    _check_budget(len(found) // 2, sum(entry.stat().st_size for entry in entries))
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
                archive.comment = bytes(_SEALED)  # its length is written before the digest is taken
            stream.seek(0)
            sealed = stream.read()[:-_SEALED]
            stream.seek(len(sealed))
            stream.write(_SEAL + hashlib.sha256(sealed).hexdigest().encode())
        part.chmod(0o644)


def _write_directory(files: Mapping[str, bytes], target: Path) -> None:
    if target.exists() and not (target / SUMS).is_file() and not _is_empty(target):
        raise BundleError(f"{target}: it exists and is no bundle, so it is not overwritten")
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
