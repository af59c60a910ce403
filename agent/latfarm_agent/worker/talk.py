"""Follows the messages of one request to a worker: which may come, and until when."""

from __future__ import annotations

import time
from typing import Any, Mapping

from latfarm_agent.worker import replies
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.replies import ReplyError

TAKE_TIMEOUT_MS = 30_000.0
"""How long a waiting worker may take to begin with a request, before it counts as stuck."""

_STAGES_A_SESSION = 16
"""Most stages that a worker may report for each session; an honest one reports fewer."""

_BEATS_AT_FIRST = 64
_BEATS_A_TIMEOUT = 16
"""A worker may send so many beats at once, and so many more within each run's timeout."""

_TIMEOUTS = 64
_SLACK_MS = 600_000.0
"""Longest patience that is granted: all times of the settings, so many run timeouts, and this."""


class Talk:
    """Follows the messages of a request.

    Args:
        question: number of the request; 0: the start of the worker.
        patience_ms: how long the first message may take.
        settings: the settings of the measurement; None: the worker starts.
    """

    def __init__(
        self,
        question: int,
        patience_ms: float,
        settings: Mapping[str, Any] | None,
    ) -> None:
        self._question = question
        self._taken = settings is None
        self._begun_s = time.monotonic()
        self._patience_ms = patience_ms
        self._beat_ms = self._most_ms = self._most_stages = 0.0
        if settings is not None:
            times = {name: float(v) for name, v in settings.items() if name.endswith("_ms")}
            self._beat_ms = times["run_timeout_ms"]
            self._most_ms = sum(times.values()) + _TIMEOUTS * self._beat_ms + _SLACK_MS
            self._most_stages = _STAGES_A_SESSION * (int(settings["sessions"]) + 1)
        self._stages = self._beats = 0
        self.doing = "starting" if self._taken else "loading"
        self.deadline_s = self._begun_s + self._patience_ms / 1e3

    @property
    def late_code(self) -> str:
        """The error code if the deadline passes now."""
        return "MODEL_TIMEOUT" if self._taken else "MODEL_CRASHED"

    @property
    def late_message(self) -> str:
        """The error message if the deadline passes now."""
        if not self._taken:
            return f"the worker did not begin with the model within {self._patience_ms:.0f} ms"
        return f"no answer within {self._patience_ms:.0f} ms while {self.doing}"

    def hear(self, message: Message) -> None:
        """Take a message, and move the deadline.

        Raises:
            ReplyError: an honest worker does not send such a message now.
        """
        replies.event(message, self._question)
        self._taken = True
        now_s = time.monotonic()
        if message["event"] == "stage":
            self._stages += 1
            if self._stages > self._most_stages:
                raise ReplyError(f"over {self._most_stages:.0f} stages")
            if message["patience_ms"] > self._most_ms:
                raise ReplyError(f"a patience of {message['patience_ms']:g} ms")
            self._patience_ms = message["patience_ms"]
            self.doing = message["name"]
        elif message["event"] == "beat":
            self._beats += 1
            elapsed_ms = (now_s - self._begun_s) * 1e3
            most = _BEATS_AT_FIRST + _BEATS_A_TIMEOUT * elapsed_ms / max(self._beat_ms, 1e-3)
            if self._beats > most:
                raise ReplyError(f"{self._beats} beats within {elapsed_ms:.0f} ms")
        self.deadline_s = now_s + self._patience_ms / 1e3
