"""The process that fits a bundle, so that the controller answers questions meanwhile.

Its standard input brings the task (see `child_pipe`). It writes one line
of JSON for each step, and a last one with the end. It ends at once when its standard input ends,
because then the controller has gone, or wants the training to stop.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.child_pipe import STOPPED, packed, read_frame
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.training.fit_bundle import TrainingInputs, fit_bundle

NICENESS = 5
"""How far the fit steps back behind the processes that answer questions, as for `nice`."""


@dataclass(frozen=True)
class FitTask:
    """What the process does.

    Attributes:
        inputs: what the bundle is fitted to.
        path: file of the new bundle.
        pool_from: the folder of all bundles.
    """

    inputs: TrainingInputs
    path: Path
    pool_from: Path

    def to_bytes(self) -> bytes:
        """The task as the process reads it."""
        return packed(self)


def read_task(source: IO[bytes]) -> FitTask:
    """Read what `FitTask.to_bytes` made.

    Raises:
        EOFError: it ends too early.
        TypeError: it is something else.
    """
    try:
        content = read_frame(source)
    except EOFError as error:
        raise EOFError(f"the task ends too early: {error}") from error
    task = pickle.loads(content)  # only the controller that started us writes here
    if not isinstance(task, FitTask):
        raise TypeError(f"the task is a {type(task).__name__}")
    return task


def told_end(error: Exception | None) -> dict[str, Any]:
    """The last line: how the fit ended."""
    if error is None:
        return {"end": "done"}
    kind = "usage" if isinstance(error, UsageError) else "failed"
    expected = isinstance(error, (ControllerError, PredictorsError, OSError))
    text = str(error) or type(error).__name__
    return {"end": kind, "error": text if expected else f"{type(error).__name__}: {text}"}


def main() -> None:
    """Read a task, do it, and tell how it goes."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print, in C too, must not come between the lines
    os.nice(NICENESS)
    task = read_task(source)
    threading.Thread(target=_leave_with, args=(source,), daemon=True).start()

    def tell(line: dict[str, Any]) -> None:
        sink.write(json.dumps(line) + "\n")
        sink.flush()

    def progress(stage: str, done: int, total: int) -> None:
        tell({"stage": stage, "done": done, "total": total})

    try:
        fit_bundle(task.inputs, task.path, progress, task.pool_from)
        end = told_end(None)
    except Exception as error:
        end = told_end(error)
    tell(end)
    os._exit(0)  # the thread that reads must not be waited for


def _leave_with(source: IO[bytes]) -> None:
    """End this process when its standard input ends."""
    source.read()
    os._exit(STOPPED)
