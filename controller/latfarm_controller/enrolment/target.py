"""A board's Python as wheels see it: which files fit, and which conditions hold there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.markers import Marker
from packaging.requirements import Requirement

from latfarm_controller.errors import UsageError

OLDEST_PYTHON = (3, 8)
_OLDEST_GLIBC = 5
_PYTHON = re.compile(r"3\.(\d{1,2})")
_GLIBC = re.compile(r"2\.(\d{1,2})")
_LEGACY = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
MACHINES = ("x86_64", "aarch64", "armv7l")


@dataclass(frozen=True, slots=True)
class WheelTarget:
    """CPython `python` ("3.11") on Linux with glibc `glibc` ("2.36"), as `uname -m` calls `arch`.

    Raises:
        UsageError: on construction, no agent runs there.
    """

    python: str
    arch: str
    glibc: str = "2.31"

    def __post_init__(self) -> None:
        """Refuse what no wheel is for."""
        if not _PYTHON.fullmatch(self.python) or self.version < OLDEST_PYTHON:
            raise UsageError(f"--python {self.python!r}: must be 3.8 or newer, as 3.11")
        if self.arch not in MACHINES:
            raise UsageError(f"--arch {self.arch!r}: must be one of {', '.join(MACHINES)}")
        if not _GLIBC.fullmatch(self.glibc):
            raise UsageError(f"--glibc {self.glibc!r}: must be as `getconf GNU_LIBC_VERSION` says")

    @property
    def version(self) -> tuple[int, int]:
        """Of its Python, as numbers."""
        major, minor = self.python.split(".")
        return int(major), int(minor)

    @property
    def tag(self) -> str:
        """For names of files."""
        return f"py{self.version[0]}{self.version[1]}-{self.arch}-glibc{self.glibc}"

    def pip_options(self) -> list[str]:
        """Make pip choose for the board; it derives no older platform by itself."""
        newest = int(self.glibc.split(".")[1])
        names = [f"manylinux_2_{minor}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
        names += [name for name, minor in _LEGACY.items() if minor <= newest]
        platforms = [f"--platform={name}_{self.arch}" for name in (*names, "linux")]
        python = ["--implementation=cp", f"--python-version={self.python}"]
        return ["--only-binary=:all:", *python, *platforms]

    def holds(self, marker: Marker | None, extra: str = "") -> bool:
        """Whether a condition of a requirement holds there; pip would ask its own Python."""
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
        """Whether a requirement holds there, plainly or for one of the extras."""
        return any(self.holds(requirement.marker, extra) for extra in ("", *sorted(extras)))
