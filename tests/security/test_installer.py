"""What `make setup` downloads is known by its hash, the installer itself included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_installer_is_pinned_by_its_hash() -> None:
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    (install,) = re.findall(r"pip install [^\n]*constraints-uv\.txt", recipes)
    assert "--require-hashes" in install
    assert not re.search(r"pip install[^\n]* uv\b", recipes)
    pins = (ROOT / "constraints-uv.txt").read_text(encoding="utf-8")
    assert re.findall(r"^\S+==\S+", pins, re.MULTILINE) == re.findall(
        r"^uv==\S+", pins, re.MULTILINE
    )
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", pins)) >= 10


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-farm.txt", "constraints-uv.txt"])
def test_every_pin_has_a_hash(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    pins = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert pins
    assert [line for line in pins if "--hash=sha256:" not in line] == []
