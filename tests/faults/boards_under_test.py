"""The boards of a run as processes: one rack, or one agent for each board."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc
import psutil
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

from tests.attacks.conftest import lives, until
from tests.faults import scenario as kinds
from tests.faults.programs.board_program import BoardHooks
from tests.faults.programs.warm_start import BOARDS, WarmStart
from tests.faults.relay import LinkRelay
from tests.faults.scenario import Scenario
from tests.ports import free_ports

PLATFORM = "toy"
"""The one platform of all boards."""

PROFILE = {
    "platform": PLATFORM,
    "peak_macs_per_ms": 2e6,
    "bandwidth_bytes_per_ms": 4e6,
    "overhead_ms": 0.01,
    "noise": 0.05,
    "session_noise": 0.02,
}
"""All boards. Their noise follows from the request, so that each measurement can be repeated."""

HANG_SHARE, LATE_SHARE = 0.15, 0.3
"""Shares of the measurements during which a board hangs, or answers late."""

LATE_MS = 1500.0
"""How much later a late board answers, in milliseconds."""

REBOOT_EVERY, REBOOT_MS = 6, 700.0
"""A board reboots during each measurement of such a number, and is away for so long."""

THROTTLE = {"every": 4, "length": 2, "factor": 1.7, "reported": False}
"""A board that throttles, and does not say so."""

DRIFT = 40.0
"""In 1,000 measurements, a drifting board gets slower by this share of its latency."""

LIES = (2, 4)
"""The first and the last result of a lying board that have a wrong hash."""

CALL_S = 60.0
"""Longest time for a call to a board, in seconds; it may be rebooting."""

WAITING = {"timeout": CALL_S, "wait_for_ready": True}
"""How a board is called."""

START_TRIES = 5
"""How often a process is started before that counts as a failure."""


@dataclass(frozen=True)
class LeftAtBoard:
    """What a board still had at the end of a run."""

    board: str
    state: str
    spooled: tuple[str, ...]


class BoardsProcess:
    """A process that is one or several boards; `start` it, kill it, and start it again.

    Args:
        warm: starts it.
        links: the links to its boards by their names.
        arguments: of `latfarm-agent`, without those of the parent.
        told: the file that it writes once it serves.
        addresses: reads the addresses of its boards from that file.
        hooks: what is changed in it.
        log: its output.
        environment: variables that it has besides.
    """

    def __init__(
        self,
        warm: WarmStart,
        links: dict[str, LinkRelay],
        arguments: Sequence[str],
        told: Path,
        addresses: Callable[[Path], dict[str, str]],
        hooks: BoardHooks,
        log: Path,
        environment: dict[str, str],
    ) -> None:
        self._warm = warm
        self.links = links
        self._arguments = [*arguments, "--exit-with-parent", str(warm.pid)]
        self._told = told
        self._addresses = addresses
        self._hooks = hooks
        self._log = log
        self._environment = environment
        self.pid = 0
        self.pids: list[int] = []

    def start(self) -> None:
        """Start it, wait until all its boards serve, and lead their links to them.

        A process whose ports somebody else has taken meanwhile is started again on others.
        """
        for _ in range(START_TRIES):
            self._told.unlink(missing_ok=True)
            # A board that reboots needs a port that no connection of another process takes.
            listen = ["--listen", f"127.0.0.1:{free_ports(len(self.links))}"]
            self.pid = self._warm.start(
                BOARDS,
                [*self._arguments, *listen],
                self._hooks.to_json(),
                self._log,
                self._environment,
            )
            self.pids.append(self.pid)
            until(lambda: self._told.exists() or not lives(self.pid), "boards that serve")
            if lives(self.pid):
                break
        assert lives(self.pid), self._log.read_text()[-2000:]
        for name, address in self._addresses(self._told).items():
            self.links[name].target = address

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it and its workers have ended."""
        family = [self.pid, *(each.pid for each in self._children())]
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not any(map(lives, family)), "the end of killed boards")

    def kill_worker(self) -> bool:
        """Kill the worker in which a model runs; False if there is none now."""
        workers = [grandchild for child in self._children(1) for grandchild in child.children()]
        for worker in workers:
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                os.kill(worker.pid, signal.SIGKILL)
                return True
        return False

    def fill_disk(self, *, full: bool) -> None:
        """Whether the process can write to no file, as if its disk were full."""
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
            soft = 0 if full else hard
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def stop(self) -> None:
        """Stop it in order."""
        if lives(self.pid):
            os.kill(self.pid, signal.SIGTERM)
            until(lambda: not lives(self.pid), "the end of boards")

    def left(self) -> list[LeftAtBoard]:
        """What its boards still have."""
        return [left_at(name, address) for name, address in self._addresses(self._told).items()]

    def _children(self, depth: int = 2) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.pid).children(recursive=depth > 1))
        return []


