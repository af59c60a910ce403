"""Runs MNN's converter in a process of its own, so that a crash of the converter is only an error.

MNN's command line reports its use over the network and installs packages. The function behind it,
which `mnn/worker.py` calls, does neither. The converter's process is kept for further models. It
ends when its standard input closes, which happens at the latest when this process ends.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

from latfarm_controller.errors import BuildError

WORKER = Path(__file__).with_name("worker.py")
"""Path of the program that runs MNN's converter."""
LONGEST_S = 900.0
"""Longest time that one model may take, in seconds; half a gigabyte of weights takes 15 s."""
_MOST_USES = 1000  # models that one process converts; it is then replaced, as it may leak memory
_LOG_CHARS = 2000  # characters of the converter's log that an error message quotes, from its end


class ConverterError(Exception):
    """The converter made no model; `log` is the text that it printed."""

    def __init__(self, why: str, log: str) -> None:
        super().__init__(f"{why}: {log.strip()[-_LOG_CHARS:]}" if log.strip() else why)
        self.log = log


class MnnConverter:
    """A process that runs MNN's converter, one model after another, and its private `folder`.

    Args:
        program: the path of the program that runs the converter.
        longest_s: the longest time that one model may take, in seconds.

    Raises:
        BuildError: MNN is not installed.
    """

    def __init__(self, program: Path = WORKER, longest_s: float = LONGEST_S) -> None:
        if importlib.util.find_spec("MNN") is None:
            raise BuildError("building for MNN needs it: pip install latfarm-controller[mnn]")
        self._owner = os.getpid()
        self._longest_s = longest_s
        self._uses = 0
        self.folder = Path(mkdtemp(prefix="latfarm-mnn-"))
        self._log = self.folder / "log"
        self._log.touch()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(program), str(self._log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # The converter keeps weights for a while in a file in its working directory, always
            # under the same name: two converters in one directory would mix them up.
            cwd=self._log.parent,
        )

    @property
    def pid(self) -> int:
        """Return the id of the converter's process."""
        return self._process.pid

    @property
    def fresh(self) -> bool:
        """Return whether the converter can take another model.

        Its process must be running, must have been started by the current process and not by its
        parent before a fork, and must not have converted too many models.
        """
        alive = self._process.poll() is None
        return alive and self._owner == os.getpid() and self._uses < _MOST_USES

    def convert(self, onnx: bytes, options: Sequence[str]) -> bytes:
        """Convert an ONNX model to an MNN model, with further options of MNN's converter.

        Raises:
            ConverterError: the converter refused the model, died, or took too long.
        """
        self._uses += 1
        source, made = self.folder / "model.onnx", self.folder / "model.mnn"
        source.write_bytes(onnx)
        os.truncate(self._log, 0)
        arguments = ["-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(made)]
        arguments += ["--bizCode", "latfarm", *options]
        try:
            self._ask(arguments)
            if not made.exists():
                raise ConverterError("it refused the model", self._told())
            return made.read_bytes()
        finally:
            source.unlink(missing_ok=True)
            made.unlink(missing_ok=True)

    def _ask(self, arguments: Sequence[str]) -> None:
        requests, replies = self._pipes()
        try:
            requests.write(json.dumps(arguments).encode() + b"\n")
            requests.flush()
        except OSError as error:
            raise ConverterError(self._death(), self._told()) from error
        waiting = select.poll()
        waiting.register(replies, select.POLLIN)
        if not waiting.poll(1000 * self._longest_s):
            self._process.kill()
            self._process.wait()
            raise ConverterError(f"no answer within {self._longest_s:.0f} s", self._told())
        reply = os.read(replies.fileno(), 1)
        if not reply:
            raise ConverterError(self._death(), self._told())

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise ConverterError("it has no pipes", "")
        return process.stdin, process.stdout

    def _death(self) -> str:
        code = self._process.wait()
        return f"it died of {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"

    def _told(self) -> str:
        told = self._log.read_text(errors="replace") if self._log.exists() else ""
        return told.replace(f"{self.folder}{os.sep}", "")

    def close(self) -> None:
        """End the converter's process and remove its folder.

        In a fork of the process that started the converter, do nothing.
        """
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()
_kept: list[MnnConverter] = []  # the converter that this process keeps, or nothing


def kept_converter() -> MnnConverter:
    """Return the converter that this process keeps; replace it if it can take no more models.

    Raises:
        BuildError: MNN is not installed.
    """
    if _kept and not _kept[0].fresh:
        _kept.pop().close()
    if not _kept:
        _kept.append(MnnConverter())
        atexit.unregister(_close)
        atexit.register(_close)
    return _kept[0]


def convert(onnx: bytes, options: Sequence[str] = ()) -> bytes:
    """Convert an ONNX model to an MNN model; other threads wait until it is done.

    Args:
        onnx: the bytes of the ONNX model.
        options: further options of MNN's converter; the names of the files are added here.

    Raises:
        ConverterError: the converter made no model.
        BuildError: MNN is not installed.
    """
    with _lock:
        return kept_converter().convert(onnx, options)


def _close() -> None:
    while _kept:
        _kept.pop().close()
