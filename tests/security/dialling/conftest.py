"""The fixture that all tests of boards that dial in share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.conftest import Home
from tests.security.dialling.dialling_place import Place, placed


@pytest.fixture
def place(own_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A controller that boards can dial, and what the tests need to be such a board."""
    with placed(own_home, tmp_path, monkeypatch) as made:
        yield made
