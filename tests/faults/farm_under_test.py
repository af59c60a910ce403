"""The farm of one run: its boards behind relays, its controller, and its campaign."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.app.summaries import CampaignSummary
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import ControllerError
from latfarm_predictors.graph.builder import GraphBuilder

from tests.attacks.conftest import kill, lives, until
from tests.faults.boards_under_test import (
    PLATFORM,
    BoardsProcess,
    board_name,
    board_processes,
    hooks_of,
)
from tests.faults.journal import JournalReader
from tests.faults.programs import controller_program, jumping_clock
from tests.faults.programs.controller_program import ControllerHooks
from tests.faults.programs.warm_start import CONTROLLER, WarmStart
from tests.faults.relay import LinkRelay, RelayThread
from tests.faults.scenario import Scenario
from tests.integration.conftest import LATFARM, Shell

CAMPAIGN = "faults"
"""The name of the campaign."""

SETTINGS = {
    "sessions": 1,
    "warmup_runs": 1,
    "warmup_ms": 0.0,
    "min_runs": 3,
    "max_runs": 3,
    "max_ms": 1.0,
    "compile_timeout_ms": 3000.0,
}
"""How each network is measured. A board that hangs gives up after the time for compiling."""

RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
)
"""How soon a client looks for a controller that was killed, in milliseconds."""

ENDED_STATES = ("done", "failed", "cancelled", "interrupted", "paused")
"""States of a campaign that goes on no more by itself."""


def campaign_config(requests: int) -> dict[str, Any]:
    """The configuration of a campaign of so many networks; a smaller one has the first of them."""
    graphs = []
    for number in range(requests):
        builder = GraphBuilder(f"net{number}")
        x = builder.input((1, 3, 8, 8 + number // 64))
        x = builder.relu(builder.conv(x, number % 64 + 1, 3))
        graphs.append(builder.build([x]).to_json())
    return {"graphs": graphs, "settings": SETTINGS}


class FarmUnderTest:
    """All processes of a run. `close` ends what is left of them.

    Args:
        scenario: what the run does.
        folder: of the run, with a short path; everything lies in it.
        warm: starts boards, and controllers without Ray.
        relays: carry the links to the boards.
        give_up_s: when nothing is waited for any more, by the monotonic clock in seconds.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        warm: WarmStart,
        relays: RelayThread,
        give_up_s: float,
    ) -> None:
        self.scenario = scenario
        self._warm = warm
        self.relays = relays
        self._give_up_s = give_up_s
        self.config = ControllerConfig(home=folder / "home", local_agent=False)
        self.config.make_dirs()
        self.registry = Registry(self.config.boards_file)
        self.journal = JournalReader(folder / "journal")
        self.clocks = {name: folder / f"{name}.clock" for name in ("controller", "boards")}
        for clock in self.clocks.values():
            jumping_clock.make(clock)
        self._log = folder / "controller.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._controller_pid = 0
        self.started: list[int] = []  # ids of all processes of boards and controllers
        names = [board_name(scenario, place) for place in range(scenario.count)]
        self.links: dict[str, LinkRelay] = {name: relays.relay() for name in names}
        hooks = hooks_of(scenario, folder / "journal", self.clocks["boards"])
        mark = {"LATFARM_HOME": str(self.config.home)}
        self.processes = board_processes(scenario, folder, warm, self.links, hooks, mark)
        self._shell = Shell(self.config.home, {"LATFARM_LEASE_MS": str(scenario.lease_ms)})
        self._channel = grpc.insecure_channel(
            f"unix:{self.config.socket_file}", options=(*MESSAGE_OPTIONS, *RECONNECT)
        )
        self._client = ControllerClient(self._channel)

    # Starting and ending

    def start(self) -> None:
        """Start boards and controller, and the campaign."""
        for process in self.processes:
            process.start()
        for name, link in self.links.items():
            self.registry.add(name, link.address)
        self.start_controller()
        self.wait_until(lambda: self._answer() is not None, "a controller that answers")
        self._client.start("networks", PLATFORM, campaign_config(self.scenario.requests), CAMPAIGN)

    def start_controller(self) -> None:
        """Start the controller; does not wait until it answers."""
        clock = self.clocks["controller"]
        jumps = any(fault.where == "controller" for fault in self.scenario.faults)
        hooks = ControllerHooks(
            ray=self.scenario.ray,
            own_boards=1 if self.scenario.far_shards else None,
            clock=str(clock) if jumps else "",
        )
        environment = self._shell.environment()
        if not self.scenario.ray:
            own = {k: v for k, v in environment.items() if k.startswith("LATFARM_")}
            self._controller_pid = self._warm.start(
                CONTROLLER, ["-v", "serve"], hooks.to_json(), self._log, own
            )
        else:
            module = controller_program.__name__
            program = [sys.executable, "-m", module, hooks.to_json()]
            command = [*LATFARM, "-v", "serve"] if hooks.empty else [*program, "-v", "serve"]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    cwd=Path(__file__).parents[2],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._controller_pid = self._process.pid
        self.started.append(self._controller_pid)

    def stop_controller(self) -> bool:
        """Stop the controller in order; False if it had to be killed."""
        pid = self._controller_pid
        if lives(pid):
            os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            until(lambda: not lives(pid), "the end of the controller")
        ended = not lives(pid)
        if not ended:
            kill(pid)
        self._reap()
        return ended

    def close(self) -> None:
        """End all that is left: first in order, then whatever remains."""
        self._channel.close()
        for process in self.processes:
            self.started += process.pids
            with contextlib.suppress(AssertionError):
                process.stop()
        for pid in self.left_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reap()
        self.journal.close()

    def kill_controller(self) -> None:
        """Kill the controller with SIGKILL."""
        kill(self._controller_pid)
        self._reap()

    def _reap(self) -> None:
        if self._process is not None and not lives(self._process.pid):
            self._process.wait()
            self._process = None

    # Looking

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds.

        Raises:
            TimeoutError: the run took too long.
        """
        while not condition():
            if self.over:
                raise TimeoutError(f"waited in vain: {what}")
            time.sleep(0.05)

    @property
    def over(self) -> bool:
        """Whether nothing is waited for any more."""
        return time.monotonic() > self._give_up_s

    def campaign(self) -> CampaignSummary | None:
        """The campaign now; None while the controller does not answer."""
        with contextlib.suppress(ControllerError):
            return self._client.campaign(CAMPAIGN)
        return None

    @property
    def ended(self) -> bool:
        """Whether the campaign goes on no more."""
        record = self.campaign()
        return record is not None and record.state in ENDED_STATES

    def _answer(self) -> object:
        with contextlib.suppress(ControllerError):
            return self._client.campaigns()
        if not lives(self._controller_pid):
            raise TimeoutError(f"the controller has ended: {self.log_tail()}")
        return None

    def process_of(self, place: int) -> BoardsProcess:
        """The process of the board at a place."""
        return self.processes[0 if len(self.processes) == 1 else place]

    def link_of(self, place: int) -> LinkRelay:
        """The link to the board at a place."""
        return self.links[board_name(self.scenario, place)]

    def ray_processes(self, chosen: Callable[[str], bool]) -> list[int]:
        """The processes of Ray whose command line is chosen."""
        return [pid for pid, command in self._shell.processes().items() if chosen(command)]

    def left_processes(self) -> list[int]:
        """Processes of this run that still live."""
        own = {pid for pid in self.started if lives(pid)}
        return sorted(own | {pid for pid in self._shell.processes() if lives(pid)})

    def log_tail(self) -> str:
        """The end of what the controller printed."""
        try:
            return self._log.read_text("utf-8", errors="replace")[-3000:]
        except FileNotFoundError:
            return ""


def command_lines(pids: list[int]) -> list[str]:
    """What these processes are, for people."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found.append(f"{pid} {' '.join(psutil.Process(pid).cmdline())[:120]}")
    return found
