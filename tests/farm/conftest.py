"""Racks and boards for tests; on a host that cannot carry boards, a reason instead.

With LATFARM_FARM=required in the environment, such a host fails the tests: for machines that are
known to be able.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.farm import emulation, host, rootfs, wheels
from tests.farm.host import HostError
from tests.farm.rack import Rack
from tests.farm.virtual_board import VirtualBoard

REQUIRED_VARIABLE = "LATFARM_FARM"
MakeBoard = Callable[..., VirtualBoard]


def cannot(reason: str) -> None:
    """Skip what needs boards; fail where they are required."""
    if os.environ.get(REQUIRED_VARIABLE) == "required":
        pytest.fail(f"virtual boards are required here: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def rack() -> Iterator[Rack]:
    """A rack for all tests of this process."""
    reason = host.lacks()
    if reason:
        cannot(reason)
    rootfs.tree()  # without it nothing can be said about the host
    with ExitStack() as ends:
        try:
            rack = ends.enter_context(Rack())
            probe = VirtualBoard("probe", rack=rack)
            ends.callback(probe.close)
            reason = probe.try_out()
        except HostError as error:
            reason = str(error)
        if reason:
            cannot(f"nothing runs in a container here: {reason}")
        probe.close()
        yield rack


@pytest.fixture(scope="session")
def arm64_rack(rack: Rack) -> Rack:
    """The same, where programs for arm64 run too."""
    try:
        emulation.enable("arm64")
    except HostError as error:
        cannot(str(error))
    return rack


@pytest.fixture(scope="session")
def own_wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Wheels of the agent and the messages, as this checkout has them."""
    return wheels.own(tmp_path_factory.mktemp("own"))


@pytest.fixture
def make_board(rack: Rack) -> Iterator[MakeBoard]:
    """Makes boards in the rack, switched on; they end with the test."""
    with ExitStack() as ends:

        def make(name: str, **options: Any) -> VirtualBoard:
            return ends.enter_context(VirtualBoard(name, rack=rack, **options))

        yield make
