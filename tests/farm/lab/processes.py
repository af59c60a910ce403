"""Processes that a test starts on this host, and ways to wait for what they do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.farm.boards import patience

GIVE_UP_S = 90.0
"""How long `until` waits on a quiet host before the test fails, in seconds."""

LOOK_S = 0.2
"""Time between two looks at a condition, in seconds."""

_END_S = 30.0
"""How long a process may take to end after a signal on a quiet host, in seconds; then it is
killed."""


def until(
    condition: Callable[[], Any], what: Callable[[], object] | str, give_up_s: float = GIVE_UP_S
) -> Any:
    """Wait until a condition is true; return the value that made it true.

    Args:
        condition: called again and again.
        what: what is waited for, for the message of a test that waited in vain.
        give_up_s: how long to wait on a quiet host. On a busy one, time counts less, by the share
            of a core that a process gets.
    """
    left_s = give_up_s
    last_s = time.monotonic()
    while not (answer := condition()):
        now_s = time.monotonic()
        left_s -= (now_s - last_s) * patience.share()
        last_s = now_s
        if left_s <= 0:
            raise AssertionError(f"waited in vain: {what() if callable(what) else what}")
        time.sleep(LOOK_S)
    return answer


def get_json(url: str, **parameters: str) -> Any:
    """The JSON that a server on this host answers."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with urllib.request.urlopen(url + query, timeout=30) as answer:
        return json.loads(answer.read())


def answers(url: str) -> bool:
    """Whether a server answers this URL with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class LoggedProcess:
    """A process in a session of its own, whose output goes to a file."""

    def __init__(self, words: Sequence[str | Path], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **env},
                start_new_session=True,
                cwd=log.parent,
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to everything that it started in its session."""
        os.killpg(self._process.pid, number)

    def find(self, pattern: str) -> str:
        """Wait until the output matches a pattern; return the pattern's first group."""

        def found() -> re.Match[str] | None:
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            return re.search(pattern, self.log.read_text())

        return str(until(found, f"{pattern} in {self.log}")[1])

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process with a signal and wait for its end. Idempotent."""
        if self._process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
        try:
            self._process.wait(patience.scaled_s(_END_S))
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait()
