"""Catching what a library prints, for libraries that report some facts in no other way."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Callable, TypeVar

Made = TypeVar("Made")


def printed(work: Callable[[], Made], path: Path) -> tuple[Made, str]:
    """Call `work` and catch what this process prints meanwhile.

    Standard output and standard error are caught at the level of file descriptors, so that the
    prints of C libraries are caught too.

    Args:
        work: the function to call.
        path: path of a temporary file that this function may make; it is removed afterwards.

    Returns:
        what `work` returned, and the printed text.
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
    """Join the lines of a text that are not empty to one line of at most `limit` characters."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:limit]
