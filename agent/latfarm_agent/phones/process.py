"""Runs a client program to its end, with limits on its time and its output."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from dataclasses import dataclass
from typing import Sequence

_PIECE = 1 << 16
"""How much is read at once."""


class OutputTooLargeError(Exception):
    """The program printed more than the limit, and was ended."""


@dataclass(frozen=True)
class Said:
    """What a program printed. `code` is its exit code; None: it was ended at its time limit."""

    code: int | None
    out: bytes
    err: bytes


def converse(
    command: Sequence[str], limit_s: float, limit_bytes: int, *, keep_input: bool = False
) -> Said:
    """Run a program to its end.

    Args:
        command: the program and its arguments.
        limit_s: the program is killed after so many seconds.
        limit_bytes: limit of both output streams together.
        keep_input: keep its standard input open without sending anything, until this process ends.

    Raises:
        OutputTooLargeError: it printed more than the limit.
        OSError: it cannot be started.
    """
    until = time.monotonic() + limit_s
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE if keep_input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    out, err = said.values()
    timed_out = False
    try:
        with selectors.DefaultSelector() as selector:
            for number in said:
                selector.register(number, selectors.EVENT_READ)
            while selector.get_map():
                left = until - time.monotonic()
                if left <= 0:
                    timed_out = True
                    break
                for key, _ in selector.select(left):
                    piece = os.read(key.fd, _PIECE)
                    if not piece:
                        selector.unregister(key.fd)
                    said[key.fd] += piece
                if len(out) + len(err) > limit_bytes:
                    raise OutputTooLargeError
        if not timed_out:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                timed_out = True
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    return Said(None if timed_out else process.returncode, bytes(out), bytes(err))
