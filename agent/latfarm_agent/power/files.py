"""Small files of sysfs: a value each, absent or forbidden where the board lacks it."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str | None:
    """The content without the space around it; None where it is empty or cannot be read."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def number(path: Path) -> float | None:
    """The content as a number; None where it is none or cannot be read."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def paths(folder: Path, pattern: str) -> list[Path]:
    """What matches in a folder, sorted; nothing where it may not be looked into, as on Android."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
