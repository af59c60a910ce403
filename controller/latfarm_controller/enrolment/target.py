"""Decides which wheels fit a board, and which conditions of requirements hold there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.markers import Marker
from packaging.requirements import Requirement

from latfarm_controller.errors import UsageError

OLDEST_PYTHON = (3, 8)
"""The oldest Python on which the agent runs."""
_OLDEST_GLIBC = 5  # minor version: glibc 2.5, the oldest that pip is told to accept
_PYTHON = re.compile(r"3\.(\d{1,2})")
_GLIBC = re.compile(r"2\.(\d{1,2})")
# Older names of manylinux, and the minor version of glibc 2 for which each stands.
_LEGACY = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
MACHINES = ("x86_64", "aarch64", "armv7l")
"""The processors for which wheels exist, as `uname -m` names them."""


@dataclass(frozen=True, slots=True)
class WheelTarget:
    """A kind of board: CPython of version `python` on Linux, a processor `arch` and a `glibc`.

    Example values are "3.11", "aarch64" and "2.36". On a board, `uname -m` prints the processor and
    `getconf GNU_LIBC_VERSION` prints the version of glibc.

    Raises:
        UsageError: on construction, if the agent cannot run on such a board.
    """

    python: str
    arch: str
    glibc: str = "2.31"

    def __post_init__(self) -> None:
        """Refuse a Python, a processor or a C library for which there are no wheels."""
        if not _PYTHON.fullmatch(self.python) or self.version < OLDEST_PYTHON:
            raise UsageError(f"--python {self.python!r}: must be 3.8 or newer, as 3.11")
        if self.arch not in MACHINES:
            raise UsageError(f"--arch {self.arch!r}: must be one of {', '.join(MACHINES)}")
        if not _GLIBC.fullmatch(self.glibc):
            raise UsageError(f"--glibc {self.glibc!r}: must be as `getconf GNU_LIBC_VERSION` says")

    @property
    def version(self) -> tuple[int, int]:
        """The version of Python as two numbers."""
        major, minor = self.python.split(".")
        return int(major), int(minor)

    @property
    def tag(self) -> str:
        """The target as text for file names, such as "py311-aarch64-glibc2.36"."""
        return f"py{self.version[0]}{self.version[1]}-{self.arch}-glibc{self.glibc}"

    def pip_options(self) -> list[str]:
        """Return the options that make pip choose wheels for the board.

        All older versions of glibc are listed too, because pip does not derive them by itself.
        """
        newest = int(self.glibc.split(".")[1])
        names = [f"manylinux_2_{minor}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
        names += [name for name, minor in _LEGACY.items() if minor <= newest]
        platforms = [f"--platform={name}_{self.arch}" for name in (*names, "linux")]
        python = ["--implementation=cp", f"--python-version={self.python}"]
        return ["--only-binary=:all:", *python, *platforms]

    def holds(self, marker: Marker | None, extra: str = "") -> bool:
        """Whether a condition of a requirement holds on the board.

        pip itself evaluates conditions only for the Python in which it runs.
        """
        environment = {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
            "extra": extra,
        }
        return marker is None or marker.evaluate(environment)

    def wants(self, requirement: Requirement, extras: frozenset[str] | set[str]) -> bool:
        """Whether a requirement is needed on the board, always or for one of the extras."""
        return any(self.holds(requirement.marker, extra) for extra in ("", *sorted(extras)))
