"""What a folder of wheelhouses keeps: of each kind of board the present release and the one before.

`kept.json` in it lists them, the newest first, each with the folders of wheels it was made from.
Boards that run a release have it on their own disks: what is removed here can be made again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from latfarm_predictors.whole_file import written_whole

RELEASES = 2
INDEX = "kept.json"
_VERSION = 1

_Kept = dict[str, list[dict[str, Any]]]


def keep(folder: Path, kind: str, archive: Path, parts: Collection[Path]) -> None:
    """Note that an archive is a kind's present release, and remove what no kind needs any more.

    The caller holds the folder's lock.

    Args:
        folder: of the wheelhouses.
        kind: of board: its Python, machine, C library and runtimes.
        archive: in the folder.
        parts: folders of the wheels that it was made from; those elsewhere are left alone.
    """
    before = _read(folder / INDEX)
    inside = sorted(str(part.relative_to(folder)) for part in parts if part.is_relative_to(folder))
    present = {"archive": archive.name, "parts": inside}
    known = before.get(kind, [])
    if known and known[0] == present:
        return
    others = [each for each in known if each["archive"] != archive.name]
    after = {**before, kind: [present, *others][:RELEASES]}
    for path in _paths(before) - _paths(after):
        # Named by us, in an index that others may have written to.
        if (folder / path).resolve().parent in _ours(folder):
            _remove(folder / path)
    with written_whole(folder / INDEX) as part:
        part.write_text(json.dumps({"version": _VERSION, "kinds": after}, indent=1) + "\n")


def _ours(folder: Path) -> set[Path]:
    """Folders that hold archives or wheels."""
    return {folder.resolve(), (folder / "own").resolve(), (folder / "others").resolve()}


def _paths(kept: _Kept) -> set[str]:
    releases = [release for releases in kept.values() for release in releases]
    return {path for each in releases for path in (each["archive"], *each["parts"])}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read(path: Path) -> _Kept:
    """The index; empty where there is none that can be used: then nothing is removed."""
    try:
        found = json.loads(path.read_text())
        if found["version"] != _VERSION:
            return {}
        kinds: _Kept = found["kinds"]
        _paths(kinds)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return kinds
