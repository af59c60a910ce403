"""What the repository may hold: text that people read, and nothing that a download left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST_BYTES = 512 * 1024
"""Largest size of a file. The largest ones are results of benchmarks and locked dependencies."""


def files_to_commit() -> list[Path]:
    """Files that are tracked, or that `git add --all` would add; links to folders are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this copy of the project is no git checkout")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_file_is_large() -> None:
    """A wheel, an archive or a data set that was committed stays in the history for ever."""
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in files_to_commit()}
    assert {name: size for name, size in sizes.items() if size > LARGEST_BYTES} == {}


def test_every_file_is_text() -> None:
    """Fixtures that are no text are made by the tests that need them."""
    binary = [path for path in files_to_commit() if b"\0" in path.read_bytes()]
    assert [str(path.relative_to(ROOT)) for path in binary] == []
