"""Prepares a host for virtual boards: `python -m tests.farm.prepare --install`, as root.

With --install, missing Debian packages are installed; without it, they are only named. Then
everything that tests on boards of the host's architecture share is made in parallel, so that the
tests find it in the cache. What boards of another architecture and Grafana's panels need takes
longer. It is made here only with --all, as for `make test-farm-all`. If the host cannot run virtual
boards, the program says why in one line and exits with status 0, and the tests are skipped for the
same reason.
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
from tests.farm.lab import grafana
from tests.farm.lab.wheelhouses import OF_PLAYBOOKS, fetch_for_boards, fetch_for_controller

EXTRAS = ("mnn", "ncnn", "onnxruntime", "openvino", "tflite")
"""Extras of the agent for the runtimes that have wheels for aarch64."""

FOR_TESTS = ("flatbuffers", "onnx", "pytest", "pytest-timeout")
"""Requirements of the conformance suite on a board, in addition to the agent."""

ALSO = {
    "adb": "adb",
    "gcc": "gcc",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
}
"""Programs that some tests need in addition to `host.TOOLS`, and the Debian package of each."""

OF_PANELS = {"chromium": "chromium", "node": "nodejs", "npm": "npm"}
"""Programs that draw Grafana's panels, and the Debian package of each; only `--all` wants them."""

_POLICY = Path("/usr/sbin/policy-rc.d")
"""Program that Debian asks whether a package may start its service."""

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def arm64_packages() -> list[str]:
    """Requirements of an arm64 board for all runtimes and the conformance suite."""
    return [*wheels.requirements(EXTRAS), *FOR_TESTS]


def install(*, everything: bool = False) -> None:
    """Install missing Debian packages; do nothing without root or apt-get.

    Args:
        everything: whether what Grafana's panels need is wanted, too.

    Raises:
        HostError: apt-get failed.
    """
    wanted = {**host.TOOLS, **ALSO}
    packages = {package for tool, package in wanted.items() if shutil.which(tool) is None}
    if not _KEYRING.exists():
        packages.add("debian-archive-keyring")
    of_panels = {OF_PANELS[program] for program in grafana.missing()} if everything else set()
    # Boards do without the browser, which not every distribution has as a package.
    groups = [sorted(group) for group in (packages, of_panels) if group]
    if not groups or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-oDPkg::Lock::Timeout=600")
    host.command(*apt, "update", timeout_s=600.0)
    few = ("install", "--yes", "--no-install-recommends")
    with services_kept_off(_POLICY):
        for group in groups:
            host.command(*apt, *few, *group, timeout_s=1200.0)


@contextmanager
def services_kept_off(policy: Path) -> Iterator[None]:
    """Let no package start a service while the `with` block lasts.

    The tests need the programs of the packages, not their services.

    Args:
        policy: path of Debian's `policy-rc.d`. If the host has one, it stays as it is.
    """
    if policy.exists():
        yield
        return
    try:
        policy.write_text("#!/bin/sh\nexit 101\n")  # 101: the action is forbidden
        policy.chmod(0o755)
        yield
    finally:
        policy.unlink(missing_ok=True)


def _jobs(*, everything: bool) -> dict[str, Callable[[], object]]:
    """What is made, by its name; with `everything`, what `--all` asks for, too."""
    jobs: dict[str, Callable[[], object]] = {
        f"a board's disk ({host.NATIVE})": rootfs.tree,
        f"a phone's disk ({host.NATIVE})": lambda: rootfs.tree(packages=PACKAGES),
        "packages of a monitoring machine": lambda: debs.repository(debs.MONITORING),
        "packages of a board with devices": lambda: debs.repository(debs.DEVICES),
        "packages of a board with an operator": lambda: debs.repository(debs.OPERATOR),
        "packages of a host of phones": lambda: debs.repository(debs.PHONES),
        f"wheels ({host.NATIVE})": lambda: wheels.site(wheels.requirements(), arch=host.NATIVE),
        "wheels that playbooks install": lambda: fetch_for_boards(OF_PLAYBOOKS),
    }
    if not everything:
        return jobs
    jobs["packages of a controller"] = lambda: debs.repository(debs.CONTROLLER)
    jobs["wheels that a controller installs"] = fetch_for_controller
    if not grafana.lacks():
        jobs["Grafana's panels"] = grafana.bundle
    try:
        emulation.enable("arm64")
    except host.HostError as error:
        print(f"virtual boards: this host cannot run arm64 boards: {error}", file=sys.stderr)
    else:
        jobs["a board's disk (arm64)"] = lambda: rootfs.tree("arm64")
        jobs["wheels (arm64)"] = lambda: wheels.site(arm64_packages())
        jobs["wheels that playbooks install (arm64)"] = lambda: fetch_for_boards([EXTRAS], "arm64")
    return jobs


def main(arguments: Sequence[str]) -> int:
    """Prepare the host; return the exit status."""
    if "--install" in arguments:
        try:
            install(everything="--all" in arguments)
        except host.HostError as error:
            print(f"virtual boards: cannot install: {error}", file=sys.stderr)
    reason = host.lacks() or rootfs.lacks()
    if reason:
        print(f"virtual boards: this host cannot run them: {reason}", file=sys.stderr)
        return 0
    jobs = _jobs(everything="--all" in arguments)
    begun = time.monotonic()
    failed = []
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = {name: pool.submit(job) for name, job in jobs.items()}
        for name, future in futures.items():
            try:
                future.result()
            except (host.HostError, grafana.GrafanaError) as error:
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
