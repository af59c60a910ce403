"""The exception in which a request to a worker ends when it does not end well."""

from __future__ import annotations

from latfarm_agent.worker import replies


class WorkerFailure(Exception):
    """A request did not end well; the codes are those of a measurement's result.

    The worker is gone, unless `alive`: then it answered with a typed error and goes on.
    """

    def __init__(self, code: str, message: str, *, alive: bool = False) -> None:
        self.code = code
        self.message = replies.printable(message)
        self.alive = alive
        super().__init__(self.message)
