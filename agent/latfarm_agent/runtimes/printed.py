"""What a library prints: some have no other words for what they found."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Callable, TypeVar

Made = TypeVar("Made")


def printed(work: Callable[[], Made], path: Path) -> tuple[Made, str]:
    """Do something, and catch what is printed meanwhile on both outputs, below Python too.

    Args:
        work: what to do.
        path: of a file that may be made for it; it is gone afterwards.

    Returns:
        what `work` returned, and the text.
    """
    flush = ctypes.CDLL(None).fflush
    flush(None)
    kept = os.dup(1), os.dup(2)
    with path.open("w+b") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            made = work()
        finally:
            flush(None)
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])
        file.seek(0)
        text = file.read().decode("utf-8", "replace")
    path.unlink()
    return made, text


def one_line(text: str, limit: int = 600) -> str:
    """The lines of a text that are not empty, in one."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:limit]
