"""Fixtures that make racks, boards and controllers; a host that cannot run boards skips the tests.

With LATFARM_FARM=required in the environment, such tests fail instead: it is meant for machines
that are known to run boards. Figures that tests record with `record_property` are printed at the
end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.farm.boards import emulation, host, rootfs, wheels
from tests.farm.boards.host import HostError
from tests.farm.boards.patience import scaled_s
from tests.farm.boards.rack import Rack
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.lab import enrolment
from tests.farm.lab.enrolment import LabController

REQUIRED_VARIABLE = "LATFARM_FARM"
LONGEST_FIRST = (
    "test_enrolment.py",
    "test_arm64_measurement.py",
    "test_arm64_conformance.py",
    "test_upgrade.py",
    "test_shared_machine.py",
    "test_phones_of_a_host.py",
    "test_controller.py",
    "test_monitoring.py",
    "test_working_day.py",
    "test_operator.py",
    "test_enrolment_pythons.py",
    "test_monitoring_playbook.py",
    "test_monitoring_alone.py",
    "test_virtual_board.py",
)
"""The files of tests that take longest. They are started first, in this order."""

PROBE_TIMEOUT_S = 60.0
"""How long one program in a container may take before the host counts as unable, in seconds."""

MakeBoard = Callable[..., VirtualBoard]
MakeBoards = Callable[..., list[VirtualBoard]]
MakeController = Callable[..., LabController]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, so that all processes end at about the same time."""
    ranks = {name: rank - len(LONGEST_FIRST) for rank, name in enumerate(LONGEST_FIRST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: ranks.get(item.path.name, 0) if item.path.parent == here else 0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give a test on boards more time on a busy host, before its time begins to run."""
    chosen = item.get_closest_marker("timeout")
    if chosen is not None and item.get_closest_marker("farm") is not None:
        scaled = pytest.mark.timeout(scaled_s(float(chosen.args[0])))
        item.add_marker(scaled, append=False)
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests recorded in all processes of the run."""
    found = sorted(
        f"{report.nodeid.rpartition('::')[2]}: {name}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
    )
    if found:
        terminalreporter.section("figures")
        for line in found:
            terminalreporter.line(line)


def cannot(reason: str) -> None:
    """Skip a test that needs boards, or fail it where boards are required."""
    if os.environ.get(REQUIRED_VARIABLE) == "required":
        pytest.fail(f"virtual boards are required here: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def rack() -> Iterator[Rack]:
    """The rack that all tests of this process share."""
    reason = host.lacks()
    if reason:
        cannot(reason)
    reason = rootfs.lacks()
    if reason:
        cannot(reason)
    rootfs.tree()  # an error here is a failure, not a reason to skip
    with ExitStack() as ends:
        try:
            rack = ends.enter_context(Rack())
            probe = VirtualBoard("probe", rack=rack, boot_timeout_s=PROBE_TIMEOUT_S)
            ends.callback(probe.close)
            reason = probe.try_out()
        except (HostError, OSError) as error:
            reason = str(error)
        if reason:
            cannot(f"no program runs in a container here: {reason}")
        probe.close()
        yield rack


@pytest.fixture(scope="session")
def arm64_rack(rack: Rack) -> Rack:
    """The shared rack, on a host that also runs programs for arm64."""
    try:
        emulation.enable("arm64")
    except HostError as error:
        cannot(str(error))
    return rack


@pytest.fixture(scope="session")
def own_wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Wheels of the agent and the protos of this checkout; all processes of a run share them."""
    base = tmp_path_factory.getbasetemp()
    # With pytest-xdist, each process has its own folder below the folder of the run.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "own-wheels"
    with rootfs.locked(folder.with_suffix(".lock")):
        if not folder.exists():
            partial = folder.with_suffix(".part")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            wheels.own(partial)
            partial.rename(folder)
    return sorted(folder.glob("latfarm_*.whl"))


@pytest.fixture(scope="module")
def make_controller(
    own_wheels: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> MakeController:
    """A function that makes a controller of some boards, with a folder of its own."""
    reason = enrolment.lacks()
    if reason:
        cannot(reason)

    def make(boards: Iterable[VirtualBoard], **variables: Any) -> LabController:
        folder = tmp_path_factory.mktemp("controller")
        return LabController(folder, own_wheels[0].parent, boards, **variables)

    return make


@pytest.fixture(scope="module")
def make_boards(rack: Rack) -> Iterator[MakeBoards]:
    """A function that makes boards and switches them on; they are removed after the module."""
    with ExitStack() as ends:

        def make(*names: str) -> list[VirtualBoard]:
            boards = [VirtualBoard(name, rack=rack) for name in names]
            for board in boards:
                ends.callback(board.close)
            with ThreadPoolExecutor(len(boards)) as pool:
                list(pool.map(VirtualBoard.start, boards))
            return boards

        yield make


@pytest.fixture
def make_board(rack: Rack) -> Iterator[MakeBoard]:
    """A function that makes a board and switches it on; it is removed after the test."""
    with ExitStack() as ends:

        def make(name: str, **options: Any) -> VirtualBoard:
            return ends.enter_context(VirtualBoard(name, rack=rack, **options))

        yield make
