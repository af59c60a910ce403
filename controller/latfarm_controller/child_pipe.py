"""The pipe between a process and its own child: pickled objects, each after its length."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any

LENGTH = struct.Struct(">Q")
"""How the length of an object stands before it, in bytes."""
STOPPED = 3
"""Exit code of a child process that ends because its standard input has ended."""


def packed(value: Any) -> bytes:
    """An object as `read_frame` reads it."""
    content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(content)) + content


def read_frame(source: IO[bytes]) -> bytes:
    """The next pickled object of a pipe.

    Raises:
        EOFError: the pipe ends before the object does.
    """
    (length,) = LENGTH.unpack(_exactly(source, LENGTH.size))
    return _exactly(source, length)


def _exactly(source: IO[bytes], size_bytes: int) -> bytes:
    """The next bytes of a pipe, exactly `size_bytes` of them.

    Raises:
        EOFError: the pipe has fewer.
    """
    content = source.read(size_bytes)
    if len(content) < size_bytes:
        raise EOFError(f"the pipe ends after {len(content)} of {size_bytes} bytes")
    return content
