"""Starts and stops the boards of a rack, and tells their addresses as an inventory.

Each board is a whole `AgentServer`: its own port, id, lease, queue, models and spool, in a folder
of its own below the folder of the rack. Only what measures is not a process, see `board.py`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Mapping, Sequence

from latfarm_agent.board.conditions import Sensors
from latfarm_agent.errors import AgentUsageError, LatfarmAgentError
from latfarm_agent.files.folders import write_whole
from latfarm_agent.rack.board import RackBoardSetup, RackSensors, rack_bench
from latfarm_agent.rack.faults import BoardFaults
from latfarm_agent.rack.shared_clock import SharedClock
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.service.server import AgentServer, ServiceConfig, is_loopback, split_address

INVENTORY_VERSION = 1
"""Version of the inventory's format; it is that of the controller's `boards.json`."""

MOST_BOARDS = 9999
"""Most boards of a rack: their names have four digits."""

LAST_PORT = 65535
"""Highest number of a TCP port."""

FILES_A_BOARD = 10
"""Open files that are reserved for each board: its lock, its port, connections, and models."""

FILES_AT_LEAST = 256
"""Open files that are reserved for the process itself."""

STOP_AT_ONCE = 32
"""How many boards are stopped at the same time."""

RESTART_GRACE_S = 1.0
"""How long a board that restarts because of a fault waits for what it measures, in seconds."""

SWITCH_S = 0.05
"""How long a thread of a rack's process may keep Python's interpreter before it is asked to leave
it to another one, in seconds.

Each thread that waits for the interpreter wakes up once in this time, to ask for it. With Python's
usual 5 ms, some hundred boards whose results come together spend more time on that than on their
results. Threads of a rack leave the interpreter by themselves after a millisecond or so.
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,57}")
"""What begins the names of boards; with its number, a name is one that a controller accepts."""

_ANY_HOSTS = ("0.0.0.0", "::")
"""Addresses that stand for all addresses of a machine, and that nobody can connect to."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RackConfig:
    """What a rack is made of.

    Attributes:
        profile: the file with the profile of all boards.
        boards: number of boards.
        service: how each board serves. Its `state_dir` is the folder of the rack; with port 0 in
            `listen` each board takes a free port, otherwise they take that port and the next ones.
        name: begins the names of the boards.
        hardware: the type of all boards; empty: `name`.
        measuring_ms: real time that one measurement takes, in milliseconds; None: as the profile
            says.
        faults: what goes wrong on single boards, by their names.
    """

    profile: Path
    boards: int
    service: ServiceConfig
    name: str = "rack"
    hardware: str = ""
    measuring_ms: float | None = None
    faults: Mapping[str, BoardFaults] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of all boards."""
        return board_names(self.name, self.boards)


def board_names(prefix: str, boards: int) -> list[str]:
    """The names of so many boards: rack-0001, rack-0002, ..."""
    return [f"{prefix}-{number:04d}" for number in range(1, boards + 1)]


def chosen_ports(names: Sequence[str], first: int, kept: Any) -> dict[str, int]:
    """The port that each board tries to take; 0: any free port.

    Args:
        names: of the boards.
        first: port of the first board; 0: each board takes the port that it had before.
        kept: the ports from before, by name, as they were read from a file.
    """
    if first:
        return {name: first + index for index, name in enumerate(names)}
    known = kept if isinstance(kept, dict) else {}
    ports = dict.fromkeys(names, 0)
    for name in names:
        port = known.get(name)
        if isinstance(port, int) and not isinstance(port, bool) and 0 < port <= LAST_PORT:
            ports[name] = port
    return ports


