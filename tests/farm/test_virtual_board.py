"""Virtual boards behave like real boards: they boot, reboot, and lose power, network and memory."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.farm.boards import cgroups, host, network, rootfs
from tests.farm.boards import rack as racks
from tests.farm.boards.host import HostError
from tests.farm.boards.rack import Rack, traces
from tests.farm.boards.virtual_board import BoardError, VirtualBoard

pytestmark = [pytest.mark.farm, pytest.mark.timeout(900)]
MakeBoard = Callable[..., VirtualBoard]
COUNTING = """[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo boot >>/var/counted'
[Install]
WantedBy=multi-user.target
"""
LEAVES_A_BOARD = """
import sys
import tempfile
from tests.farm.boards.rack import Rack
from tests.farm.boards.virtual_board import VirtualBoard
rack = Rack()
board = VirtualBoard("orphan", rack=rack)
board.start()
print(rack.name, board.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def board(rack: Rack) -> Iterator[VirtualBoard]:
    """One board for all tests that leave it in the state in which they found it."""
    with VirtualBoard("jetson-1", rack=rack) as board:
        yield board


def answers(board: VirtualBoard) -> bool:
    """Whether the board's sshd answers."""
    try:
        with socket.create_connection((board.address, 22), timeout=2.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


@pytest.mark.gate
def test_boots_with_all_services(board: VirtualBoard) -> None:
    assert board.run("hostname").stdout == "jetson-1\n"
    assert board.run("systemctl is-system-running").stdout == "running\n"
    assert board.failed_units() == []
    assert board.run("systemctl is-active ssh").stdout == "active\n"
    assert board.run("cat /proc/1/comm").stdout == "systemd\n"
    assert board.ssh("hostname; id -un").stdout == "jetson-1\nroot\n"
    links = board.run("ls /sys/class/net").stdout.split()
    assert sorted(links) == ["eth0", "lo"]
    # The board's default route leads to the host.
    route = board.run("ip route show default").stdout
    assert board.rack.address in route


def test_runs_commands(board: VirtualBoard) -> None:
    assert board.run("pwd; readlink /proc/self/cwd").stdout == "/\n/\n"
    assert board.run(["cat"], input="a line\n").stdout == "a line\n"
    assert board.run(["printf", "%s", "$HOME"]).stdout == "$HOME"
    assert board.run("echo $HOME $PATH").stdout.startswith("/root /usr/local/sbin:")
    bad = board.run("echo out; echo err >&2; exit 3", check=False)
    assert (bad.returncode, bad.stdout, bad.stderr) == (3, "out\n", "err\n")
    with pytest.raises(BoardError, match=r"jetson-1: sh -c .*exit status 3"):
        board.run("exit 3")
    with pytest.raises(subprocess.TimeoutExpired):
        board.run("sleep 60", timeout_s=0.2)
    own = board.run("cat /proc/self/cgroup").stdout
    assert f"{board.rack.name}-" in own  # the command is in the board's control group


def test_copies_files_to_and_from_the_board(board: VirtualBoard, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "script").write_text("#!/bin/sh\necho ran\n")
    (folder / "inner" / "script").chmod(0o755)
    (folder / "link").symlink_to("inner/script")
    os.chown(folder / "inner" / "script", 1234, 1234)
    board.push(folder, "/opt/pushed")
    assert board.run("/opt/pushed/inner/script; /opt/pushed/link").stdout == "ran\nran\n"
    assert board.run("stat -c %U /opt/pushed/inner/script").stdout == "root\n"
    (folder / "more").write_text("more")
    board.push(folder, "/opt/pushed")
    board.push(folder / "link", "/opt/pushed/copied")  # the file that it points to
    assert board.run("ls /opt/pushed; stat -c %F /opt/pushed/copied").stdout.split("\n")[:5] == [
        *("copied", "inner", "link", "more", "regular file"),
    ]
    # An absolute link on the board leads to a folder of the board, not of the host.
    board.run("mkdir -p /srv/real && ln -sfn /srv/real /srv/link")
    board.push(folder / "more", "/srv/link/deep/more")
    board.write("/srv/link/text", "written", 0o600)
    assert board.run("cat /srv/real/deep/more; stat -c %a /srv/real/text").stdout == "more600\n"
    assert not Path("/srv/real").exists()
    board.pull("/srv/link", tmp_path / "pulled")
    assert (tmp_path / "pulled" / "deep" / "more").read_text() == "more"
    board.run("rm -rf /srv/real /srv/link /opt/pushed")


@pytest.mark.gate
def test_reboots_and_keeps_its_disk(make_board: MakeBoard) -> None:
    board = make_board("tx2")
    board.write("/etc/systemd/system/count.service", COUNTING)
    board.run("systemctl enable -q count; touch /run/gone")
    board.reboot()
    assert board.boots == 2
    assert board.run("cat /var/counted; ls /run/gone", check=False).stdout == "boot\n"
    assert answers(board)
    # Over the network, as a playbook does; the connection breaks.
    board.ssh("systemctl", "reboot", check=False)
    board.wait_for_boot(3)
    assert board.run("cat /var/counted").stdout == "boot\nboot\n"


def test_loses_power(make_board: MakeBoard) -> None:
    board = make_board("nano")
    board.run("touch /run/gone; echo kept >/var/kept; sync")
    identity = board.run("cat /etc/machine-id").stdout
    board.kill()
    assert not answers(board)
    with pytest.raises(BoardError, match="nano is off"):
        board.run("true")
    board.kill()  # a second call changes nothing
    board.start()
    assert answers(board)
    with pytest.raises(BoardError, match="nano is on already"):
        board.start()
    assert board.run("cat /var/kept; ls /run/gone", check=False).stdout == "kept\n"
    assert board.run("cat /etc/machine-id").stdout == identity
    board.run("systemctl poweroff", check=False)
    with pytest.raises(BoardError, match="does not boot"):
        board.wait_for_boot(3)


@pytest.mark.gate
def test_loses_its_network(board: VirtualBoard) -> None:
    assert answers(board)
    try:
        board.cut_off()
        assert not answers(board)
        assert board.run("cat /sys/class/net/eth0/carrier").stdout == "0\n"
        board.restore()
        assert answers(board)
        board.filter("drop")
        assert not answers(board)
        assert board.run("cat /sys/class/net/eth0/carrier").stdout == "1\n"
        board.restore()
        assert answers(board)
        board.filter("tcp dport 22 reject with tcp reset")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((board.address, 22), timeout=2.0)
        with pytest.raises(HostError, match="syntax error"):
            board.filter("no such rule")
    finally:
        board.restore()
    assert answers(board)


def test_a_frozen_board_does_not_answer(board: VirtualBoard) -> None:
    board.freeze()
    try:
        # The kernel still accepts the connection, but sshd does not answer.
        with socket.create_connection((board.address, 22), timeout=2.0) as connection:
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.recv(4)
    finally:
        board.thaw()
    assert answers(board)


def test_a_frozen_board_can_be_switched_off(make_board: MakeBoard) -> None:
    board = make_board("stuck")
    board.freeze()
    board.kill()
    board.start()
    assert answers(board)


def test_runs_out_of_memory(make_board: MakeBoard) -> None:
    if not cgroups.can_limit_memory():
        pytest.skip("no control group here bounds memory")
    board = make_board("small", memory_bytes=256 << 20)
    greedy = "python3 -c 'print(len(bytearray({} << 20)))'"
    assert board.run(greedy.format(64)).stdout == f"{64 << 20}\n"
    assert board.run(greedy.format(1024), check=False).returncode in (-9, 137)
    assert board.run("systemctl is-system-running").stdout == "running\n"
    assert answers(board)


def test_a_board_of_another_architecture_boots(arm64_rack: Rack) -> None:
    with VirtualBoard("imx93", "arm64", rack=arm64_rack) as board:
        assert board.run("uname -m; dpkg --print-architecture").stdout == "aarch64\narm64\n"
        assert board.run("systemctl is-system-running").stdout == "running\n"
        assert board.failed_units() == []
        board.reboot()
        assert board.ssh("hostname").stdout == "imx93\n"


def test_eight_boards(rack: Rack) -> None:
    with ExitStack() as ends, ThreadPoolExecutor(8) as pool:
        boards = [VirtualBoard(f"board-{i}", rack=rack) for i in range(8)]
        for board in boards:
            ends.callback(board.close)
        list(pool.map(VirtualBoard.start, boards))
        assert len({board.address for board in boards}) == 8
        names = list(pool.map(lambda board: board.ssh("hostname").stdout.strip(), boards))
        assert names == [f"board-{i}" for i in range(8)]
        unique = {board.run("cat /etc/machine-id").stdout for board in boards}
        keys = {board.run("cat /etc/ssh/ssh_host_ed25519_key.pub").stdout for board in boards}
        assert (len(unique), len(keys)) == (8, 8)
        # A board that is off or cut off does not affect its neighbours.
        boards[0].cut_off()
        boards[1].kill()
        assert [answers(board) for board in boards[:4]] == [False, False, True, True]
        boards[2].write("/srv/mine", "mine")
        assert boards[3].run("ls /srv/mine", check=False).returncode != 0


@pytest.mark.gate
def test_a_closed_rack_leaves_nothing_behind(rack: Rack) -> None:
    own = Rack()
    assert own.address != rack.address
    with own, VirtualBoard("short", rack=own) as board:
        assert answers(board)
        assert traces(own.name)
    assert traces(own.name) == []
    with VirtualBoard("alone") as board:  # with a rack of its own
        assert traces(board.rack.name)
    assert traces(board.rack.name) == []


def test_what_a_killed_process_left_is_removed(rack: Rack, board: VirtualBoard) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_BOARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    assert child.stdin is not None
    with child, child.stdin, child.stdout:
        name, address = child.stdout.readline().split()
        with socket.create_connection((address, 22), timeout=5.0):
            pass
        # Without this lock, another process could remove the rack first.
        with rootfs.locked(host.work_dir() / ".lock"):
            child.send_signal(signal.SIGKILL)
            child.wait()
            assert traces(name)
            assert name in racks.reap()
    assert traces(name) == []
    assert traces(rack.name)
    assert answers(board)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short path: the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="lf") as folder:
        yield Path(folder)


def test_disks_are_memory_where_they_cannot_be_layers(
    rack: Rack, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lower", "upper", "work", "mount"):
        (short_path / name).mkdir()
    layers = f"lowerdir={short_path}/lower,upperdir={short_path}/upper,workdir={short_path}/work"
    folder = short_path / "mount"
    host.command("mount", "-t", "overlay", "-o", layers, "none", folder)
    try:
        monkeypatch.setenv(host.WORK_VARIABLE, str(folder))
        with VirtualBoard("layered") as board:
            assert answers(board)
            disks = board.rack.disks
            assert f"tmpfs {disks} tmpfs" in Path("/proc/self/mounts").read_text()
            board.run("echo kept >/var/kept")
            board.kill()
            board.start()
            assert board.run("cat /var/kept").stdout == "kept\n"
        assert traces(board.rack.name) == []
    finally:
        host.command("umount", folder)


def test_a_board_that_does_not_boot_raises_an_error(rack: Rack) -> None:
    board = VirtualBoard("broken", rack=rack, boot_timeout_s=60.0)
    try:
        assert board.try_out() == ""
        (board.disk / "usr" / "lib" / "systemd").mkdir(parents=True)
        (board.disk / "usr" / "lib" / "systemd" / "systemd").write_text("no program")
        with pytest.raises(BoardError, match=r"broken does not boot"):
            board.start()
    finally:
        board.close()


def test_a_host_without_root_or_programs_is_reported(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.lacks() == ""
    monkeypatch.setenv("PATH", "/nowhere")
    assert "systemd-container" in host.lacks()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert host.lacks() == "virtual boards need root"


def test_each_choice_of_packages_has_its_own_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make(packed: Path, arch: str, packages: Sequence[str], suite: str) -> None:
        made.append(packed.name)
        packed.touch()

    monkeypatch.setenv(host.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(rootfs, "_make", make)
    first = rootfs.ensure("amd64", ("a", "b"))
    assert rootfs.ensure("amd64", ("b", "a", "systemd")) == first
    others = {
        rootfs.ensure("arm64", ("a", "b")),
        rootfs.ensure("amd64"),
        rootfs.ensure("amd64", ("a",)),
    }
    assert len(others | {first}) == 4
    assert len(made) == 4
    assert first.parent == tmp_path / "cache" / "rootfs"


def test_networks_do_not_overlap(rack: Rack) -> None:
    name = secrets.token_hex(3)
    other = network.Bridge(name)
    try:
        assert other.address.rsplit(".", 1)[0] != rack.address.rsplit(".", 1)[0]
    finally:
        other.remove()
    assert traces(name) == []
