"""Makes a host ready for virtual boards: `python -m tests.farm.prepare --install`, as root.

Debian's packages that are missing are installed (without --install: named). Then all that tests on
boards of the host's architecture have in common is made, at the same time, so that they find it in
the cache. What boards of another one need takes longer: the first test that wants it makes it,
while others go on; with --all it is made here. Says in one line what the host lacks, and is content
with it: the tests then skip with the same words.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.farm.boards import debs, emulation, host, rootfs, wheels
from tests.farm.boards.phone import PACKAGES

EXTRAS = ("mnn", "ncnn", "onnxruntime", "openvino", "tflite")
"""The agent's runtimes that have wheels for aarch64."""

FOR_TESTS = ("flatbuffers", "onnx", "pytest", "pytest-timeout")
"""What the conformance suite needs on a board beyond the agent."""

ALSO = {
    "adb": "adb",
    "gcc": "gcc",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
}
"""Program -> Debian package, of tests that bring more than boards."""

_POLICY = Path("/usr/sbin/policy-rc.d")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def arm64_packages() -> list[str]:
    """Requirements of an arm64 board with all runtimes and the conformance suite."""
    return [*wheels.requirements(EXTRAS), *FOR_TESTS]


def install() -> None:
    """Install the packages that are missing; nothing where they cannot be.

    Raises:
        HostError: the package manager failed.
    """
    wanted = {**host.TOOLS, **ALSO}
    packages = {package for tool, package in wanted.items() if shutil.which(tool) is None}
    if not _KEYRING.exists():
        packages.add("debian-archive-keyring")
    if not packages or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-oDPkg::Lock::Timeout=600")
    host.command(*apt, "update", timeout_s=600.0)
    few = ("install", "--yes", "--no-install-recommends")
    with _nothing_started():
        host.command(*apt, *few, *sorted(packages), timeout_s=1200.0)


@contextmanager
def _nothing_started() -> Iterator[None]:
    """Packages bring programs for tests, no services for this host: Debian asks here whether."""
    if _POLICY.exists():
        yield
        return
    try:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Make the host ready; gives the exit code."""
    if "--install" in arguments:
        try:
            install()
        except host.HostError as error:
            print(f"virtual boards: cannot install: {error}", file=sys.stderr)
    reason = host.lacks() or rootfs.lacks()
    if reason:
        print(f"virtual boards: none on this host: {reason}", file=sys.stderr)
        return 0
    jobs: dict[str, Callable[[], object]] = {
        f"a board's disk ({host.NATIVE})": rootfs.tree,
        f"a phone's disk ({host.NATIVE})": lambda: rootfs.tree(packages=PACKAGES),
        "packages of a machine that watches": lambda: debs.repository(debs.MONITORING),
        "packages of a board with devices": lambda: debs.repository(debs.DEVICES),
        f"wheels ({host.NATIVE})": lambda: wheels.site(wheels.requirements(), arch=host.NATIVE),
    }
    if "--all" in arguments:
        try:
            emulation.enable("arm64")
        except host.HostError as error:
            print(f"virtual boards: none for arm64: {error}", file=sys.stderr)
        else:
            jobs["a board's disk (arm64)"] = lambda: rootfs.tree("arm64")
            jobs["wheels (arm64)"] = lambda: wheels.site(arm64_packages())
    begun = time.monotonic()
    failed = []
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = {name: pool.submit(job) for name, job in jobs.items()}
        for name, future in futures.items():
            try:
                future.result()
            except host.HostError as error:
                print(f"virtual boards: {name}: {error}", file=sys.stderr)
                failed.append(name)
    took = f"after {time.monotonic() - begun:.0f} s, in {host.cache_dir()}"
    if failed:
        there = f"{len(jobs) - len(failed)} of {len(jobs)} are there"
        print(f"virtual boards: not ready {took}: {there}; run this again", file=sys.stderr)
        return 1
    print(f"virtual boards: ready {took}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