class _RackBoard:
    """One board, which may restart. Thread-safe.

    Args:
        setup: what it is made of.
        service: how it serves, with a folder of its own.
        sensors: those of the rack.
        clock: wakes the board.
    """

    def __init__(
        self, setup: RackBoardSetup, service: ServiceConfig, sensors: Sensors, clock: SharedClock
    ) -> None:
        self._setup = replace(setup, restart=self._restart)
        self._service = service
        self._sensors = sensors
        self._clock = clock
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server: AgentServer | None = None
        self._restarts: threading.Thread | None = None
        self.board_id = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self._setup.name

    @property
    def address(self) -> str:
        """`host:port` of its agent, which stays the same once it has started."""
        return self._service.listen

    def start(self) -> None:
        """Start its agent; a restart takes the same port again.

        Raises:
            LatfarmAgentError: see `AgentServer`.
        """
        with self._lock:
            self._start()

    def stop(self, grace_s: float) -> None:
        """Stop its agent. Results stay in the spool."""
        self._stopping.set()
        restarts = self._restarts
        if restarts is not None:
            restarts.join()
        with self._lock:
            self._stop(grace_s)

    def _start(self) -> None:
        server = AgentServer(
            self._service,
            lambda: rack_bench(
                self._setup, self._service.state_dir / "bench", self._sensors, self._clock
            ),
        )
        try:
            server.start()
        except BaseException:
            server.stop(0.0)
            raise
        self._server = server
        self.board_id = server.conductor.describe().board.board_id
        self._service = replace(self._service, listen=server.address)

    def _stop(self, grace_s: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop(grace_s)

    def _restart(self) -> None:
        """Restart in a thread of its own, as the board's own thread has to end meanwhile."""
        if self._stopping.is_set() or (self._restarts is not None and self._restarts.is_alive()):
            return
        self._restarts = threading.Thread(target=self._be_away, name="restart", daemon=True)
        self._restarts.start()

    def _be_away(self) -> None:
        with self._lock:
            logger.info("board %s restarts", self.name)
            self._stop(RESTART_GRACE_S)
        if self._stopping.wait(self._setup.faults.restart_ms / 1e3):
            return
        with self._lock:
            try:
                self._start()
            except LatfarmAgentError:
                logger.exception("board %s does not come back", self.name)


class Rack:
    """All boards of a rack. `start` once, `stop` once.

    Raises:
        AgentUsageError: on construction, when the profile, the name, the number of boards or the
            address cannot be used.
    """

    def __init__(self, config: RackConfig) -> None:
        if not 1 <= config.boards <= MOST_BOARDS:
            raise AgentUsageError(f"--boards must be from 1 to {MOST_BOARDS}")
        if not _NAME.fullmatch(config.name):
            raise AgentUsageError(
                f"--name {config.name!r}: letters, digits, '.', '_' and '-' only, at most 58"
            )
        try:
            path, _ = BoardProfile.asked_for(config.profile)
        except ValueError as error:
            raise AgentUsageError(f"PROFILE: {error}") from error
        self._config = replace(config, profile=path)
        self._host, self._first_port = split_address(config.service.listen)
        last = self._first_port + config.boards - 1
        if self._first_port and last > LAST_PORT:
            raise AgentUsageError(
                f"--listen {config.service.listen}: {config.boards} boards need the ports up to "
                f"{last}, and the last port is {LAST_PORT}"
            )
        self._ports_file = config.service.state_dir / "ports.json"
        self._clock: SharedClock | None = None
        self._boards: list[_RackBoard] = []

    def start(self) -> None:
        """Start all boards; if one cannot be started, none is left running.

        Raises:
            LatfarmAgentError: a board cannot be started; the message names it.
        """
        _reserve_files(self._config.boards)
        self._clock = SharedClock()
        sensors = RackSensors()
        ports = self._ports()
        try:
            for name in self._config.names:
                self._boards.append(self._started(name, ports[name], sensors, self._clock))
            self._keep_ports()
        except BaseException:
            self.stop(0.0)
            raise

    def stop(self, grace_s: float = 10.0) -> None:
        """Stop all boards. Their results and ids stay in their folders."""
        boards, self._boards = self._boards, []
        if boards:
            with ThreadPoolExecutor(min(STOP_AT_ONCE, len(boards))) as pool:
                list(pool.map(lambda board: board.stop(grace_s), boards))
        clock, self._clock = self._clock, None
        if clock is not None:
            clock.close()

    def inventory(self) -> dict[str, Any]:
        """The boards by name, as the file `boards.json` of a controller has them."""
        open_to_all = self._config.service.tls is None and not is_loopback(self._host)
        boards: dict[str, Any] = {}
        for board in self._boards:
            boards[board.name] = {"address": self._shown(board.address), "board_id": board.board_id}
            if open_to_all:
                boards[board.name]["insecure"] = True
        return {"version": INVENTORY_VERSION, "boards": boards}

    def inventory_text(self) -> str:
        """The inventory as JSON."""
        return json.dumps(self.inventory(), indent=1) + "\n"

    def _board(self, name: str, port: int, sensors: Sensors, clock: SharedClock) -> _RackBoard:
        config = self._config
        host = f"[{self._host}]" if ":" in self._host else self._host
        service = replace(
            config.service,
            state_dir=config.service.state_dir / name,
            listen=f"{host}:{port}",
        )
        setup = RackBoardSetup(
            name=name,
            hardware=config.hardware or config.name,
            profile_path=config.profile,
            measuring_ms=config.measuring_ms,
            faults=config.faults.get(name, BoardFaults()),
        )
        return _RackBoard(setup, service, sensors, clock)

    def _started(self, name: str, port: int, sensors: Sensors, clock: SharedClock) -> _RackBoard:
        """A board that serves.

        Raises:
            LatfarmAgentError: it cannot be started; the message names it.
        """
        try:
            board = self._board(name, port, sensors, clock)
            try:
                board.start()
            except AgentUsageError:
                if self._first_port or not port:
                    raise
                # Somebody else has taken the port that the board had before.
                board = self._board(name, 0, sensors, clock)
                board.start()
        except LatfarmAgentError as error:
            raise type(error)(f"board {name}: {error}") from error
        except RuntimeError as error:
            raise LatfarmAgentError(
                f"board {name}: {error}; if this process may start no more threads: start fewer "
                "boards, or raise the limit of processes (ulimit -u)"
            ) from error
        return board

    def _ports(self) -> dict[str, int]:
        kept: Any = {}
        with contextlib.suppress(OSError, ValueError):
            kept = json.loads(self._ports_file.read_text(encoding="utf-8"))
        return chosen_ports(self._config.names, self._first_port, kept)

    def _keep_ports(self) -> None:
        ports = {board.name: split_address(board.address)[1] for board in self._boards}
        write_whole(self._ports_file, json.dumps(ports) + "\n")

    def _shown(self, address: str) -> str:
        """The address of a board as others can reach it."""
        if self._host not in _ANY_HOSTS:
            return address
        return f"{socket.gethostname()}:{split_address(address)[1]}"


def _reserve_files(boards: int) -> None:
    """Let this process open as many files as so many boards need.

    Raises:
        AgentUsageError: the limit is too low and may not be raised.
    """
    needed = FILES_AT_LEAST + FILES_A_BOARD * boards
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise AgentUsageError(
            f"--boards {boards}: so many boards need {needed} open files, and this process may "
            f"have {hard}: raise the limit (ulimit -n), or start fewer boards"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
