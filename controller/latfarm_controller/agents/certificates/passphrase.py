"""The passphrase of the authority's key: read from a file, and never on a command line.

openssl gets it through its standard input, so that neither `ps` nor a log shows it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from latfarm_controller.errors import UsageError

MIN_LETTERS = 8
"""Fewest letters of a passphrase; openssl refuses those below four."""
MAX_BYTES = 1024
"""Longest passphrase in bytes; openssl reads no more."""


def read_passphrase(path: Path) -> str:
    """The passphrase in the first line of a file that only its owner may read.

    Raises:
        UsageError: the file cannot be read, may be read by others, or has no such line.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"{path}: is no file; write the passphrase to a file")
            if found.st_mode & 0o077:
                raise UsageError(f"{path}: other users can read it; chmod 600 {path}")
            line = file.readline(MAX_BYTES + 2).rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        passphrase = line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: its first line is no text in UTF-8") from error
    if not (len(passphrase) >= MIN_LETTERS and len(line) <= MAX_BYTES and passphrase.isprintable()):
        raise UsageError(
            f"{path}: its first line must be a passphrase of {MIN_LETTERS} letters or more, "
            f"and at most {MAX_BYTES} bytes"
        )
    return passphrase


def has_passphrase(key: Path) -> bool:
    """Whether a private key in PEM is encrypted; False if the file cannot be read."""
    try:
        return "ENCRYPTED" in key.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
