"""A phone behind the `adb` client: shell commands, files pushed by hash, reconnects.

The client program is run as a subprocess, and finds its server as usual, so that the variables
ANDROID_ADB_SERVER_PORT and ADB_SERVER_SOCKET have their effect. The output of the phone is limited
and not trusted: an answer counts only if it ends with the random mark that was asked for.

Sources: Android's documentation "Android Debug Bridge (adb)", and SERVICES.TXT of adb's source code
for the shell protocol.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from latfarm_agent.errors import LatfarmAgentError
from latfarm_agent.phones.process import OutputTooLargeError, converse

ROOT = "/data/local/tmp/latfarm"
"""The only folder on the phone that is used; every user of adb may write and run files there."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}|\[[0-9A-Fa-f:.%]{2,64}\]:\d{1,5}")
LIMIT_BYTES = 4 << 20
"""Most output of one command."""

_SHOWN = 300
"""Longest output in an error message."""

_FULL = ("no space left", "enospc", "disk quota", "remote couldn't create file: no space")
"""Parts of messages that mean a full disk."""

_SERVER_PORT = 5037
"""The port of an adb server, unless the environment names another one."""

RECONNECT_S = 20.0
"""How long to wait for a phone that is gone, unless told otherwise."""


class AdbError(LatfarmAgentError):
    """The phone did not do what it was asked; the model is not the reason."""

    code = "DEVICE_FAILED"


class DeviceLostError(AdbError):
    """The phone is not there, has not authorised this machine, or went away meanwhile."""

    code = "DEVICE_LOST"


class DeviceFullError(AdbError):
    """No space is left on the phone."""

    code = "DISK_FULL"


class DeviceTimeoutError(AdbError):
    """The phone is there, but does not answer in time."""

    code = "DEVICE_LOST"


@dataclass(frozen=True)
class CommandOutput:
    """What a command on the phone printed (both streams, in order), and its exit code."""

    code: int
    text: str


