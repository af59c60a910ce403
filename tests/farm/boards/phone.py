"""A virtual phone: a virtual board with Android's adbd and the answers of a phone's commands.

The daemon is that of Android 14, from a Debian package. The answers of `getprop`, `dumpsys` and
similar commands are files on the board. There is no USB: adb connects to the phone's IP address, as
with wireless debugging.
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

PACKAGES = (
    "adbd",
    *(f"android-lib{name}/bookworm-backports" for name in ("base", "cutils", "log")),
    "procps",
)
"""Debian packages of a phone. The libraries are from the backports: adbd needs these versions."""

_UNIT = "/etc/systemd/system/adbd.service.d/board.conf"
"""File on the board that changes the unit of adbd."""

_NO_GADGET = """\
[Service]
Type=simple
ExecStartPre=
ExecStartPost=
ExecStopPost=
Restart=no
# Processes that adbd has started must end by themselves, as on a phone.
KillMode=process
"""
"""Settings of the unit of adbd: it runs without USB, and nobody starts it again."""

_PORT = 5555
"""TCP port of adbd; Android's default for connections over the network."""

_ANSWERS = "/var/lib/phone"
"""Folder on the board with the answers of the phone's commands."""


def lacks() -> str:
    """Why this host cannot test phones, in one line; empty if it can."""
    if shutil.which("adb") is None:
        return "phones need Debian's package adb"
    if shutil.which("gcc") is None:
        return "the phones' benchmark binary needs gcc"
    return ""


class VirtualPhone:
    """A board with adbd. It is on while its `with` block lasts.

    Args:
        name: host name of the board; the serial number is derived from it.
        rack: the rack of the board.
    """

    def __init__(self, name: str, rack: Rack) -> None:
        self.board = VirtualBoard(name, packages=PACKAGES, rack=rack)
        self.number = f"SN{name}"

    @property
    def serial(self) -> str:
        """The serial number by which adb knows the phone, which is its address and port."""
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
        """Set what a command of the phone prints from now on."""
        self.board.write(f"{_ANSWERS}/{name}", text)

    def behave(self, word: str) -> None:
        """Make the benchmark binaries misbehave as a word says; empty: they behave well again."""
        self.board.write("/data/local/tmp/behave", word)

    def kill_adbd(self) -> None:
        """Kill adbd: for the host, the phone disappears as if its cable were pulled."""
        self.board.run(
            "systemctl kill --signal=KILL --kill-whom=main adbd; systemctl reset-failed adbd"
        )

    def start_adbd(self) -> None:
        """Start adbd again, and wait until it accepts connections."""
        self.board.run("systemctl start adbd")
        self.wait_for_adbd()

    def wait_for_adbd(self) -> None:
        """Wait until adbd accepts connections."""
        with contextlib.suppress(OSError):
            for _ in range(200):
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection((self.board.address, _PORT), 10.0).close()
                    return
                self.board.run("sleep 0.05")
        raise AssertionError(self.board.run("journalctl -u adbd --no-pager").stdout)

    def benchmarks(self) -> list[str]:
        """Command lines of the benchmark binaries that run on the phone now."""
        found = self.board.run("ps -eo args").stdout.splitlines()
        return [line for line in found if line.startswith("/data/local/tmp/latfarm/bin/")]


@contextmanager
def adb_server() -> Iterator[str]:
    """Yield a free port for an adb server; the server that adb starts there is ended later."""
    port = str(free_port())
    environment = dict(os.environ, ANDROID_ADB_SERVER_PORT=port)
    try:
        yield port
    finally:
        command = ["adb", "kill-server"]
        subprocess.run(command, env=environment, check=False, timeout=30, capture_output=True)
