"""The confinement by itself, on this kernel and on kernels that have less of it.

An older kernel is played: Landlock is used as in an older version, or a filter of system calls
answers as a kernel without it. Each case is a process of its own, as nothing can be taken back.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import latfarm_agent
import pytest
from latfarm_agent.confinement import landlock, linux
from latfarm_agent.confinement.plan import (
    CALLS,
    FILES,
    NETWORK,
    PRIVILEGES,
    PROTECTIONS,
    SIGNALS,
    combined,
    is_on,
)

PROGRAM = Path(__file__).with_name("confined.py")
NEVER = (
    *("signal_parent", "limit_parent", "unlink_from_keeper", "open_inet", "open_udp", "open_unix"),
    *("make_namespace", "trace", "share_memory", "use_io_uring", "chmod_secret"),
    "truncate_secret",
)
"""What is refused as soon as one of Landlock and seccomp is there and complete."""

ALWAYS = (
    *("write_own", "read_model", "read_option", "signal_itself", "open_pair", "hear_of_devices"),
    *("run_a_program", "compute", "abort_in_a_child", "list_devices"),
)
FILES_ALONE = (
    *("read_secret", "list_secrets", "write_secret", "write_model"),
    "read_raw_device",
)


def version() -> int:
    try:
        return landlock.version()
    except OSError:
        return 0


pytestmark = [
    pytest.mark.skipif(not linux.machine(), reason="there are no filters for this machine"),
    pytest.mark.filterwarnings("default"),
]
needs_landlock = pytest.mark.skipif(version() == 0, reason="this kernel has no Landlock")


def confined(
    folder: Path,
    attempts: Sequence[str],
    plan: dict[str, Any] | None = None,
    *,
    landlock: int | None = None,
    seccomp: bool = True,
    **more: Any,
) -> tuple[dict[str, str], dict[str, bool]]:
    for name in ("own", "models"):
        (folder / name).mkdir(exist_ok=True)
    for name in ("secret", "library.so", "models/model"):
        (folder / name).write_text(name)
    asked = {
        "plan": plan or {},
        "folder": str(folder),
        "attempts": list(attempts),
        "landlock": version() if landlock is None else landlock,
        "seccomp": seccomp,
        **more,
    }
    environment = dict(os.environ, PYTHONPATH=str(Path(latfarm_agent.__file__).parent.parent))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(asked)],
        capture_output=True,
        check=False,
        env=environment,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    return found["told"], found["done"]


@needs_landlock
def test_a_whole_kernel_refuses_all_and_keeps_what_runtimes_need(tmp_path: Path) -> None:
    told, done = confined(tmp_path, (*NEVER, *FILES_ALONE, *ALWAYS))
    assert {name for name, passed in done.items() if passed} == set(ALWAYS)
    assert set(told) <= set(PROTECTIONS)
    assert all(is_on(text) for text in told.values())
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("older", [1, 2, 3, 4, 5])
def test_older_landlock_is_helped_by_the_filter(tmp_path: Path, older: int) -> None:
    if version() < older:
        pytest.skip(f"this kernel has Landlock {version()}")
    told, done = confined(tmp_path, (*NEVER, *FILES_ALONE, *ALWAYS), landlock=older)
    assert {name for name, passed in done.items() if passed} == set(ALWAYS)
    assert told[FILES] == f"on: Landlock {older}"
    assert told[SIGNALS] == "on: seccomp"


def test_a_kernel_without_landlock_gets_the_rest_and_says_so(tmp_path: Path) -> None:
    told, done = confined(tmp_path, (*NEVER, *ALWAYS), landlock=0)
    assert {name for name, passed in done.items() if passed} == set(ALWAYS)
    assert told[FILES] == "off: this kernel has no Landlock"
    assert all(is_on(told[name]) for name in (SIGNALS, NETWORK, CALLS, PRIVILEGES))


@needs_landlock
def test_a_machine_without_filters_gets_the_rest_and_says_so(tmp_path: Path) -> None:
    told, done = confined(tmp_path, FILES_ALONE, seccomp=False)
    assert not any(done.values())
    assert told[CALLS].startswith("off: there is no filter")
    assert not is_on(told[NETWORK])
    assert is_on(told[FILES])


@pytest.mark.skipif(version() < landlock.VERSION_PORTS, reason="Landlock knows no ports here")
def test_a_worker_that_drives_a_board_reaches_one_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(
        ("127.0.0.1", 0)
    ) as other:
        port = one.getsockname()[1]
        told, done = confined(
            tmp_path,
            ("connect", "connect_elsewhere", "open_udp", "open_unix", "read_secret"),
            {"ports": [port]},
            port=port,
            other_port=other.getsockname()[1],
        )
    assert {name for name, passed in done.items() if passed} == {"connect"}
    assert told[NETWORK] == f"on: Landlock, but for port {port}"


@needs_landlock
def test_more_can_be_granted(tmp_path: Path) -> None:
    plan = {"read": [str(tmp_path)], "hidden": [str(tmp_path / "secret")], "unix_sockets": True}
    told, done = confined(tmp_path, ("list_secrets", "read_secret", "open_unix", "open_inet"), plan)
    # What is hidden stays closed inside of a folder that is granted, and so does its listing.
    assert {name for name, passed in done.items() if passed} == {"open_unix"}
    assert told[NETWORK] == "on: seccomp, but for Unix sockets"
    _, done = confined(tmp_path, ("read_secret", "write_secret"), {"write": [str(tmp_path)]})
    assert all(done.values())


def test_what_is_switched_off_is_told(tmp_path: Path) -> None:
    told, done = confined(tmp_path, ("read_secret", "signal_parent"), {"enabled": False})
    assert all(done.values())
    assert not any(is_on(text) for text in told.values())


def test_the_protections_of_a_board_are_those_that_all_its_workers_have() -> None:
    on, off = {FILES: "on: Landlock 7"}, {FILES: "off: no Landlock"}
    assert combined({}) == {}
    assert combined({"a": on, "b": on}) == on
    assert combined({"a": off, "b": off}) == off
    assert combined({"a": on, "b": off}) == {FILES: "off: no Landlock (workers of b)"}