def left_at(name: str, address: str) -> LeftAtBoard:
    """Ask a board for its state and its spool."""
    with grpc.insecure_channel(address) as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        state = stub.Describe(pb.DescribeRequest(), **WAITING).state
        results = stub.ListResults(pb.ListResultsRequest(), **WAITING).results
        return LeftAtBoard(name, str(state), tuple(result.request_id for result in results))


def board_name(scenario: Scenario, place: int) -> str:
    """The name of the board at a place, from 0."""
    return f"rack-{place + 1:04d}" if scenario.boards == kinds.RACK else f"agent-{place + 1}"


def hooks_of(scenario: Scenario, journal: Path, clock: Path) -> BoardHooks:
    """What the faults of a run change in the processes of its boards."""
    hooks = BoardHooks(str(journal))
    for fault in scenario.faults:
        name = board_name(scenario, fault.board)
        if fault.kind == kinds.ANSWERS_TWICE:
            hooks = replace(hooks, twice=(*hooks.twice, name))
        elif fault.kind == kinds.LIES:
            hooks = replace(hooks, lies={**hooks.lies, name: LIES})
        elif fault.kind == kinds.CLOCK_JUMPS and fault.where == "boards":
            hooks = replace(hooks, clock=str(clock))
    return hooks


def rack_faults(scenario: Scenario) -> dict[str, dict[str, object]]:
    """The faults of a rack, as `latfarm-agent rack --faults` reads them."""
    known: dict[str, dict[str, object]] = {
        kinds.HANGS: {"hang_rate": HANG_SHARE},
        kinds.ANSWERS_LATE: {"late_rate": LATE_SHARE, "late_ms": LATE_MS},
        kinds.REBOOTS: {"restart_every": REBOOT_EVERY, "restart_ms": REBOOT_MS},
        kinds.THROTTLES: {"throttle": THROTTLE},
        kinds.DRIFTS: {"drift": DRIFT},
    }
    found: dict[str, dict[str, object]] = {}
    for fault in scenario.faults:
        if fault.kind in known:
            found.setdefault(board_name(scenario, fault.board), {}).update(known[fault.kind])
    return found


def board_processes(
    scenario: Scenario,
    folder: Path,
    warm: WarmStart,
    links: dict[str, LinkRelay],
    hooks: BoardHooks,
    environment: dict[str, str],
) -> list[BoardsProcess]:
    """The processes of the boards of a run, which are not started yet."""
    profile = folder / "profile.json"
    if scenario.boards == kinds.RACK:
        profile.write_text(json.dumps(PROFILE), "utf-8")
        return [_rack(scenario, folder, warm, links, hooks, environment, profile)]
    profile.write_text(json.dumps({**PROFILE, "measure_ms": scenario.measure_ms}), "utf-8")
    made = []
    for name, link in links.items():
        told = folder / f"{name}.address"
        arguments = ["serve", "--name", name, "--hardware", "rack", "--simulate", str(profile)]
        arguments += ["--state-dir", str(folder / name)]
        arguments += ["--port-file", str(told)]
        made.append(
            BoardsProcess(
                warm,
                {name: link},
                arguments,
                told,
                partial(_address, name),
                hooks,
                folder / f"{name}.log",
                environment,
            )
        )
    return made


def _rack(
    scenario: Scenario,
    folder: Path,
    warm: WarmStart,
    links: dict[str, LinkRelay],
    hooks: BoardHooks,
    environment: dict[str, str],
    profile: Path,
) -> BoardsProcess:
    told, faults = folder / "inventory.json", folder / "faults.json"
    faults.write_text(json.dumps(rack_faults(scenario)), "utf-8")
    arguments = ["rack", str(profile), "--boards", str(scenario.count), "--faults", str(faults)]
    arguments += ["--measuring-time", f"{scenario.measure_ms}ms", "--inventory", str(told)]
    arguments += ["--state-dir", str(folder / "rack")]
    return BoardsProcess(
        warm, links, arguments, told, _inventory, hooks, folder / "rack.log", environment
    )


def _address(name: str, path: Path) -> dict[str, str]:
    """The address of the one board of an agent."""
    return {name: path.read_text("utf-8").strip()}


def _inventory(path: Path) -> dict[str, str]:
    """The addresses of the boards of a rack."""
    boards = json.loads(path.read_text("utf-8"))["boards"]
    return {name: str(entry["address"]) for name, entry in boards.items()}
