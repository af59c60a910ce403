"""Runs `latfarm` as users do, in separate processes, with simulated boards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.config import ControllerConfig
from onnx import TensorProto, helper, numpy_helper

from tests.integration.paced_runtime import ALLOWED, BEGUN, write_number

LATFARM = [sys.executable, "-m", "latfarm_controller.cli.main"]
PLATFORM = "toy-sim1.0-fp32-1t"
PROFILE = {
    "platform": PLATFORM,
    "peak_macs_per_ms": 2e6,
    "vector_ops_per_ms": 1e6,
    "bandwidth_bytes_per_ms": 4e6,
    "overhead_ms": 0.01,
    "call_overhead_ms": 0.02,
    "noise": 0.01,
    "fused_pairs": [["Conv", "Relu"], ["Conv", "BatchNormalization"]],
}
GIVE_UP_S = 150.0
"""Longest wait for a condition or for the end of a command, in seconds."""

# This program gives up the Linux capabilities CAP_DAC_OVERRIDE (1) and CAP_DAC_READ_SEARCH (2) with
# prctl(PR_CAPBSET_DROP = 24), then runs a command: it obeys file permissions even as root.
WITHOUT_CAPABILITIES = (
    "import ctypes, os, sys\n"
    "for capability in (1, 2):\n"
    "    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)
# This program runs a command that cannot write files larger than its first argument, in bytes.
WITH_SMALL_FILES = (
    "import os, resource, signal, sys\n"
    "size = int(sys.argv[1])\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until a condition holds; fail after `GIVE_UP_S` seconds."""
    deadline_s = time.monotonic() + GIVE_UP_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON that the command printed; the command must have succeeded."""
        assert self.code == 0, self
        return json.loads(self.out)


@dataclass
class Shell:
    """Runs `latfarm` commands in one home."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment of a command.

        Variables of latfarm and gRPC from outside are removed; those of the test are added.
        """
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("LATFARM_", "GRPC_"))}
        own = {"LATFARM_HOME": str(self.home), "LATFARM_LOCAL_AGENT": "false"}
        own["LATFARM_HEALTH_CHECKS"] = "false"  # tests count what boards measure
        own["LATFARM_RAY_CPUS"] = "1"  # otherwise Ray starts one process per core at once
        return plain | own | {"OMP_NUM_THREADS": "1"} | self.env

    def run(self, *arguments: str | Path, prefix: list[str] | None = None) -> Ended:
        """Run a command and wait until it ends."""
        done = subprocess.run(
            [*(prefix or []), *LATFARM, *(str(argument) for argument in arguments)],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=300,  # Ray and a characterisation are slow on a busy host
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def as_nobody_special(self, *arguments: str | Path) -> Ended:
        """Run a command that obeys file permissions, even if root runs the tests."""
        return self.run(*arguments, prefix=[sys.executable, "-c", WITHOUT_CAPABILITIES])

    def with_small_files(self, size_bytes: int, *arguments: str | Path) -> Ended:
        """Run a command that cannot write files larger than this, as if the disk were full."""
        prefix = [sys.executable, "-c", WITH_SMALL_FILES, str(size_bytes)]
        return self.run(*arguments, prefix=prefix)

    @contextmanager
    def start(self, *arguments: str | Path, alone: bool = True) -> Iterator[Running]:
        """Start a command in the background, in a process group of its own.

        Args:
            arguments: the arguments of the command.
            alone: wait at the end until no process of this home is left.
        """
        process = subprocess.Popen(
            [*LATFARM, *(str(argument) for argument in arguments)],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield Running(process, self)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
            if alone:
                until(lambda: not self.processes(), "the end of all processes")

    def processes(self) -> dict[int, str]:
        """Return the running processes of this home: their command lines by process id."""
        mark = str(self.home)
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("LATFARM_HOME") == mark:
                    found[process.pid] = " ".join(process.cmdline()[:6])
        return found

    def listing(self) -> dict[str, int]:
        """Return all files of the home with their sizes in bytes."""
        files = (path for path in self.home.rglob("*") if path.is_file())
        return {str(path.relative_to(self.home)): path.stat().st_size for path in files}


@dataclass
class Running:
    """A command that runs in the background."""

    process: subprocess.Popen[str]
    shell: Shell

    @property
    def pid(self) -> int:
        """The process id of the command."""
        return self.process.pid

    def signal(self, number: signal.Signals) -> Ended:
        """Send a signal to the process group, as a terminal does, and wait for the end."""
        os.killpg(self.pid, number)
        return self.wait()

    def wait(self) -> Ended:
        """Wait until the command has ended."""
        out, err = self.process.communicate(timeout=GIVE_UP_S)
        return Ended(self.process.returncode, out, err)

    def line(self) -> str:
        """Read the next line on its standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()


