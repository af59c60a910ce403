"""Removes old wheelhouses: each kind of board keeps its present and its previous release.

The file `kept.json` lists the kept releases, the newest first, each with the folders of wheels from
which it was made. It is safe to remove other releases: a board has the release that it runs on its
own disk, and a removed release can be made again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from latfarm_predictors.whole_file import written_whole

RELEASES = 2
"""How many releases are kept for each kind of board."""
INDEX = "kept.json"
"""Name of the file that lists the kept releases."""
_VERSION = 1  # version of the format of that file

# For each kind of board, its releases, the newest first.
_Kept = dict[str, list[dict[str, Any]]]


def keep(folder: Path, kind: str, archive: Path, parts: Collection[Path]) -> None:
    """Record the present release of a kind of board, and remove files that no kind needs any more.

    The caller must hold the lock of the folder.

    Args:
        folder: the folder of wheelhouses.
        kind: a name for the kind of board: its Python, processor, C library and runtimes.
        archive: the release, a file in the folder.
        parts: the folders of the wheels from which the release was made. Those outside the folder
            are never removed.
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
        # Other programs may have changed the index, so only paths in our own folders are removed.
        if (folder / path).resolve().parent in _ours(folder):
            _remove(folder / path)
    with written_whole(folder / INDEX) as part:
        part.write_text(json.dumps({"version": _VERSION, "kinds": after}, indent=1) + "\n")


def _ours(folder: Path) -> set[Path]:
    """Return the folders that hold releases and wheels."""
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
    """Return the content of the index; empty if it cannot be read, so that nothing is removed."""
    try:
        found = json.loads(path.read_text())
        if found["version"] != _VERSION:
            return {}
        kinds: _Kept = found["kinds"]
        _paths(kinds)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return kinds
