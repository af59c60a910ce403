"""Unpacks archives in tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into a folder, which is made.

    The program tar does it: the filter that newer versions of `tarfile` ask for is unknown to that
    of Debian 12.
    """
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", folder, "-f", archive], check=True)
