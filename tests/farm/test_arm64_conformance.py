"""The conformance suite runs for each runtime on emulated arm64 boards, with wheels for aarch64.

The boards have Debian 12's Python and the processor of QEMU. Two boards share the runtimes. The
tests are about behaviour; latencies under emulation mean nothing.
"""

from __future__ import annotations

import os
import queue
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.farm.boards import cgroups, wheels
from tests.farm.boards.host import HostError
from tests.farm.boards.patience import scaled_s
from tests.farm.boards.rack import Rack
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.prepare import arm64_packages

pytestmark = [pytest.mark.farm, pytest.mark.timeout(1700)]

CLASSES = {
    "mnn": "TestMnn",
    "ncnn": "TestNcnn",
    "onnxruntime": "TestOnnxRuntime",
    "openvino": "TestOpenVino",
    "simulated": "TestSimulated",
    "tflite": "TestTflite",
}
"""The class of each runtime in tests/agent/runtimes/test_conformance.py."""

OF_THE_SUITE = {
    *("test_describe", "test_prepare_and_run", "test_profile", "test_wrong_input"),
    *("test_unsupported", "test_unknown_platform", "test_cancel", "test_crash", "test_hang"),
    *("test_out_of_memory", "test_missing_library"),
}
"""Tests of `RuntimeSuite` that every runtime must pass."""

OUT_OF_MEMORY = "test_out_of_memory"

MEMORY_BYTES = 2 << 30
"""Memory of a board. QEMU does not limit the data of a process, so the kernel must."""

LONGEST_S = 1500.0
"""Limit of the time that one runtime's part of the suite may take, in seconds."""

CHECKOUT = "/opt/checkout"
SUITE = "tests/agent/runtimes/test_conformance.py"


@dataclass(frozen=True)
class SuiteReport:
    """The outcome of each test on a board (passed, skipped or failed), and pytest's output."""

    outcomes: Mapping[str, str]
    said: str

    def having(self, outcome: str) -> set[str]:
        """Names of the tests with an outcome, without their parameters."""
        return {name.partition("[")[0] for name, how in self.outcomes.items() if how == outcome}


def read_report(path: Path, said: str) -> SuiteReport:
    """Read the file that `pytest --junitxml` has written."""
    outcomes = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        how = "failed" if kinds & {"failure", "error"} else "passed"
        outcomes[str(case.get("name"))] = "skipped" if "skipped" in kinds else how
    return SuiteReport(outcomes, said)


@dataclass(frozen=True)
class SuiteBoards:
    """The boards of the suite, and what is installed on them.

    Attributes:
        site: folder with the packages of other projects.
        agent: wheels of the agent.
        bounded: whether the memory of boards can be limited on this host.
        idle: boards that run no tests now; a board that was not used yet is off.
    """

    site: Path
    agent: list[Path]
    bounded: bool
    idle: queue.SimpleQueue[VirtualBoard] = field(default_factory=queue.SimpleQueue)

    def conform(self, runtime: str, report: Path) -> SuiteReport:
        """Run one runtime's part of the suite on an idle board; at least one must be idle."""
        board = self.idle.get(timeout=0)
        try:
            if not board.boots:
                self._prepare(board)
            # Without a limit, this test would use up the host's memory.
            left_out = "" if self.bounded else f"-k 'not {OUT_OF_MEMORY}'"
            found = f"/opt/{runtime}.xml"
            pytest_there = (
                f"cd {CHECKOUT} && OMP_NUM_THREADS=1 {wheels.PYTHON} -m pytest -q "
                f"-p no:cacheprovider --junitxml={found} --timeout={scaled_s(600.0):.0f} "
                f"{left_out} {SUITE}::{CLASSES[runtime]} 2>&1"
            )
            done = board.run(pytest_there, check=False, timeout_s=LONGEST_S)
            try:
                board.pull(found, report)
            except HostError as error:
                raise HostError(f"the suite did not run: {done.stdout[-3000:]}") from error
            return read_report(report, done.stdout)
        finally:
            self.idle.put(board)

    def _prepare(self, board: VirtualBoard) -> None:
        board.start()
        wheels.install(board, self.site, self.agent)
        board.push(wheels.ROOT / "pyproject.toml", f"{CHECKOUT}/pyproject.toml")
        for name in ("tests/agent/conftest.py", SUITE):
            board.push(wheels.ROOT / name, f"{CHECKOUT}/{name}")


@pytest.fixture(scope="module")
def reports(
    arm64_rack: Rack,
    own_wheels: list[Path],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Future[SuiteReport]]]:
    """The report of each selected runtime; two runtimes are tested at the same time."""
    folder = tmp_path_factory.mktemp("arm64")
    site = wheels.site(arm64_packages())
    boards = SuiteBoards(site, own_wheels, cgroups.can_limit_memory())
    memory_bytes = MEMORY_BYTES if boards.bounded else None
    chosen = [
        str(item.callspec.params["runtime"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == "test_conformance"
        and item.path == Path(__file__)
    ]
    with ExitStack() as ends:
        made = [
            VirtualBoard(f"arm-{number}", "arm64", rack=arm64_rack, memory_bytes=memory_bytes)
            for number in range(min(2, len(chosen), os.cpu_count() or 1))
        ]
        pool = ThreadPoolExecutor(len(made))
        for board in made:
            ends.callback(board.close)
            boards.idle.put(board)
        ends.callback(pool.shutdown)
        for board in made:
            ends.callback(board.kill)  # ends a suite that still runs
        ends.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield {
            runtime: pool.submit(boards.conform, runtime, folder / f"{runtime}.xml")
            for runtime in chosen
        }


@pytest.mark.parametrize("runtime", sorted(CLASSES))
def test_conformance(reports: Mapping[str, Future[SuiteReport]], runtime: str) -> None:
    report = reports[runtime].result()
    assert report.having("failed") == set(), report.said[-8000:]
    passed, skipped = report.having("passed"), report.having("skipped")
    print(f"{runtime} on arm64: {len(report.outcomes)} tests; skipped: {sorted(skipped)}")
    # A simulated model needs no memory; without a limit of memory the test is left out.
    needless = runtime == "simulated" or not cgroups.can_limit_memory()
    assert passed >= OF_THE_SUITE - ({OUT_OF_MEMORY} if needless else set()), report.said[-3000:]
