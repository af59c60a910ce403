"""Writes a tar file of Ansible collections that is equal whenever their files are equal.

Usage: `python pack_collections.py FILE NAME=FOLDER...`, where NAME is, for example, latfarm.farm.
It prints the hash of the file's content, as 64 hex digits. Tests and documentation of a collection
are left out, because no playbook reads them.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from pathlib import Path

LEFT_OUT = {"tests", "docs", "changelogs"}
"""Folders of a collection that are left out, beside byte code and what begins with a dot."""


def packed(collections: dict[str, Path]) -> bytes:
    """The content of the tar file; every file belongs to root and has the time 0."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, folder in sorted(collections.items()):
            place = Path("ansible_collections", *name.split("."))
            for path in files(folder):
                entry = tar.gettarinfo(path, str(place / path.relative_to(folder)))
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = "root"
                entry.mode = 0o755 if entry.mode & 0o100 else 0o644
                with path.open("rb") as file:
                    tar.addfile(entry, file)
    return content.getvalue()


def files(folder: Path) -> list[Path]:
    """All files of a collection that playbooks may need, in order."""
    found = []
    for place, folders, names in os.walk(folder):
        top = Path(place) == folder
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name != "__pycache__" and not (top and name in LEFT_OUT)
        ]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        found += [path for path in paths if path.is_file() and not path.is_symlink()]
    return sorted(found)


def main(target: str, *given: str) -> None:
    """Write the file if it is not equal already, and print its hash."""
    pairs = (each.partition("=") for each in given)
    content = packed({name: Path(folder) for name, _, folder in pairs})
    file = Path(target)
    if not file.is_file() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(file)
    print(hashlib.sha256(content).hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