class AdbDevice:
    """A phone with a serial like "emulator-5554", "ZY22..." or "10.0.0.7:5555". Not thread-safe.

    Args:
        serial: as `adb devices` prints it; a serial HOST:PORT is connected to if needed.
        adb: path of the client program; empty: the one in the PATH.
        timeout_s: how long a short command may take.
        reconnect_s: how long to wait for a phone that is away; 0: `RECONNECT_S`.
        starts_server: whether the client may start its server. It must not within a worker: the
            server would end with the worker, and all other phones of this machine would be lost.

    Raises:
        AdbError: there is no client program, or the serial is malformed.
    """

    def __init__(
        self,
        serial: str,
        adb: str = "",
        *,
        timeout_s: float = 30.0,
        reconnect_s: float = 0.0,
        starts_server: bool = False,
    ) -> None:
        if not _SERIAL.fullmatch(serial):
            raise AdbError(f"{serial[:64]!r} is not a serial number (see: adb devices)")
        found = shutil.which(adb or "adb")
        if found is None:
            raise AdbError(
                f"no adb client at {adb!r}"
                if adb
                else "no adb client in the PATH; install it with: apt install adb"
            )
        self.serial = serial
        self._adb = found
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._starts_server = starts_server
        self._there: set[str] = set()
        self._silent = False  # it did not answer: its connection may be broken

    def ready(self) -> None:
        """Make sure that the phone answers; if it does not, reconnect and wait for it.

        Raises:
            DeviceLostError: it did not return in time; the message has what adb said.
        """
        self._server()
        until = time.monotonic() + (self._reconnect_s or RECONNECT_S)
        if self._silent:
            self._hang_up()
        state = self._state()
        while state != "device":
            left = until - time.monotonic()
            if left <= 0:
                raise DeviceLostError(f"{self.serial}: {_remedy(state)}")
            self._there.clear()
            if ":" in self.serial:
                if "offline" in state:
                    self._hang_up()
                self._client(["connect", self.serial], min(left, self._timeout_s))
            elif "offline" in state:
                self._client(["reconnect", "offline"], self._timeout_s)
            if self._state() != "device":
                # This returns as soon as the phone appears, so that no time is lost.
                self._client(["-s", self.serial, "wait-for-device"], min(left, 2.0))
            state = self._state()

    def shell(self, script: str, *, timeout_s: float = 0.0, guarded: bool = False) -> CommandOutput:
        """Run a script in the phone's shell.

        Args:
            script: for the POSIX shell; the caller quotes values from elsewhere.
            timeout_s: how long it may take; 0: as long as a short command.
            guarded: keep its standard input open, so that it can notice when this process ends.

        Raises:
            DeviceLostError: the phone went away before the script ended.
            DeviceTimeoutError: it did not end in time. The client is ended; the script may
                continue unless it watches its input.
            AdbError: it printed more than 4 MiB.
        """
        self._server()
        mark = f"latfarm-{secrets.token_hex(8)}"
        wrapped = f"( {script}\n) 2>&1; code=$?; echo; echo {mark} $code"
        limit_s = timeout_s or self._timeout_s
        code, out, err = self._client(["-s", self.serial, "shell", wrapped], limit_s, open=guarded)
        text = out.replace("\r\n", "\n")  # before Android 7 there is a terminal in between
        begin = text.rfind(f"\n{mark} ")
        end = re.fullmatch(rf"\n{mark} (\d{{1,3}})\s*", text[begin:]) if begin >= 0 else None
        if end:
            return CommandOutput(int(end[1]), text[:begin])
        if code is None:
            self._silent = True
            raise DeviceTimeoutError(f"{self.serial}: no answer within {limit_s:.0f} s")
        self._there.clear()
        said = _line(err or text[-_SHOWN:]) or f"the connection ended (adb: exit status {code})"
        raise DeviceLostError(f"{self.serial}: {_remedy(said)}")

    def push(self, source: Path, folder: str, name: str, sha256: str = "") -> str:
        """Put a file on the phone, in a folder named by its hash; gives its path there.

        It is copied only if it is not there yet. It gets its final name after the phone's own
        sha256sum has confirmed its hash, so that an incomplete copy is never used. All files are
        executable.

        Args:
            source: the file on this machine.
            folder: the folder below `ROOT`.
            name: name of the file on the phone.
            sha256: the hash that the file must have; empty: any.

        Raises:
            AdbError: the file is missing or has another hash, on this machine or on the phone.
            DeviceLostError, DeviceFullError, DeviceTimeoutError: as their docstrings say.
        """
        digest = file_sha256(source)
        if sha256 and digest != sha256:
            raise AdbError(f"{source}: its sha256 is {digest}, configured is {sha256}")
        parent = f"{ROOT}/{folder}/{digest}"
        target = f"{parent}/{name}"
        quoted = shlex.quote(target)
        # The time of the folder tells when its file was used last.
        touch = f"test -f {quoted} && touch {shlex.quote(parent)}"
        if target in self._there:
            if self.shell(touch).code == 0:
                return target
            self._there.discard(target)
        copy = f"{parent}/.{name}.part"
        part = shlex.quote(copy)
        check = f'sum=$(sha256sum %s) && test "${{sum%%%% *}}" = {digest}'
        if self.shell(f"mkdir -p {shlex.quote(parent)} && {touch} && {check % quoted}").code != 0:
            self._copy(source, copy)
            moved = self.shell(f"{check % part} && chmod 755 {part} && mv -f {part} {quoted}")
            if moved.code != 0:
                self.shell(f"rm -f {part}")
                raise AdbError(f"{self.serial}: {source.name} arrived damaged: {_line(moved.text)}")
        self._there.add(target)
        return target

    def _hang_up(self) -> None:
        """Close the connection, so that the next command makes a new one."""
        self._silent = False
        if ":" in self.serial:
            self._client(["disconnect", self.serial], self._timeout_s)
        else:
            self._client(["-s", self.serial, "reconnect"], self._timeout_s)

    def _copy(self, source: Path, target: str) -> None:
        limit_s = max(self._timeout_s, source.stat().st_size / 1e6)  # 1 MB/s: a bad cable
        command = ["-s", self.serial, "push", str(source), target]
        code, out, err = self._client(command, limit_s)
        if code == 0:
            return
        with contextlib.suppress(AdbError):
            self.shell(f"rm -f {shlex.quote(target)}")
        said = _line(err + " " + out)
        if any(sign in said.lower() for sign in _FULL):
            raise DeviceFullError(f"{self.serial}: no space left for {source.name}: {said}")
        if code is None:
            raise DeviceTimeoutError(f"{self.serial}: {source.name} not copied in {limit_s:.0f} s")
        if self._state() != "device":
            raise DeviceLostError(f"{self.serial}: {_remedy(said)}")
        raise AdbError(f"{self.serial}: {source.name} cannot be copied: {said}")

    @staticmethod
    def server_port() -> int:
        """The TCP port of the adb server that clients of this process connect to."""
        where = os.environ.get("ADB_SERVER_SOCKET", "").rpartition(":")[2]
        port = where or os.environ.get("ANDROID_ADB_SERVER_PORT", "")
        return int(port) if port.isdigit() and int(port) < 1 << 16 else _SERVER_PORT

    def _state(self) -> str:
        """The state of the phone as adb tells it; "device": it can be used."""
        code, out, err = self._client(["-s", self.serial, "get-state"], self._timeout_s)
        if code is None:
            return "adb does not answer"
        return out.strip() if code == 0 else _line(err or out)

    def _server(self) -> None:
        """Make sure that an adb server runs; start it if that is allowed."""
        if os.environ.get("ADB_SERVER_SOCKET"):
            return  # the server runs elsewhere
        port = os.environ.get("ANDROID_ADB_SERVER_PORT") or str(_SERVER_PORT)
        if not port.isdigit():
            raise AdbError(f"ANDROID_ADB_SERVER_PORT is {port[:32]!r}, not a port")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 2.0):
            return
        if not self._starts_server:
            raise DeviceLostError(f"{self.serial}: no adb server on port {port}")
        # The server keeps the output that it was started with open, so a pipe would never end.
        with tempfile.TemporaryFile() as file:
            try:
                done = subprocess.run(
                    [self._adb, "start-server"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    timeout=self._timeout_s,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise DeviceLostError(f"no adb server can be started: {error}") from error
            if done.returncode:
                file.seek(0)
                said = _line(file.read(4096).decode(errors="replace"))
                raise DeviceLostError(f"no adb server can be started: {said}")

    def _client(
        self, arguments: list[str], limit_s: float, *, open: bool = False
    ) -> tuple[int | None, str, str]:
        """Run the client: its exit code (None: timed out), standard output and standard error."""
        try:
            done = converse([self._adb, *arguments], limit_s, LIMIT_BYTES, keep_input=open)
        except OutputTooLargeError as error:
            raise AdbError(f"{self.serial}: printed more than {LIMIT_BYTES >> 20} MiB") from error
        except OSError as error:
            raise AdbError(f"{self._adb} cannot be run: {error}") from error
        return done.code, done.out.decode(errors="replace"), done.err.decode(errors="replace")


def file_sha256(path: Path) -> str:
    """Hash of a file, as hex.

    Raises:
        AdbError: it cannot be read.
    """
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                found.update(piece)
    except OSError as error:
        raise AdbError(f"{path} cannot be read: {error.strerror or error}") from error
    return found.hexdigest()


def _line(text: str) -> str:
    """The text as one short line, without the prefixes of the client."""
    words = " ".join(text.split())
    return re.sub(r"^(adb: )?(error: )?", "", words)[:_SHOWN]


def _remedy(said: str) -> str:
    """What adb said, and what to do about it."""
    if "unauthorized" in said:
        return f"{said.split('.')[0]}: unlock the phone and allow this host's key"
    if "offline" in said:
        return f"{said}: replug it, or switch USB debugging off and on"
    if "not found" in said:
        return f"{said}: is it plugged in, with USB debugging on? (see: adb devices)"
    return said
