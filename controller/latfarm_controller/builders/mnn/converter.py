"""MNN's converter in a process of its own, kept warm: a crash in it is an error here.

MNN's command line reports its use over the network and installs packages; the function behind it,
called by `mnn.worker`, does neither. The process ends with ours, when its standard input closes.
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

_WORKER = Path(__file__).with_name("worker.py")
_LONGEST_S = 900.0  # half a gigabyte of weights takes 15 s
_MOST_USES = 1000  # then a fresh process, whatever the old one has kept
_TOLD = 2000


class ConverterError(Exception):
    """The converter gave no model; `log` is what it printed."""

    def __init__(self, why: str, log: str) -> None:
        super().__init__(f"{why}: {log.strip()[-_TOLD:]}" if log.strip() else why)
        self.log = log


class _Converter:
    """One warm process and its private folder."""

    def __init__(self) -> None:
        if importlib.util.find_spec("MNN") is None:
            raise BuildError("building for MNN needs it: pip install latfarm-controller[mnn]")
        self.pid = os.getpid()
        self.uses = 0
        self._folder = Path(mkdtemp(prefix="latfarm-mnn-"))
        self._log = self._folder / "log"
        self._log.touch()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), str(self._log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # It keeps weights for a while in a file of one name in the working directory: two
            # converters in one directory would mix theirs up.
            cwd=self._log.parent,
        )

    @property
    def fresh(self) -> bool:
        """Whether it can take another model: alive, ours, and not used up."""
        alive = self._process.poll() is None
        return alive and self.pid == os.getpid() and self.uses < _MOST_USES

    def convert(self, onnx: bytes, options: Sequence[str]) -> bytes:
        """The MNN model of an ONNX model.

        Raises:
            ConverterError: it refused, died, or took too long.
        """
        self.uses += 1
        source, made = self._folder / "model.onnx", self._folder / "model.mnn"
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
        if not waiting.poll(1000 * _LONGEST_S):
            self._process.kill()
            self._process.wait()
            raise ConverterError(f"no answer within {_LONGEST_S:.0f} s", self._told())
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
        return told.replace(f"{self._folder}{os.sep}", "")

    def close(self) -> None:
        """End the process; in a fork of ours, leave it to its owner."""
        if self.pid != os.getpid():
            return
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


_lock = threading.Lock()
_warm: list[_Converter] = []


def convert(onnx: bytes, options: Sequence[str] = ()) -> bytes:
    """The MNN model of an ONNX model; one at a time in a process.

    Args:
        onnx: the model.
        options: of MNN's converter, beyond the files.

    Raises:
        ConverterError: it gave no model.
        BuildError: MNN is not installed.
    """
    with _lock:
        if _warm and not _warm[0].fresh:
            _warm.pop().close()
        if not _warm:
            _warm.append(_Converter())
            atexit.unregister(_close)
            atexit.register(_close)
        return _warm[0].convert(onnx, options)


def _close() -> None:
    while _warm:
        _warm.pop().close()
