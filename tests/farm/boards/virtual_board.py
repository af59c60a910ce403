"""A virtual board: Debian's systemd, sshd and network in a container that boots like a real board.

    with VirtualBoard("jetson-1") as board:
        board.push(wheels, "/opt/wheels")
        board.run("systemctl restart latfarm-agent")
        board.cut_off()

The board has its own host name, machine id, host key, disk, network namespace and control group. A
test can reboot it from inside and outside, switch it off, freeze it and cut it off. `run` and
`push` work without the network, like a serial line; `ssh` uses the network. The kernel and the
clock are the host's.

A virtual board needs root and the programs that `host.lacks` names. When the process that made a
board ends, the board ends, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.farm.boards import container, emulation, rootfs
from tests.farm.boards.cgroups import Cgroups
from tests.farm.boards.container import Container
from tests.farm.boards.host import NATIVE, HostError, command
from tests.farm.boards.patience import scaled_s
from tests.farm.boards.rack import Rack, make_key

_ENTER = 'for file in $CGROUPS; do echo 0 >"$file"; done; exec "$@"'
"""Shell script that joins the board's control groups and then executes its arguments."""

_ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
"""Environment of the commands that `run` executes on a board."""


class BoardError(HostError):
    """A board is off or did not boot, or its command failed; the message ends with the output."""


