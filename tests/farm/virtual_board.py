"""A board that is none: Debian's systemd, sshd and network in a container, booted like a real one.

    with VirtualBoard("jetson-1") as board:
        board.push(wheels, "/opt/wheels")
        board.run("systemctl restart latfarm-agent")
        board.cut_off()

It has its own host name, machine id, host key, disk, network namespace and control group; it can be
rebooted from inside and outside, unplugged, frozen and cut off. `run` and `push` go around the
network, like a serial line; `ssh` goes through it. Kernel and clock are the host's.

Needs root and what `host.lacks` names. A board dies with the process that made it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.farm import emulation, rootfs
from tests.farm.cgroups import Cgroups
from tests.farm.host import NATIVE, HostError, command
from tests.farm.rack import Rack, make_key

_SCRIPT = Path(__file__).with_name("board.sh")
_ENTER = 'for file in $CGROUPS; do echo 0 >"$file"; done; exec "$@"'
"""Joins a board's groups, then becomes the command."""

_ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


class BoardError(HostError):
    """A board is off, or did not boot; the message ends with what its console said last."""


class VirtualBoard:
    """One board; on while its context lasts. Used by one thread at a time.

    Args:
        name: its host name.
        arch: "amd64" or "arm64"; another than the host's is emulated, ten times slower.
        packages: Debian packages that it has beyond `rootfs.BASE`.
        rack: where it stands, shared with other boards; None: a rack of its own.
        memory_bytes: what the kernel gives its processes in sum; None: all there is.
        boot_timeout_s: a boot that takes longer has failed.

    Raises:
        HostError: the host lacks something, or a package cannot be had.
    """

    def __init__(
        self,
        name: str,
        arch: str = NATIVE,
        packages: Sequence[str] = (),
        *,
        rack: Rack | None = None,
        memory_bytes: int | None = None,
        boot_timeout_s: float = 180.0,
    ) -> None:
        self.name = name
        self.arch = arch
        self.boots = 0
        self._boot_timeout_s = boot_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = threading.Condition()
        if arch != NATIVE:
            emulation.enable(arch)
        self._own_rack = rack is None
        self.rack = rack or Rack()
        try:
            tree = rootfs.tree(arch, packages)
            self._cable = self.rack.cable()
            self._folder = self.rack.disks / self._cable.namespace
            for folder in ("upper", "work", "root"):
                (self._folder / folder).mkdir(parents=True)
            self._cgroups = Cgroups(self._cable.namespace)
            if memory_bytes is not None:
                self._cgroups.limit_memory(memory_bytes)
            self._notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._notices.bind(str(self._folder / "notify"))
            self._personalise(tree)
        except BaseException:
            if self._own_rack:
                self.rack.close()
            raise
        self._tree = tree
        self._listener = threading.Thread(target=self._listen, name=f"board-{name}", daemon=True)
        self._listener.start()

    @property
    def address(self) -> str:
        """Where the host reaches it."""
        return self._cable.address

    @property
    def console(self) -> str:
        """What it has printed since it was made."""
        path = self._folder / "console"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> VirtualBoard:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Switch it on; returns when all its services run. Its disk is as it was.

        Raises:
            BoardError: it does not boot.
        """
        if self._process is not None:
            raise BoardError(f"{self.name} is on already")
        boots = self.boots
        self._process = self._launch("--boot")
        self.wait_for_boot(boots + 1)

    def try_out(self) -> str:
        """Why this host cannot run even one program in such a board; empty if it can.

        Tells a host without the means from a board that does not boot.
        """
        process = self._launch("--as-pid2", "/bin/true")
        try:
            code = process.wait(self._boot_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return self.console.strip()[-1000:] or f"exit status {code}" if code else ""

    def wait_for_boot(self, boots: int) -> None:
        """Wait until it has booted so many times since it was made (see `boots`).

        Raises:
            BoardError: it does not.
        """
        deadline = time.monotonic() + self._boot_timeout_s
        with self._changed:
            while self.boots < boots:
                left = deadline - time.monotonic()
                if left <= 0 or self._process is None or self._process.poll() is not None:
                    raise BoardError(f"{self.name} does not boot:\n{self.console[-3000:]}")
                self._changed.wait(min(left, 1.0))

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        input: str | None = None,
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the board, around the network.

        Args:
            command: for its shell, or as arguments.
            check: whether a failure raises.
            input: what it reads; None: nothing.
            timeout_s: then it raises, and the command is left to itself.

        Raises:
            BoardError: the board is off, or with `check` the command failed.
            subprocess.TimeoutExpired: it took too long.
        """
        arguments = ["sh", "-c", command] if isinstance(command, str) else list(command)
        enter = ["nsenter", f"--target={self._leader()}", "--mount", "--uts", "--ipc", "--net"]
        done = subprocess.run(
            ["sh", "-c", _ENTER, "enter", *enter, "--pid", "--wd", "--", *arguments],
            input="" if input is None else input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=dict(_ENVIRONMENT, CGROUPS=" ".join(map(str, self._cgroups.guests))),
        )
        if check and done.returncode:
            said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
            raise BoardError(
                f"{self.name}: {shlex.join(arguments)}: exit status {done.returncode}:\n{said}"
            )
        return done

    def push(self, source: Path, target: str) -> None:
        """Copy a file or what is in a folder to the board, where it belongs to root.

        Args:
            source: on the host.
            target: absolute path of the copy; its folder is made, what is there is replaced or, a
                folder, added to.
        """
        resolved = self.run(["readlink", "-m", target]).stdout.strip()
        place = self._inside(resolved)
        place.parent.mkdir(parents=True, exist_ok=True)
        copy = ("cp", "--archive", "-H", "--no-preserve=ownership", "--no-target-directory")
        command(*copy, source, place, timeout_s=300.0)

    def write(self, target: str, text: str, mode: int = 0o644) -> None:
        """Write a text file on the board; its folder is made."""
        place = self._inside(self.run(["readlink", "-m", target]).stdout.strip())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def pull(self, source: str, target: Path) -> None:
        """Copy a file or folder of the board to the host."""
        place = self._inside(self.run(["readlink", "-e", source]).stdout.strip())
        copy = ("cp", "--archive", "--no-preserve=ownership", "--no-target-directory")
        command(*copy, place, target, timeout_s=300.0)

    def ssh(
        self, *remote: str, check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the board through the network; see `ssh_options`.

        Raises:
            BoardError: with `check`, it failed or cannot be reached.
            subprocess.TimeoutExpired: it took too long.
        """
        done = subprocess.run(
            ["ssh", *self.ssh_options, f"root@{self.address}", "--", *remote],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise BoardError(f"{self.name}: ssh: exit status {done.returncode}: {done.stderr}")
        return done

    @property
    def ssh_options(self) -> list[str]:
        """Options for ssh, scp and ansible: the rack's key, and the board's known one."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "5",
            "GlobalKnownHostsFile": "/dev/null",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(self.rack.key),
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.rack.known_hosts),
        }
        return ["-F", "/dev/null", *(f"-o{name}={value}" for name, value in options.items())]

    def reboot(self) -> None:
        """Reboot it from inside; returns when all its services run again."""
        boots = self.boots
        # The board takes the shell that asks down with it: how that ends says nothing.
        self.run("systemctl reboot", check=False)
        self.wait_for_boot(boots + 1)

    def kill(self) -> None:
        """Pull the plug: nothing in it gets to write or say another word. `start` boots it again.

        Idempotent.
        """
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(HostError):
            self._cgroups.freeze(False)
        # Process 1 of its namespace, not the one that waits for it: only then is `wait` enough.
        for pid in _children(process.pid) or [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def cut_off(self) -> None:
        """Pull the network cable."""
        self._cable.pull()

    def restore(self) -> None:
        """Put the network right again, after `cut_off` and `filter`."""
        self._cable.plug()

    def filter(self, rule: str) -> None:
        """Disturb its traffic until `restore`: one rule of nftables, both ways.

        For instance `drop`, `tcp dport 50051 reject with tcp reset`,
        `numgen random mod 10 < 3 drop`.
        """
        self._cable.filter(rule)

    def freeze(self) -> None:
        """Stop everything in it: its network answers pings, nothing else does.

        Raises:
            HostError: the host cannot.
        """
        self._cgroups.freeze(True)

    def thaw(self) -> None:
        """Let it go on."""
        self._cgroups.freeze(False)

    def failed_units(self) -> list[str]:
        """Names of the systemd units that failed."""
        listed = self.run("systemctl list-units --failed --plain --no-legend").stdout
        return [line.split()[0] for line in listed.splitlines()]

    def close(self) -> None:
        """Switch it off and forget its disk. Idempotent."""
        self.kill()
        with contextlib.suppress(OSError):
            self._notices.shutdown(socket.SHUT_RDWR)
        self._listener.join()
        self._notices.close()
        self._cgroups.remove()
        self._cable.remove()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._own_rack:
            self.rack.close()

    def _launch(self, *what: str) -> subprocess.Popen[bytes]:
        """Start its supervisor, with the last arguments of nspawn."""
        environment = dict(
            os.environ,
            LOWER=str(self._tree),
            UPPER=str(self._folder / "upper"),
            WORK=str(self._folder / "work"),
            ROOT=str(self._folder / "root"),
            NETNS=str(self._cable.path),
            CGROUPS=" ".join(map(str, self._cgroups.joins)),
            NOTIFY_SOCKET=str(self._folder / "notify"),
        )
        alone = ("unshare", "--mount", "--propagation=slave", "--pid", "--fork", "--mount-proc")
        with (self._folder / "console").open("ab") as console:
            return subprocess.Popen(
                [*alone, "--kill-child=SIGKILL", "bash", str(_SCRIPT), *what],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                env=environment,
            )

    def _personalise(self, tree: Path) -> None:
        """Write to its disk what tells it from the other boards of its tree."""
        etc = self._folder / "upper" / "etc"
        ssh = self._folder / "upper" / "root" / ".ssh"
        (etc / "ssh").mkdir(parents=True)
        ssh.mkdir(parents=True)
        for folder, mode in ((etc, 0o755), (etc / "ssh", 0o755), (ssh.parent, 0o700), (ssh, 0o700)):
            folder.chmod(mode)
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost {self.name}\n")
        unique = hashlib.sha256(f"{self.rack.name}/{self._cable.namespace}".encode()).hexdigest()
        (etc / "machine-id").write_text(f"{unique[:32]}\n")
        host_key = etc / "ssh" / "ssh_host_ed25519_key"
        make_key(host_key)
        self.rack.knows(self.address, host_key.with_suffix(".pub").read_text().strip())
        (ssh / "authorized_keys").write_text(self.rack.key.with_suffix(".pub").read_text())

    def _listen(self) -> None:
        """Count its boots, as systemd in it tells of them."""
        while True:
            try:
                notice = self._notices.recv(4096)
            except OSError:
                return
            if not notice:
                return
            if b"READY=1" in notice.split(b"\n"):
                with self._changed:
                    self.boots += 1
                    self._changed.notify_all()

    def _leader(self) -> int:
        """Pid of its process 1, as the host counts.

        Raises:
            BoardError: there is none now.
        """
        ahead = [self._process.pid] if self._process is not None else []
        while ahead:
            pid = ahead.pop()
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                spaces = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                # Its number on the host, in our namespace of process ids, and in the board's.
                if len(spaces.split()) == 4 and spaces.split()[3] == "1":
                    return pid
                ahead += _children(pid)
        raise BoardError(f"{self.name} is off")

    def _inside(self, path: str) -> Path:
        """The host's name of a resolved path on the board."""
        return Path(f"/proc/{self._leader()}/root{path}")


def _children(pid: int) -> list[int]:
    """Pids of a process's children; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
