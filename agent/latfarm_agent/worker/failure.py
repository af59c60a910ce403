"""The exception in which a request to a worker ends when it does not end well."""

from __future__ import annotations

from latfarm_agent.worker import replies


class WorkerFailure(Exception):
    """A request failed; the codes are error codes of a measurement's result.

    `alive`: the worker answered with a typed error and continues; otherwise it has ended.
    """

    def __init__(self, code: str, message: str, *, alive: bool = False) -> None:
        self.code = code
        self.message = replies.printable(message)
        self.alive = alive
        super().__init__(self.message)
