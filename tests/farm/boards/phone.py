"""A phone that is none: Android's own adbd, and what a phone tells of itself, on a virtual board.

The daemon is the real one of Android 14, as Debian packages it; the answers of `getprop`, `dumpsys`
and the like are files of the board. There is no USB: the phone is reached by its address, as one
with wireless debugging is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.agent.phones.kit import ANSWERS, SHIM
from tests.farm.boards.rack import Rack
from tests.farm.boards.virtual_board import VirtualBoard
from tests.ports import free_port

# The daemon's libraries must be of its own version; Debian 12 has older ones too.
PACKAGES = (
    "adbd",
    *(f"android-lib{name}/bookworm-backports" for name in ("base", "cutils", "log")),
    "procps",
)
_UNIT = "/etc/systemd/system/adbd.service.d/board.conf"
_NO_GADGET = """\
[Service]
Type=simple
ExecStartPre=
ExecStartPost=
ExecStopPost=
Restart=no
# What the daemon started must end by itself, as on a phone.
KillMode=process
"""
_PORT = 5555
_ANSWERS = "/var/lib/phone"


def lacks() -> str:
    """Why this host cannot talk to phones, in one line; empty if it can."""
    if shutil.which("adb") is None:
        return "phones need Debian's package adb"
    if shutil.which("gcc") is None:
        return "the phones' benchmark binary needs gcc"
    return ""


class VirtualPhone:
    """A board with adbd; on while its context lasts.

    Args:
        name: its host name; its serial number is made of it.
        rack: where it stands.
    """

    def __init__(self, name: str, rack: Rack) -> None:
        self.board = VirtualBoard(name, packages=PACKAGES, rack=rack)
        self.number = f"SN{name}"

    @property
    def serial(self) -> str:
        """As `adb devices` prints it."""
        return f"{self.board.address}:{_PORT}"

    def __enter__(self) -> VirtualPhone:
        self.board.__enter__()
        try:
            self._become_a_phone()
        except BaseException:
            self.board.close()
            raise
        return self

    def __exit__(self, *ended: object) -> None:
        self.board.close()

    def _become_a_phone(self) -> None:
        self.board.write(_UNIT, _NO_GADGET)
        for name, text in ANSWERS.items():
            self.answer(name, text)
            shim = f"/usr/local/bin/{name.split('-')[0]}"
            self.board.write(shim, SHIM.format(answers=_ANSWERS), 0o755)
        self.answer("getprop", ANSWERS["getprop"].replace("R58M1", self.number))
        self.board.run("mkdir -p /data/local/tmp && chmod 771 /data/local/tmp")
        self.board.run("systemctl daemon-reload && systemctl restart adbd")
        self.wait_for_adbd()

    def answer(self, name: str, text: str) -> None:
        """What a command of the phone prints from now on."""
        self.board.write(f"{_ANSWERS}/{name}", text)

    def behave(self, word: str) -> None:
        """Let the benchmark binaries misbehave; empty: no more."""
        self.board.write("/data/local/tmp/behave", word)

    def kill_adbd(self) -> None:
        """As if the cable were pulled."""
        self.board.run(
            "systemctl kill --signal=KILL --kill-whom=main adbd; systemctl reset-failed adbd"
        )

    def start_adbd(self) -> None:
        """Plug it in again."""
        self.board.run("systemctl start adbd")
        self.wait_for_adbd()

    def wait_for_adbd(self) -> None:
        """Wait until the daemon takes connections."""
        with contextlib.suppress(OSError):
            for _ in range(200):
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection((self.board.address, _PORT), 10.0).close()
                    return
                self.board.run("sleep 0.05")
        raise AssertionError(self.board.run("journalctl -u adbd --no-pager").stdout)

    def benchmarks(self) -> list[str]:
        """Command lines of the benchmark binaries that run on it."""
        found = self.board.run("ps -eo args").stdout.splitlines()
        return [line for line in found if line.startswith("/data/local/tmp/latfarm/bin/")]


@contextmanager
def adb_server() -> Iterator[str]:
    """A server for adb's clients of its own, on the port that it gives; ended afterwards."""
    port = str(free_port())
    environment = dict(os.environ, ANDROID_ADB_SERVER_PORT=port)
    try:
        yield port
    finally:
        command = ["adb", "kill-server"]
        subprocess.run(command, env=environment, check=False, timeout=30, capture_output=True)
