"""Hooks are run without a shell, with a time limit, and as one group of processes."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from latfarm_controller.board_hooks import Hook
from latfarm_controller.farm.supervision.hook_runner import KEPT_BYTES, HookOutcome, run_hook

pytestmark = pytest.mark.timeout(60)
LONG_S = 3600
"""How long a hook sleeps that is killed."""


def run(*command: str, limit_s: float = 50.0) -> HookOutcome:
    return asyncio.run(run_hook(Hook(command), "orin", "reboot", limit_s))


def python(text: str, limit_s: float = 50.0) -> HookOutcome:
    return run(*program(text), limit_s=limit_s)


def program(text: str) -> tuple[str, ...]:
    """A command that runs Python; an argument of a hook has no line breaks."""
    return (sys.executable, "-c", f"exec({text!r})")


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def wait_until_gone(pid: int) -> None:
    while not gone(pid):
        threading.Event().wait(0.01)


def test_a_command_is_told_the_board_and_its_last_words_are_kept() -> None:
    text = "import os; print(os.environ['LATFARM_BOARD'], os.environ['LATFARM_ACTION'])"
    assert python(text) == HookOutcome(True, "orin reboot")


def test_no_shell_reads_the_arguments() -> None:
    text = "import sys; print(sys.argv[1:])"
    outcome = run(sys.executable, "-c", text, "$(id)", ";", "*")
    assert outcome == HookOutcome(True, "['$(id)', ';', '*']")


def test_the_environment_of_the_controller_is_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LATFARM_SECRET", "x")
    assert python("import os; print('LATFARM_SECRET' in os.environ)").told == "False"


def test_a_failure_tells_its_exit_code_and_last_words() -> None:
    outcome = python("import sys; print('no such outlet'); sys.exit(3)")
    assert outcome == HookOutcome(False, "it ended with exit code 3: no such outlet")


def test_much_output_is_read_and_only_its_end_is_kept() -> None:
    outcome = python("print('x' * 3_000_000); print('the \\x1b[1m end')")
    assert outcome.ok
    assert outcome.told.endswith("the ?[1m end")
    assert len(outcome.told) <= KEPT_BYTES


def test_a_program_that_does_not_exist_is_told() -> None:
    outcome = run("/nowhere/pdu")
    assert not outcome.ok
    assert outcome.told.startswith("/nowhere/pdu cannot be started: ")


def test_a_hook_that_hangs_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    """The limit is short, because nothing but the limit ends the hook."""
    pids = tmp_path / "pids"
    text = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({LONG_S})'])\n"
        f"open({str(pids)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids)!r} + '.part', {str(pids)!r})\n"
        f"time.sleep({LONG_S})\n"
    )

    async def main() -> HookOutcome:
        hook = Hook(program(text))
        running = asyncio.create_task(run_hook(hook, "orin", "reboot", 3600.0))
        while not pids.exists():
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return await run_hook(Hook(program(text)), "orin", "reboot", 0.2)

    outcome = asyncio.run(main())
    assert not outcome.ok
    assert outcome.told == "it was killed after 0.2 s"
    for pid in map(int, pids.read_text().split()):
        wait_until_gone(pid)


def test_a_process_that_a_hook_leaves_behind_is_killed() -> None:
    text = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({LONG_S})'])\n"
        "print(child.pid)"
    )
    outcome = python(text)
    assert outcome.ok
    wait_until_gone(int(outcome.told))


class Pdu(BaseHTTPRequestHandler):
    """A power distribution unit that answers over HTTP."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, json.loads(body)))  # type: ignore[attr-defined]
        status = {"/busy": 503, "/moved": 302}.get(self.path, 200)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/outlet/1")
        self.end_headers()
        self.wfile.write(b"relay 4 " * 1000)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def pdu() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Pdu) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def post(server: HTTPServer, path: str) -> HookOutcome:
    url = f"http://127.0.0.1:{server.server_port}{path}"
    return asyncio.run(run_hook(Hook(url=url), "orin", "power_cycle", 50.0))


def test_a_url_is_posted_to(pdu: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    outcome = post(pdu, "/outlet/4")
    assert outcome.ok
    assert outcome.told.startswith("relay 4 relay 4")
    assert len(outcome.told) <= KEPT_BYTES
    body = {"board": "orin", "action": "power_cycle"}
    assert pdu.asked == [("/outlet/4", body)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("path", "status"), [("/busy", 503), ("/moved", 302)])
def test_any_other_status_is_a_failure_and_no_redirection_is_followed(
    pdu: HTTPServer, path: str, status: int
) -> None:
    outcome = post(pdu, path)
    assert not outcome.ok
    assert outcome.told.startswith(f"status {status}: relay 4")
    assert len(pdu.asked) == 1  # type: ignore[attr-defined]


def test_nobody_behind_a_url_is_told() -> None:
    with HTTPServer(("127.0.0.1", 0), Pdu) as server:
        url = f"http://127.0.0.1:{server.server_port}/"
    outcome = asyncio.run(run_hook(Hook(url=url), "orin", "power_cycle", 50.0))
    assert not outcome.ok
    assert "refused" in outcome.told
