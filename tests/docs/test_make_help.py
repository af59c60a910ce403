"""What `make` says to somebody who does not know its targets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(target: str) -> subprocess.CompletedProcess[str]:
    """Run a target of the project's Makefile."""
    return subprocess.run(
        ["make", "--no-print-directory", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_every_target_within_80_columns() -> None:
    shown = make("help").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    described = dict(re.findall(r"^([a-z][a-z-]*):.*?## (.*)$", text, re.MULTILINE))
    assert {"setup", "demo", "test", "bench-models"} <= set(described)
    words = " ".join(shown.split())
    for target, description in described.items():
        assert f"{target} {' '.join(description.split())}" in words


def test_a_misspelt_target_is_told_where_targets_are_listed() -> None:
    ended = make("tset")
    assert ended.returncode == 2
    assert "there is no target 'tset'; make help lists all of them" in ended.stderr
