"""Fetches the wheels of other projects that playbooks install, before tests run the playbooks.

Playbooks make wheelhouses with `latfarm boards wheels`, which finds these wheels in the cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from latfarm_controller.enrolment.target import WheelTarget
from latfarm_controller.enrolment.wheelhouse import AGENT, CONTROLLER, Product, assemble
from latfarm_controller.errors import ControllerError

from tests.farm.boards import wheels
from tests.farm.boards.host import NATIVE, HostError, cache_dir

PYTHON, GLIBC = "3.11", "2.36"
"""Versions of Python and of the C library on boards with `rootfs.SUITE`, which is Debian 12."""

OF_PLAYBOOKS = ((), ("onnxruntime",))
"""The choices of runtimes with which tests enrol boards of the host's architecture."""


def boards_folder() -> Path:
    """The folder of wheelhouses of boards; tests share its folder `others`."""
    return _made(cache_dir() / "wheelhouse")


def controller_folder() -> Path:
    """The folder of wheelhouses of controllers, which tests share."""
    return _made(boards_folder() / "controller")


def fetch_for_boards(choices: Sequence[Sequence[str]], arch: str = NATIVE) -> None:
    """Fetch what boards of an architecture install, for some choices of runtimes.

    Raises:
        HostError: a wheel cannot be built or fetched.
    """
    for runtimes in choices:
        _assemble(AGENT, runtimes, boards_folder(), arch)


def fetch_for_controller() -> None:
    """Fetch what the machine of a controller installs, and what is brought there for boards.

    Raises:
        HostError: a wheel cannot be built or fetched.
    """
    _assemble(CONTROLLER, ("enrol",), controller_folder(), NATIVE)
    _assemble(AGENT, (), controller_folder(), NATIVE)


def _assemble(product: Product, runtimes: Sequence[str], folder: Path, arch: str) -> None:
    target = WheelTarget(PYTHON, wheels.MACHINES[arch], GLIBC)
    with tempfile.TemporaryDirectory() as text:
        own = Path(text) / "own"
        wheels.own(own, sorted({*product.own, *product.equips}))
        try:
            assemble(target, runtimes, folder, own, product)
        except ControllerError as error:
            raise HostError(f"wheels that playbooks install on {arch}: {error}") from error


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
