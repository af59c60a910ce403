"""The rack as a process: its inventory, wrong options, signals, kill -9 and another start."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from latfarm_agent import cli
from latfarm_agent.worker import keeper

if TYPE_CHECKING:
    from tests.agent.rack.conftest import Racks

WAIT_S = 60.0


class RackProcesses:
    """Starts `latfarm-agent rack` over one folder; its processes end with the test."""

    def __init__(self, racks: Racks) -> None:
        self.profile = racks.profile
        self.inventory = racks.folder / "boards.json"
        self.state_dir = racks.folder / "state"
        self._processes: list[subprocess.Popen[str]] = []

    def arguments(self, *more: str) -> list[str]:
        return [
            *("rack", str(self.profile), "--boards", "2", "--state-dir", str(self.state_dir)),
            *("--inventory", str(self.inventory), *more),
        ]

    def start(self, *more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "latfarm_agent.cli", *self.arguments(*more)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        deadline_s = time.monotonic() + WAIT_S
        while not self.inventory.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        return process

    def boards(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.inventory.read_text())["boards"]
        return found

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate(timeout=WAIT_S)


@pytest.fixture
def processes(racks: Racks) -> Iterator[RackProcesses]:
    made = RackProcesses(racks)
    yield made
    made.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_rack_and_leaves_nothing(
    processes: RackProcesses, number: signal.Signals, code: int
) -> None:
    rack = processes.start("--measuring-time", "1s")
    assert keeper.descendants(rack.pid) == set()  # no worker runs
    rack.send_signal(number)
    output, errors = rack.communicate(timeout=WAIT_S)
    assert (rack.returncode, output) == (code, "")
    assert errors == "latfarm-agent: rack serves 2 boards\n"
    assert not processes.inventory.exists()
    assert not list(processes.state_dir.glob("*/bench/models/*"))


def test_kill_9_and_another_start_keep_ids_spools_and_tokens(
    processes: RackProcesses, racks: Racks, model: Path
) -> None:
    rack = processes.start()
    before = processes.boards()
    calls = racks.calls_at(before["rack-0002"]["address"])
    token = calls.acquire()
    calls.result(token, calls.upload(token, model), "kept")
    rack.kill()
    assert rack.wait(WAIT_S) == -signal.SIGKILL
    processes.inventory.unlink()

    processes.start()
    after = processes.boards()
    assert {name: entry["board_id"] for name, entry in after.items()} == {
        name: entry["board_id"] for name, entry in before.items()
    }
    calls = racks.calls_at(after["rack-0002"]["address"])
    assert calls.spooled() == ["kept"]
    assert calls.acquire() > token


def test_the_inventory_is_printed_without_a_file(
    processes: RackProcesses, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from latfarm_agent.service import lifetime

    monkeypatch.setattr(lifetime.Ending, "wait", lambda _: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # this process goes on with other tests
    arguments = processes.arguments()
    del arguments[arguments.index("--inventory") :]
    assert cli.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == 1
    assert list(found["boards"]) == ["rack-0001", "rack-0002"]
    for entry in found["boards"].values():
        assert set(entry) == {"address", "board_id"}
        assert entry["address"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--listen", "0.0.0.0:0"), "can be reached from outside: give --tls-cert"),
        (("--listen", "127.0.0.1:65535"), "the last port is 65535"),
        (("--tls-cert", "a.pem"), "--tls-cert, --tls-key and --tls-ca belong together"),
        (("--name", "a/b"), "letters, digits"),
        (("--faults", "no-such-file"), "--faults no-such-file: cannot be read"),
        (("--boards", "10000"), "--boards must be from 1 to 9999"),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(
    processes: RackProcesses, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], told: str
) -> None:
    assert cli.main(processes.arguments(*more)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("latfarm-agent: error: ")
    assert told in line
    assert not processes.inventory.exists()


def test_a_profile_that_is_not_there_is_a_usage_error(
    processes: RackProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    processes.profile.unlink()
    assert cli.main(processes.arguments()) == 2
    told = capsys.readouterr().err
    assert "PROFILE: there is no file " in told
    assert "built in are: npu, gpu, cpu" in told
