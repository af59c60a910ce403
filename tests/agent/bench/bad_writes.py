"""What a runtime may print, send and write where it should not, for `bad_acts`.

Stands alone: workers import it from a folder of the test.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable

from latfarm_agent.runtimes.base import (
    Job,
)

MB = 1 << 20


held: list[Any] = []
"""Keeps objects alive for as long as the worker lives."""


def forever() -> None:
    while True:
        signal.pause()


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    held.append(thread)


# Output, and messages in pipes that do not belong to the runtime.


def print_much(job: Job) -> None:
    for fd in (1, 2):
        os.write(fd, b"\x00\xff\x1b[2J no end of line " * 400_000)
    print("\x07" * MB)


def print_on(job: Job) -> None:
    in_thread(lambda: [os.write(2, b"garbage " * 8192) for _ in iter(int, 1)])
    forever()


def pipes() -> list[int]:
    found = []
    for fd in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                found.append(fd)
        except OSError:
            continue
    return found


def forge(*messages: dict[str, Any], size: int | None = None) -> None:
    data = b""
    for message in messages:
        body = json.dumps(message).encode()
        data += struct.pack(">2sI", b"lf", len(body) if size is None else size) + body
    for fd in pipes():
        try:
            os.write(fd, data)
        except OSError:
            continue


def forge_garbage(job: Job) -> None:
    for fd in pipes():
        try:
            os.write(fd, os.urandom(512))
        except OSError:
            continue


def forge_no_json(job: Job) -> None:
    for fd in pipes():
        try:
            os.write(fd, struct.pack(">2sI", b"lf", 100_000) + b"[" * 100_000)
        except OSError:
            continue


def forge_an_answer(job: Job) -> None:
    forge({"event": "done", "to": 1})


def forge_a_late_answer(job: Job) -> None:
    forge({"event": "done", "to": 0, "sessions": []})


def forge_a_failure(job: Job) -> None:
    forge({"event": "error", "to": 1, "code": "CANCELLED", "message": "\x1b[2J\udc80" * 10_000})


def forge_half(job: Job) -> None:
    forge({"event": "beat", "to": 1}, size=60 * MB)
    forever()


def forge_patience(job: Job) -> None:
    forge({"event": "stage", "to": 1, "name": "timing", "session": 0, "patience_ms": 1e18})
    forever()


def forge_stages(job: Job) -> None:
    while True:
        forge({"event": "stage", "to": 1, "name": "timing", "session": 0, "patience_ms": 1e3})


def forge_beats(job: Job) -> None:
    while True:
        forge({"event": "beat", "to": 1})


# The disk.


def fill(folder: Path) -> None:
    for number in range(512):
        with (folder / f"fill-{number}").open("wb") as file:
            file.write(b"\1" * (8 * MB))
    forever()


def fill_its_folder(job: Job) -> None:
    fill(Path.cwd())


def fill_temporary(job: Job) -> None:
    fill(Path(tempfile.gettempdir()))


def fill_scratch(job: Job) -> None:
    fill(job.scratch_dir)


def reserve(job: Job) -> None:
    for number in range(128):
        fd = os.open(str(job.scratch_dir / f"reserved-{number}"), os.O_CREAT | os.O_RDWR)
        os.posix_fallocate(fd, 0, 32 * MB)
        os.close(fd)
    forever()


def one_large_file(job: Job) -> None:
    with (job.scratch_dir / "large").open("wb", buffering=0) as file:
        while file.tell() < 10 << 30:
            if not file.write(b"\1" * MB):
                return


def sparse_file(job: Job) -> None:
    with (job.scratch_dir / "sparse").open("wb") as file:
        file.truncate(10 << 30)


def many_files(job: Job) -> None:
    for number in range(20_000):
        (job.scratch_dir / f"{number}").touch()
    forever()


def nests(job: Job) -> None:
    """Deep folders, one without permissions, and a way out of the folder."""
    os.chdir(str(job.scratch_dir))
    outside = Path(job.model_path).parent / "precious"
    Path("link").symlink_to(outside)
    Path("closed").mkdir()
    Path("closed", "file").touch()
    closed = os.open("closed", os.O_RDONLY)
    os.fchmod(closed, 0)  # a confined worker may not change permissions by name
    os.close(closed)
    for _ in range(1500):
        Path("deep").mkdir()
        os.chdir("deep")
