"""The program that runs MNN's converter for `converter.py`.

Each line of the program's standard input is a JSON list of arguments for the converter. The program
writes one byte to its standard output after each conversion. It is run by its path and imports
nothing of this project. The text that the C++ code prints goes to a log file, whose path is the
program's only argument.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys


def main() -> None:
    """Convert one model for each line of standard input, until standard input closes."""
    replies = os.dup(1)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Import only the extension module: MNN.tools would install packages and report its use.
    convert = importlib.import_module("_tools").mnnconvert

    flush = ctypes.CDLL(None).fflush
    for line in sys.stdin.buffer:
        convert(["mnnconvert", *json.loads(line)])
        flush(None)
        os.write(replies, b".")


if __name__ == "__main__":
    main()