@dataclass(frozen=True, slots=True)
class PacedAgentOptions(LocalAgentOptions):
    """How to start an agent whose measurements wait for the test; see `paced_runtime`."""

    def command(self, port_file: Path) -> list[str]:
        """Return the command line that starts `paced_agent.py` instead of `latfarm-agent`."""
        python, safe, module, name, *words = LocalAgentOptions.command(self, port_file)
        assert (safe, module, name) == ("-P", "-m", "latfarm_agent.cli")
        return [python, str(Path(__file__).with_name("paced_agent.py")), *words]


@dataclass
class Board:
    """A simulated board with its agent, and the counters of that agent."""

    name: str
    agent: LocalAgent
    folder: Path

    def allow(self, more: int | None) -> None:
        """Let this many more measurements begin; None removes the limit."""
        allowed, begun = self.folder / ALLOWED, self.folder / BEGUN
        if more is None:
            allowed.unlink()
        else:
            before = int(begun.read_text()) if begun.exists() else 0
            write_number(allowed, before + more)

    def count(self, metric: str) -> float:
        """Return a counter of the agent, summed over all its labels."""
        found = re.search(r"answers (http://\S+)", self.agent.log_tail())
        assert found is not None
        with urllib.request.urlopen(found[1], timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))

    @property
    def measured(self) -> int:
        """Number of measurements that the board has taken."""
        return int(self.count("latfarm_agent_measurements_total"))


class Farm:
    """Makes homes and boards; the boards stop when the tests end."""

    platform = PLATFORM

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def board(self, name: str, **changes: object) -> Board:
        """Start a simulated board."""
        folder = self.folder / name
        folder.mkdir()
        profile = folder / "profile.json"
        profile.write_text(json.dumps(PROFILE | changes))
        options = PacedAgentOptions(
            folder / "state", folder / "log", name, "toy", profile, metrics_port=0
        )
        return Board(name, self._stack.enter_context(LocalAgent(options)), folder)

    def shell(self, name: str, *boards: Board, **env: str) -> Shell:
        """Make a new home that knows these boards."""
        home = self.folder / name
        home.mkdir()
        for board in boards:
            Registry(home / "boards.json").add(board.name, board.agent.address)
        self._stack.callback(remove_short_folder, home)
        return Shell(home, env)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Return a farm that makes homes and boards for the tests of one module."""
    with ExitStack() as stack:
        yield Farm(tmp_path_factory.mktemp("farm"), stack)


def remove_short_folder(home: Path) -> None:
    """Remove what a killed command of this home left in the folder with short paths."""
    ray_dir = ControllerConfig(home=home).ray_dir
    if not ray_dir.is_relative_to(home):
        shutil.rmtree(ray_dir.parent, ignore_errors=True)


@dataclass(frozen=True)
class Characterized:
    """A home where two boards of one platform were characterised."""

    shell: Shell
    boards: tuple[Board, Board]
    ended: Ended
    measured: int
    command: tuple[str, ...]


@pytest.fixture(scope="session")
def characterized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Characterized]:
    """Characterise a platform with 110 measurements, once for all tests that read it."""
    command = ("characterize", "-p", PLATFORM, "--budget", "110", "--networks", "9", "--json")
    with ExitStack() as stack:
        farm = Farm(tmp_path_factory.mktemp("characterized"), stack)
        boards = (farm.board("toy1"), farm.board("toy2"))
        shell = farm.shell("home")
        for board in boards:
            added = shell.run("boards", "add", board.name, board.agent.address)
            assert added.code == 0, added
        ended = shell.run(*command)
        assert ended.code == 0, ended
        measured = sum(board.measured for board in boards)
        yield Characterized(shell, boards, ended, measured, command)


def write_model(path: Path, channels: int) -> None:
    """Write a small ONNX model with real weights; each number of channels is another model."""
    info = helper.make_tensor_value_info
    weight = np.ones((channels, 3, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        f"net{channels}",
        [info("x", TensorProto.FLOAT, (1, 3, 16, 16))],
        [info("y", TensorProto.FLOAT, None)],
        initializer=[numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)


@pytest.fixture
def models(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a folder with a given number of models."""

    def make(count: int, first: int = 1) -> Path:
        folder = tmp_path / f"models{first}"
        folder.mkdir()
        for number in range(first, first + count):
            write_model(folder / f"net{number:03d}.onnx", number)
        return folder

    return make


QUICK: Mapping[str, Any] = {
    "settings": {"sessions": 1, "warmup_ms": 0.0, "max_ms": 10.0, "max_runs": 5}
}


@pytest.fixture(scope="session")
def quick() -> str:
    """Return the configuration of a networks campaign with short measurements, as JSON."""
    return json.dumps(QUICK)


@pytest.hookimpl(tryfirst=True)  # runs before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of this folder in one worker process, and give each a time limit.

    These tests start Ray or share the characterised home. The first test that needs this home waits
    until it is made.
    """
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("command"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))
