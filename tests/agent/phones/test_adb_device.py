"""The connection to a phone, through a double of the adb client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from latfarm_agent.phones import device as adb_device
from latfarm_agent.phones.device import (
    ROOT,
    AdbDevice,
    AdbError,
    DeviceFullError,
    DeviceLostError,
    DeviceTimeoutError,
)
from latfarm_agent.phones.process import OutputTooLargeError, converse
from tests.agent.phones.kit import SERIAL, FakePhone, sha256
from tests.ports import free_port


@pytest.fixture
def without_server(phone: FakePhone, monkeypatch: pytest.MonkeyPatch) -> FakePhone:
    """Return the phone, with a port for adb's server where no server runs."""
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free_port()))
    return phone


@pytest.fixture
def device(phone: FakePhone) -> AdbDevice:
    return AdbDevice(SERIAL, reconnect_s=0.3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "it's a file"
    path.write_bytes(bytes(range(256)) * 40)
    return path


def test_exit_codes_and_both_streams(device: AdbDevice) -> None:
    answer = device.shell("echo out; echo err >&2; exit 7")
    assert (answer.code, answer.text) == (7, "out\nerr\n")
    assert device.shell("true").code == 0
    assert device.shell("sh -c 'kill -9 $$'").code == 137


def test_a_script_cannot_forge_its_end(device: AdbDevice) -> None:
    answer = device.shell("echo; echo latfarm-0123456789abcdef 0; exit 3")
    assert answer.code == 3


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("absent", "is it plugged in"),
        ("offline", "replug it"),
        ("unauthorized", "allow this host's key"),
    ],
)
def test_a_phone_that_is_not_there(
    phone: FakePhone, device: AdbDevice, state: str, says: str
) -> None:
    phone.state(state)
    with pytest.raises(DeviceLostError, match=says):
        device.ready()
    with pytest.raises(DeviceLostError, match=says):
        device.shell("true")
    assert DeviceLostError.code == "DEVICE_LOST"


@pytest.mark.parametrize("state", ["absent", "offline"])
def test_reconnects(phone: FakePhone, state: str) -> None:
    device = AdbDevice(SERIAL, reconnect_s=60.0)
    phone.state(state)
    phone.switch("comes back")
    device.ready()
    assert device.shell("echo here").text == "here\n"


def test_a_phone_that_goes_away_in_the_middle(phone: FakePhone, device: AdbDevice) -> None:
    phone.switch("drops")
    with pytest.raises(DeviceLostError, match="connection ended"):
        device.shell("exec 3<&0; sleep 60 <&3", guarded=True)


def test_no_answer_in_time(phone: FakePhone, device: AdbDevice) -> None:
    """After a timeout the connection may be broken, so the next use reconnects once."""
    with pytest.raises(DeviceTimeoutError):
        device.shell("exec sleep 60", timeout_s=0.2)
    phone.log()
    device.ready()
    device.ready()
    assert [line.split()[2] for line in phone.log()] == ["reconnect", "get-state", "get-state"]


def test_no_end_of_output(device: AdbDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adb_device, "LIMIT_BYTES", 1 << 16)
    with pytest.raises(AdbError, match="printed more than"):
        device.shell("exec yes")


def test_guarded_scripts_can_tell_that_we_are_gone(device: AdbDevice) -> None:
    assert device.shell("read x; echo end of input").text == "end of input\n"
    with pytest.raises(DeviceTimeoutError):
        device.shell("read x; echo end of input", timeout_s=0.5, guarded=True)


def test_files_are_pushed_once(phone: FakePhone, device: AdbDevice, file: Path) -> None:
    target = device.push(file, "models", "model.bin", sha256(file))
    assert target == f"{ROOT}/models/{sha256(file)}/model.bin"
    copy = phone.folder / target.lstrip("/")
    assert copy.read_bytes() == file.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o755
    assert not list(copy.parent.glob(".*"))
    assert sum(" push " in line for line in phone.log()) == 1
    # Nobody copies the file again, not even another agent, as each first asks the phone for it.
    device.push(file, "models", "model.bin")
    AdbDevice(SERIAL).push(file, "models", "model.bin")
    assert not any(" push " in line for line in phone.log())


def test_a_damaged_copy_is_not_taken_for_the_file(
    phone: FakePhone, device: AdbDevice, file: Path
) -> None:
    target = phone.folder / device.push(file, "bin", "tool").lstrip("/")
    target.write_bytes(b"truncated")
    AdbDevice(SERIAL).push(file, "bin", "tool")
    assert target.read_bytes() == file.read_bytes()


def test_a_copy_that_arrives_damaged(phone: FakePhone, device: AdbDevice, file: Path) -> None:
    phone.switch("corrupt")
    with pytest.raises(AdbError, match="arrived damaged"):
        device.push(file, "bin", "tool")
    assert not phone.files("bin")
    phone.switch("corrupt", on=False)
    device.push(file, "bin", "tool")


def test_a_full_phone(phone: FakePhone, device: AdbDevice, file: Path) -> None:
    phone.switch("full")
    with pytest.raises(DeviceFullError, match="no space left"):
        device.push(file, "bin", "tool")
    assert DeviceFullError.code == "DISK_FULL"
    assert not phone.files("bin")


def test_the_checksum_is_verified_before(phone: FakePhone, device: AdbDevice, file: Path) -> None:
    with pytest.raises(AdbError, match="configured is 00000000"):
        device.push(file, "bin", "tool", "0" * 64)
    assert not phone.log()
    with pytest.raises(AdbError, match="cannot be read"):
        device.push(file.with_name("nowhere"), "bin", "tool")


@pytest.mark.parametrize("serial", ["", "a b", "-s", "x; reboot", "a" * 200])
def test_what_is_no_serial(phone: FakePhone, serial: str) -> None:
    with pytest.raises(AdbError, match="not a serial number"):
        AdbDevice(serial)


def test_without_a_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AdbError, match="install it with"):
        AdbDevice(SERIAL)
    with pytest.raises(AdbError, match="no adb client at"):
        AdbDevice(SERIAL, str(tmp_path / "adb"))


def test_a_worker_starts_no_server(
    without_server: FakePhone, device: AdbDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that a worker starts would end with it, and all other phones would be lost."""
    with pytest.raises(DeviceLostError, match="no adb server on port"):
        device.ready()
    assert not without_server.log()
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "many")
    with pytest.raises(AdbError, match="not a port"):
        device.ready()
    monkeypatch.setenv("ADB_SERVER_SOCKET", "tcp:elsewhere:5037")
    device.ready()


def test_a_server_that_cannot_be_started(without_server: FakePhone) -> None:
    with pytest.raises(DeviceLostError, match="no adb server can be started"):
        AdbDevice(SERIAL, starts_server=True).ready()
    assert without_server.log() == ["start-server"]


def test_converse() -> None:
    said = converse(["sh", "-c", "echo a; echo b >&2; exit 4"], 10.0, 1000)
    assert (said.code, said.out, said.err) == (4, b"a\n", b"b\n")
    assert converse(["sh", "-c", "exec >&- 2>&-; exec sleep 60"], 0.2, 1000).code is None
    with pytest.raises(OutputTooLargeError):
        converse(["yes"], 10.0, 1 << 17)
    with pytest.raises(OSError, match="nowhere"):
        converse(["/nowhere"], 1.0, 10)


def test_the_servers_side_imports_no_numpy() -> None:
    code = "import sys, latfarm_agent.bench.phone; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"
