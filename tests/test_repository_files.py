"""What the repository may hold: text that people read, and nothing that a download left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.checkout_files import ROOT, checkout_files

LARGEST_BYTES = 512 * 1024
"""Largest size of a file. The largest ones are results of benchmarks and locked dependencies."""


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """The files of the checkout, relative to its root."""
    try:
        return checkout_files()
    except subprocess.CalledProcessError:
        pytest.skip("this copy of the project is no git checkout")


def test_no_file_is_large(files: list[Path]) -> None:
    """A wheel, an archive or a data set that was committed stays in the history for ever."""
    sizes = {str(path): (ROOT / path).stat().st_size for path in files}
    assert {name: size for name, size in sizes.items() if size > LARGEST_BYTES} == {}


def test_every_file_is_text(files: list[Path]) -> None:
    """Fixtures that are no text are made by the tests that need them."""
    assert [str(path) for path in files if b"\0" in (ROOT / path).read_bytes()] == []
