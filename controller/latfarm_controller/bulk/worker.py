"""The child process of a `WorkerProcess`: it does one task after the other.

Its standard input brings the tasks, and its standard output takes the results. It ends at once when
its standard input ends, even in the midst of a task, because then the process that started it has
gone or needs it no longer. So it outlives no kill of that process.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from latfarm_controller.child_pipe import STOPPED, packed, read_frame
from latfarm_controller.errors import ControllerError


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a worker does once.

    Attributes:
        function: a function of a module of ours; it gets the items and what they share, and returns
            one result for each item.
        items: what is worked on.
        shared: what is the same for all items.
    """

    function: Callable[..., list[Any]]
    items: Sequence[Any]
    shared: tuple[Any, ...]

    def run(self) -> list[Any] | Exception:
        """The results, or the error that the function raised."""
        try:
            return self.function(self.items, *self.shared)
        except Exception as error:
            return portable(error)


def portable(error: Exception) -> Exception:
    """An error that another process can read; one that cannot travel becomes its text."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        again = None
    if type(again) is type(error):
        return error
    return ControllerError(f"{type(error).__name__}: {error}")


def main() -> None:
    """Do the tasks of standard input until it ends; the only argument is how nice to be."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    os.nice(int(sys.argv[1]))
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between the results
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_take, args=(source, tasks), daemon=True).start()
    while True:
        sink.write(_results(tasks.get()))
        sink.flush()


def _results(content: bytes) -> bytes:
    """The results of a task, or why there are none, as they are sent."""
    try:
        # Only the process that started this one writes here.
        task: WorkerTask = pickle.loads(content)
        return packed(task.run())
    except Exception as error:  # such as a function of a module that this process does not find
        return packed(portable(error))


def _take(source: IO[bytes], tasks: queue.SimpleQueue[bytes]) -> None:
    """Take tasks as they come, and end this process when no more can come."""
    try:
        while True:
            tasks.put(read_frame(source))
    finally:
        os._exit(STOPPED)
