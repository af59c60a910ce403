"""The process that runs MNN's converter: a list of arguments a line in, a byte out for each.

It is run by path and imports nothing of this project. What the converter prints from C++ goes to
the log whose path is its only argument.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys


def main() -> None:
    """Convert until standard input closes."""
    replies = os.dup(1)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The extension alone: importing MNN.tools would install packages and call home.
    convert = importlib.import_module("_tools").mnnconvert

    flush = ctypes.CDLL(None).fflush
    for line in sys.stdin.buffer:
        convert(["mnnconvert", *json.loads(line)])
        flush(None)
        os.write(replies, b".")


if __name__ == "__main__":
    main()
