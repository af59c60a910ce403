"""Reads small files of sysfs, which hold one value each, and may be missing or forbidden."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str | None:
    """The content without surrounding space; None: it is empty or cannot be read."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def number(path: Path) -> float | None:
    """The content as a number; None: it is not a number or cannot be read."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def paths(folder: Path, pattern: str) -> list[Path]:
    """Sorted matches in a folder; none if the folder may not be listed, as on Android."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
