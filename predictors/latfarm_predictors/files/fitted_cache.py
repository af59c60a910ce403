"""Files that keep what takes seconds to fit and depends on a bundle alone.

Some baselines and the paper's confidence metrics are fitted when they are first needed, to the
measurements that a bundle holds. A file is named by the digest of the bundle and by what was
fitted. It is written as bundles are: in open formats, without pickle, every byte under a digest,
at once or not at all. So a damaged file is recognised, and its content is fitted again.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from latfarm_predictors.errors import BundleError
from latfarm_predictors.files.bundle_files import SUMS, read_files, sums_of, write_files
from latfarm_predictors.files.bundle_state import DAMAGE, packed, state_of_files
from latfarm_predictors.models.base import ModelState

FORMAT = "latfarm-fitted"
"""Name of the format, in every file."""
VERSION = 1
"""Version of what is fitted; files of another version are not used.

Raise it when the same measurements give other models.
"""
MOST_BYTES = 256 * 2**20
"""Largest size of all files in the folder, in bytes."""


class FittedCache:
    """Fitted models of one bundle, as files in a folder that all bundles share. Thread-safe.

    Several processes may use a folder: a reader finds a whole file or none. When the folder holds
    more than `most_bytes`, the files that were not used for the longest time are removed.

    Args:
        folder: the folder; it is made when a file is first written.
        digest: digest of the bundle's list of digests, in hexadecimal.
        most_bytes: largest size of all files in the folder.
    """

    def __init__(self, folder: Path, digest: str, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._digest = digest
        self._most_bytes = most_bytes

    def get(self, name: str) -> ModelState | None:
        """What was kept under that name; None where there is nothing, or nothing readable."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            files = read_files(path)
            if json.loads(files["fitted.json"]) != self._header(name):
                return None
            state = state_of_files(files["tree.json"], files["arrays.npz"], {})
        except (BundleError, *DAMAGE):
            return None
        with suppress(OSError):
            os.utime(path)  # the file was used just now
        return state

    def put(self, name: str, state: ModelState) -> None:
        """Keep a fitted model under that name; a folder that cannot be written to keeps nothing."""
        texts: dict[str, str] = {}
        tree, arrays = packed(state, texts)
        if texts:  # no model that is kept here has texts
            return
        files = {
            "fitted.json": json.dumps(self._header(name), sort_keys=True).encode(),
            "tree.json": tree,
            "arrays.npz": arrays,
        }
        files[SUMS] = sums_of(files)
        with suppress(OSError):
            write_files(files, self._path(name))
            self._drop_oldest()

    def _header(self, name: str) -> dict[str, object]:
        return {"format": FORMAT, "version": VERSION, "bundle": self._digest, "name": name}

    def _path(self, name: str) -> Path:
        key = json.dumps(self._header(name), sort_keys=True).encode()
        return self._folder / f"{hashlib.sha256(key).hexdigest()}.zip"

    def _drop_oldest(self) -> None:
        """Remove the files that were not used for the longest time, until the others fit."""
        found = []
        for path in self._folder.glob("*.zip"):
            with suppress(OSError):  # another process removed it
                told = path.stat()
                found.append((told.st_mtime_ns, told.st_size, path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if left <= self._most_bytes:
                return
            with suppress(OSError):
                path.unlink()
            left -= size
