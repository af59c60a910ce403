"""The files of the checkout that the tests run in."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The root of the checkout."""


def checkout_files() -> list[Path]:
    """Files that are tracked or that `git add --all` would add, relative to `ROOT`.

    Links to folders are left out.

    Raises:
        subprocess.CalledProcessError: this copy of the project is no git checkout.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = filter(None, listed.stdout.decode().split("\0"))
    return [Path(name) for name in names if (ROOT / name).is_file()]