class VirtualBoard:
    """One board. It is on while its `with` block lasts. Only one thread may use it at a time.

    Args:
        name: host name of the board.
        arch: "amd64" or "arm64". An architecture that is not the host's is emulated, which is about
            ten times slower.
        packages: Debian packages on the board in addition to `rootfs.BASE`.
        rack: the rack that the board shares with other boards; None: the board gets its own rack.
        memory_bytes: limit of the memory of all its processes together; None: no limit.
        boot_timeout_s: a boot that takes longer than this on a quiet host has failed; as all
            limits, it is longer on a busy host.

    Raises:
        HostError: the host lacks something, or a package cannot be fetched.
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
            self._personalise()
        except BaseException:
            if self._own_rack:
                self.rack.close()
            raise
        self._container = Container(self._folder, tree, self._cable.path, self._cgroups.joins)
        self._listener = threading.Thread(target=self._listen, name=f"board-{name}", daemon=True)
        self._listener.start()

    @property
    def address(self) -> str:
        """IP address of the board; the host reaches it there."""
        return self._cable.address

    @property
    def disk(self) -> Path:
        """Folder on the host with the files in which the board's disk differs from its tree."""
        return self._folder / "upper"

    @property
    def console(self) -> str:
        """Everything that the board has printed on its console since it was made."""
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
        """Switch the board on, and wait until all its services run. The disk keeps its files.

        Raises:
            BoardError: the board is on already, or does not boot.
        """
        if self._process is not None:
            raise BoardError(f"{self.name} is on already")
        boots = self.boots
        self._process = self._container.launch("--boot")
        self.wait_for_boot(boots + 1)

    def try_out(self) -> str:
        """Run one program in the container without booting it.

        This tells a host that cannot run containers from a board that does not boot.

        Returns:
            Why the host cannot run the program; empty if it can.
        """
        process = self._container.launch("--as-pid2", "/bin/true")
        try:
            code = process.wait(scaled_s(self._boot_timeout_s))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return self.console.strip()[-1000:] or f"exit status {code}" if code else ""

    def wait_for_boot(self, boots: int) -> None:
        """Wait until the board has booted `boots` times since it was made.

        Raises:
            BoardError: the board does not boot, or takes longer than `boot_timeout_s`.
        """
        deadline = time.monotonic() + scaled_s(self._boot_timeout_s)
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
        """Run a command as root on the board, without using the network.

        Args:
            command: text for the board's shell, or a list of arguments.
            check: whether an exit status other than 0 raises an error.
            input: standard input of the command; None: it is empty.
            timeout_s: limit of the command's duration on a quiet host. A command that exceeds it
                keeps running.

        Raises:
            BoardError: the board is off, or the command failed and `check` is true.
            subprocess.TimeoutExpired: the command took longer than `timeout_s`.
        """
        arguments = ["sh", "-c", command] if isinstance(command, str) else list(command)
        enter = ["nsenter", f"--target={self._leader()}", "--mount", "--uts", "--ipc", "--net"]
        done = subprocess.run(
            ["sh", "-c", _ENTER, "enter", *enter, "--pid", "--wd", "--", *arguments],
            input="" if input is None else input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=scaled_s(timeout_s),
            env=dict(_ENVIRONMENT, CGROUPS=" ".join(map(str, self._cgroups.guests))),
        )
        if check and done.returncode:
            said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
            raise BoardError(
                f"{self.name}: {shlex.join(arguments)}: exit status {done.returncode}:\n{said}"
            )
        return done

    def push(self, source: Path, target: str) -> None:
        """Copy a file, or the content of a folder, to the board. The copies belong to root.

        Args:
            source: path on the host.
            target: absolute path of the copy on the board. Missing parent folders are made. A file
                that exists is replaced; a folder that exists keeps its other files.
        """
        resolved = self.run(["readlink", "-m", target]).stdout.strip()
        place = self._inside(resolved)
        place.parent.mkdir(parents=True, exist_ok=True)
        copy = ("cp", "--archive", "-H", "--no-preserve=ownership", "--no-target-directory")
        command(*copy, source, place, timeout_s=300.0)

    def write(self, target: str, text: str, mode: int = 0o644) -> None:
        """Write a text file on the board; missing parent folders are made."""
        place = self._inside(self.run(["readlink", "-m", target]).stdout.strip())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def pull(self, source: str, target: Path) -> None:
        """Copy a file or folder from the board to the host."""
        place = self._inside(self.run(["readlink", "-e", source]).stdout.strip())
        copy = ("cp", "--archive", "--no-preserve=ownership", "--no-target-directory")
        command(*copy, place, target, timeout_s=300.0)

    def ssh(
        self, *remote: str, check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the board over the network, with `ssh_options`.

        Raises:
            BoardError: `check` is true, and the command failed or the board cannot be reached.
            subprocess.TimeoutExpired: the command took longer than `timeout_s`.
        """
        done = subprocess.run(
            ["ssh", *self.ssh_options, f"root@{self.address}", "--", *remote],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=scaled_s(timeout_s),
        )
        if check and done.returncode:
            raise BoardError(f"{self.name}: ssh: exit status {done.returncode}: {done.stderr}")
        return done

    @property
    def ssh_options(self) -> list[str]:
        """Options of ssh, scp and Ansible that name the rack's key and the board's host key."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(round(scaled_s(5.0))),
            "GlobalKnownHostsFile": "/dev/null",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(self.rack.key),
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.rack.known_hosts),
        }
        return ["-F", "/dev/null", *(f"-o{name}={value}" for name, value in options.items())]

    def reboot(self) -> None:
        """Reboot the board from inside, and wait until all its services run again."""
        boots = self.boots
        # The reboot ends the shell that asked for it, so its exit status has no meaning.
        self.run("systemctl reboot", check=False)
        self.wait_for_boot(boots + 1)

    def kill(self) -> None:
        """Switch the board off at once, as a power cut does. `start` boots it again. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(HostError):
            self._cgroups.freeze(False)
        container.kill(process)

    def cut_off(self) -> None:
        """Pull the network cable: the board sees its link go down."""
        self._cable.pull()

    def restore(self) -> None:
        """Undo `cut_off` and `filter`: the network works again."""
        self._cable.plug()

    def filter(self, rule: str) -> None:
        """Apply a rule of nftables to the board's traffic in both directions, until `restore`.

        Examples of rules: `drop`, `tcp dport 50051 reject with tcp reset`,
        `numgen random mod 10 < 3 drop`.
        """
        self._cable.filter(rule)

    def freeze(self) -> None:
        """Stop all processes of the board, until `thaw`; its kernel still answers pings.

        Raises:
            HostError: the host cannot freeze control groups.
        """
        self._cgroups.freeze(True)

    def thaw(self) -> None:
        """Let the processes of the board run again, after `freeze`."""
        self._cgroups.freeze(False)

    def failed_units(self) -> list[str]:
        """Names of the systemd units of the board that have failed."""
        listed = self.run("systemctl list-units --failed --plain --no-legend").stdout
        return [line.split()[0] for line in listed.splitlines()]

    def close(self) -> None:
        """Switch the board off and remove its disk. Idempotent."""
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

    def _personalise(self) -> None:
        """Write the names and keys that only this board has to its disk."""
        etc = self.disk / "etc"
        ssh = self.disk / "root" / ".ssh"
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
        """Count the boots: systemd on the board sends a notice when each one is complete."""
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
        """The process id, on the host, of the board's process 1.

        Raises:
            BoardError: the board is off.
        """
        pid = None if self._process is None else container.first_process(self._process)
        if pid is None:
            raise BoardError(f"{self.name} is off")
        return pid

    def _inside(self, path: str) -> Path:
        """The path on the host of a file on the board; `path` holds no symbolic link."""
        return Path(f"/proc/{self._leader()}/root{path}")
