"""Commands that are stopped or killed leave nothing behind, and can be continued."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.store.lock import StoreLock

COUNT = 80


@pytest.fixture(scope="module")
def board(farm: Any) -> Any:
    """Return a slow board that only the tests of this module use."""
    return farm.board("slow", measure_ms=100)


def test_killed_interrupted_and_resumed(
    farm: Any, board: Any, models: Callable[..., Path], quick: str
) -> None:
    # The lease of a killed controller must end before the board can be used again.
    shell = farm.shell("home", board, LATFARM_LEASE_MS="2000")
    command: tuple[Any, ...] = ("campaign", "run", "networks", "-p", farm.platform)
    command += (models(COUNT), "--config", quick, "--name", "c", "--json")

    # The board stops after this number of measurements and waits for the test, so that the campaign
    # cannot end before it is killed or interrupted.
    board.allow(5)
    with shell.start(*command) as running:
        assert running.line() == f"networks: {COUNT} steps\n"
        while board.measured < 5:
            assert running.process.poll() is None
        running.process.kill()
        assert running.wait().code == -signal.SIGKILL
    # `shell.start` has waited until no agent, Ray or worker process was left.
    assert shell.processes() == {}
    assert board.agent.alive
    killed = board.measured
    assert killed < COUNT

    board.allow(10)
    with shell.start("campaign", "resume", "c") as running:
        assert running.line() == f"networks: {COUNT} steps\n"
        while board.measured < killed + 5:
            assert running.process.poll() is None
        ended = running.signal(signal.SIGINT)
    assert ended.code == 130
    assert ended.out == ""
    (listed,) = shell.run("campaign", "list", "--json").json
    name = listed["campaign_id"]
    remedy = f"to continue where it stopped: latfarm campaign resume {name}"
    assert ended.err == f"latfarm: interrupted; {remedy}\n"
    assert listed["state"] == "interrupted"
    assert killed <= listed["measurements"] < COUNT
    assert shell.processes() == {}

    board.allow(None)
    done = shell.run(*command).json
    assert (done["campaign_id"], done["state"]) == (name, "done")
    assert (done["measurements"], done["failures"]) == (COUNT, 0)
    names = [network["name"] for network in done["outcome"]["networks"]]
    assert sorted(names) == sorted(f"net{number}" for number in range(1, COUNT + 1))
    # Each stop may lose the measurement that was running; the spool keeps results not yet fetched.
    assert COUNT <= board.measured <= COUNT + 4
    stored = shell.run("results", "--limit", "0", "--json").json
    assert len({m["request_id"] for m in stored}) == len(stored) == COUNT


def test_who_holds_the_store_is_named_and_waited_for(farm: Any) -> None:
    shell = farm.shell("held")
    with StoreLock(shell.home / "controller.lock"):
        busy = shell.run("campaign", "list")
        assert busy.code == 1
        assert f"process {os.getpid()}" in busy.err
        assert len(busy.err.splitlines()) == 1
        serve = shell.run("serve")
        assert (serve.code, serve.err) == (1, busy.err)
        with shell.start("campaign", "list", "--wait", "60") as stopped:
            assert f"waiting for process {os.getpid()}" in stopped.line()
            ended = stopped.signal(signal.SIGTERM)
            assert (ended.code, ended.err) == (130, "latfarm: interrupted\n")
        with ExitStack() as stack:
            waiting = stack.enter_context(
                shell.start("campaign", "list", "--wait", "60", "--json", alone=False)
            )
            assert f"waiting for process {os.getpid()}" in waiting.line()
            later = stack.pop_all()
    with later:
        assert waiting.wait().json == []


def test_terminated_while_it_starts(farm: Any, board: Any, models: Callable[..., Path]) -> None:
    shell = farm.shell("starting", board)
    path = models(1) / "net001.onnx"
    with shell.start("query", path, "-p", farm.platform) as running:
        assert "is being measured on" in running.line()  # Ray is still being started
        ended = running.signal(signal.SIGTERM)
    assert ended.code == 130
    assert ended.err == "latfarm: interrupted\n"
    assert shell.processes() == {}


def test_a_killed_serve_leaves_a_home_that_works(
    farm: Any, board: Any, models: Callable[..., Path]
) -> None:
    shell = farm.shell("served", board, LATFARM_LOCAL_AGENT="true")
    path = models(1) / "net001.onnx"
    with shell.start("serve") as serve:
        assert "serves on" in serve.line()
        listed = shell.run("boards", "--json").json
        assert [entry["name"] for entry in listed] == ["local", "slow"]
        assert listed[0]["platforms"]
        assert any("latfarm_agent" in command for command in shell.processes().values())
        with shell.start("query", path, "-p", farm.platform) as client:
            assert "is being measured on" in client.line()
            serve.process.kill()
            serve.wait()
            ended = client.wait()
    assert ended.code == 1
    assert "the controller went away" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert shell.processes() == {}
    assert (shell.home / "controller.sock").exists()
    assert shell.run("campaign", "list", "--json").json == []
    assert not (shell.home / "controller.sock").exists()
