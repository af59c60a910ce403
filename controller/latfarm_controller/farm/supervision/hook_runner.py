"""Runs the hooks of boards: a command without a shell, or an HTTP POST to a configured address.

A hook has a time limit. The processes of a command form a group of their own, and all of them are
killed once the command ends or its time is over. Of what a hook says, only the end is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from latfarm_controller.board_hooks import Hook

LIMIT_S = 120.0
"""Seconds that a hook may take. Power cycles of PDUs with a pause take some ten seconds."""
KEPT_BYTES = 400
"""Bytes that are kept of what a hook says; the last ones, because errors come last."""
_READ_BYTES = 4096
"""Bytes that are read at once."""
_DRAIN_S = 2.0
"""Seconds in which the output of a command that has ended must end as well."""
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "SSH_AUTH_SOCK", "USER")
"""Environment variables that a command gets from the controller."""


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """How a hook ended: whether it did what it should, and one line about that."""

    ok: bool
    told: str


async def run_hook(hook: Hook, board: str, action: str, limit_s: float = LIMIT_S) -> HookOutcome:
    """Run a hook, and wait until it ends or its time is over. It never raises.

    Args:
        hook: of the board.
        board: name of the board, as LATFARM_BOARD for a command and in the body of a POST.
        action: what the hook is to do, as LATFARM_ACTION and in the body.
        limit_s: seconds that it may take.
    """
    if hook.url:
        try:
            async with asyncio.timeout(limit_s):  # the limit of a socket is for each read alone
                return await asyncio.to_thread(_post, hook.url, board, action, limit_s)
        except TimeoutError:
            return HookOutcome(False, f"no answer within {limit_s:g} s")
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    # With a pipe of asyncio, the end of the command would only be told with the end of its output,
    # which a process that it leaves behind keeps open.
    output, end = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *hook.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=end,
            stderr=end,
            start_new_session=True,  # so that its whole group can be killed
            cwd="/",
            env={**passed, "LATFARM_BOARD": board, "LATFARM_ACTION": action},
        )
    except (OSError, ValueError) as error:
        os.close(output)
        return HookOutcome(False, f"{hook.command[0]} cannot be started: {error}")
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(end)
    return await _finished(process, output, limit_s)


async def _finished(
    process: asyncio.subprocess.Process, output: int, limit_s: float
) -> HookOutcome:
    """Wait for a command, and kill what is left of its group."""
    said = bytearray()
    reading = asyncio.create_task(_read(output, said))
    in_time = False
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await process.wait()
                in_time = True
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.wait([reading], timeout=_DRAIN_S)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    last = _line(bytes(said))
    if not in_time:
        return HookOutcome(False, _joined(f"it was killed after {limit_s:g} s", last))
    if process.returncode:
        return HookOutcome(False, _joined(f"it ended with exit code {process.returncode}", last))
    return HookOutcome(True, last)


async def _read(output: int, said: bytearray) -> None:
    """Read all output of a command, so that it never waits for us, and keep the last bytes."""
    reader = asyncio.StreamReader()
    pipe = os.fdopen(output, "rb", 0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while data := await reader.read(_READ_BYTES):
            said += data
            del said[:-KEPT_BYTES]
    finally:
        transport.close()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: only the configured address is called."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse each of them, which makes the answer an error."""


def _post(url: str, board: str, action: str, limit_s: float) -> HookOutcome:
    """Call a URL, without a proxy."""
    body = json.dumps({"board": board, "action": action}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "latfarm"}
    request = urllib.request.Request(url, body, headers, method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(request, timeout=limit_s) as answer:
            return HookOutcome(True, _line(answer.read(KEPT_BYTES)))
    except urllib.error.HTTPError as error:
        with error:
            return HookOutcome(
                False, _joined(f"status {error.code}", _line(error.read(KEPT_BYTES)))
            )
    except Exception as error:  # http.client has errors of its own for malformed answers
        return HookOutcome(False, f"{type(error).__name__}: {error}")


def _line(said: bytes) -> str:
    """The last words of a hook in one printable line."""
    text = " ".join(said.decode(errors="replace").split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _joined(what: str, last: str) -> str:
    return f"{what}: {last}" if last else what
