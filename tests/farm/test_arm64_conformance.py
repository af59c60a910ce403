"""The runtimes on an arm64 board: wheels for aarch64, Debian 12's Python, QEMU for the processor.

Two boards take the runtimes in turn; each runtime's part of the conformance suite runs there as it
does here. What the boards show is behaviour; latencies under emulation mean nothing.
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
"""Runtime -> its class in tests/agent/runtimes/test_conformance.py."""

OF_THE_SUITE = {
    *("test_describe", "test_prepare_and_run", "test_profile", "test_wrong_input"),
    *("test_unsupported", "test_unknown_platform", "test_cancel", "test_crash", "test_hang"),
    *("test_out_of_memory", "test_missing_library"),
}
"""What `RuntimeSuite` asks of every runtime."""

OUT_OF_MEMORY = "test_out_of_memory"

MEMORY_BYTES = 2 << 30
"""Of a board. QEMU's user mode sets no bound on a process's data: here the kernel's killer does."""

LONGEST_S = 1500.0
CHECKOUT = "/opt/checkout"
SUITE = "tests/agent/runtimes/test_conformance.py"


@dataclass(frozen=True)
class Report:
    """How the suite went on a board: a test's name -> passed, skipped or failed; what was said."""

    outcomes: Mapping[str, str]
    said: str

    def having(self, outcome: str) -> set[str]:
        """Names of the tests that ended so, without their parameters."""
        return {name.partition("[")[0] for name, how in self.outcomes.items() if how == outcome}


def read_report(path: Path, said: str) -> Report:
    """Read what `pytest --junitxml` wrote."""
    outcomes = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        how = "failed" if kinds & {"failure", "error"} else "passed"
        outcomes[str(case.get("name"))] = "skipped" if "skipped" in kinds else how
    return Report(outcomes, said)


@dataclass(frozen=True)
class Boards:
    """What all boards get; those that have nothing to do, and may be off yet."""

    site: Path
    agent: list[Path]
    bounded: bool
    idle: queue.SimpleQueue[VirtualBoard] = field(default_factory=queue.SimpleQueue)

    def conform(self, runtime: str, report: Path) -> Report:
        """Run one runtime's part of the suite on a board that is idle: there is one."""
        board = self.idle.get(timeout=0)
        try:
            if not board.boots:
                self._prepare(board)
            # Without a bound, a model that wants too much memory would take it from the host.
            left_out = "" if self.bounded else f"-k 'not {OUT_OF_MEMORY}'"
            found = f"/opt/{runtime}.xml"
            pytest_there = (
                f"cd {CHECKOUT} && OMP_NUM_THREADS=1 {wheels.PYTHON} -m pytest -q "
                f"-p no:cacheprovider --junitxml={found} --timeout=600 "
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
) -> Iterator[Mapping[str, Future[Report]]]:
    """The suite under way on the boards of all runtimes that are to be tested, two at a time."""
    folder = tmp_path_factory.mktemp("arm64")
    site = wheels.site(arm64_packages())
    boards = Boards(site, own_wheels, cgroups.can_limit_memory())
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
            ends.callback(board.kill)  # a suite that nobody waits for any more
        ends.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield {
            runtime: pool.submit(boards.conform, runtime, folder / f"{runtime}.xml")
            for runtime in chosen
        }


@pytest.mark.parametrize("runtime", sorted(CLASSES))
def test_conformance(reports: Mapping[str, Future[Report]], runtime: str) -> None:
    report = reports[runtime].result()
    assert report.having("failed") == set(), report.said[-8000:]
    passed, skipped = report.having("passed"), report.having("skipped")
    print(f"{runtime} on arm64: {len(report.outcomes)} tests; skipped: {sorted(skipped)}")
    # A simulated model needs no memory; where a board's is unbounded, none is taken.
    needless = runtime == "simulated" or not cgroups.can_limit_memory()
    assert passed >= OF_THE_SUITE - ({OUT_OF_MEMORY} if needless else set()), report.said[-3000:]
