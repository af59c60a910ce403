"""The list of revoked certificates, `revoked.json`; it is read again when it changes.

```json
{"version": 1, "sha256": ["<hex fingerprint of the DER certificate>"]}
```

Without a file, no certificate is revoked. Once a list was read, a damaged or missing file does not
make any certificate valid again: the last good list stays in use, and the log says so.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterable
from pathlib import Path

FILE_NAME = "revoked.json"
VERSION = 1
"""Version of the format of the file."""
MAX_BYTES = 8 << 20
"""The largest size of the file in bytes."""
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")

logger = logging.getLogger(__name__)


class RevokedError(Exception):
    """The list cannot be used; the text says why."""


class Revoked:
    """The fingerprints of revoked certificates in one file. It is thread-safe.

    Raises:
        RevokedError: on construction, when the file exists and cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._listed = read_revoked(path) if self._stamp is not None else frozenset()
        self._complained: object = None

    def fingerprints(self) -> frozenset[str]:
        """The current list."""
        with self._lock:
            try:
                stamp = _stamp(self.path)
                if stamp == self._stamp:
                    return self._listed
                listed = read_revoked(self.path)  # raises if the file is gone
            except RevokedError as error:
                if str(error) != self._complained:
                    self._complained = str(error)
                    logger.warning("keeping the old list of revoked certificates: %s", error)
                return self._listed
            self._stamp, self._listed, self._complained = stamp, listed, None
            logger.info("took over %s: %d revoked certificates", self.path, len(listed))
            return listed


def read_revoked(path: Path) -> frozenset[str]:
    """Read the fingerprints of revoked certificates from a file.

    Raises:
        RevokedError: the file cannot be read, or is not such a list.
    """
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise RevokedError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RevokedError(f"{path}: is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise RevokedError(f'{path}: must be an object with "version": {VERSION}')
    listed = data.get("sha256")
    if not isinstance(listed, list) or not all(
        isinstance(entry, str) and _FINGERPRINT.fullmatch(entry) for entry in listed
    ):
        raise RevokedError(f'{path}: "sha256" must list fingerprints of 64 lower-case hex digits')
    return frozenset(listed)


def revoked_text(fingerprints: Iterable[str]) -> str:
    """The content of a file that lists these fingerprints, as `read_revoked` reads it."""
    return json.dumps({"version": VERSION, "sha256": sorted(fingerprints)}, indent=1) + "\n"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file is replaced or written; None without a file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RevokedError(f"{path}: cannot be read: {error.strerror or error}") from error
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
