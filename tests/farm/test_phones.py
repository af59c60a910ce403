"""The agent measures on virtual phones over adb, with Android's own daemon and real binaries."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.phone import phone_bench
from latfarm_agent.bench.records import BenchStage
from latfarm_agent.testing.runtime_suite import LONG, PATIENT, QUICK, changed, measure
from latfarm_agent.testing.tflite_samples import samples
from latfarm_agent.wire import settings_as_pb
from latfarm_agent.worker import keeper
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1.agent_pb2_grpc import AgentServiceStub

from tests.agent.phones.kit import ANSWERS, binaries, entry, remove_binaries
from tests.farm.boards import container, host, phone
from tests.farm.boards.phone import VirtualPhone, adb_server
from tests.farm.boards.rack import Rack

pytestmark = [
    pytest.mark.farm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(host.lacks() or phone.lacks()), reason=host.lacks() or phone.lacks()),
]

ONCE = changed(QUICK, sessions=1)


def phone_config() -> AgentConfig:
    one = entry("tflite-benchmark", "benchmark_model", {}, {"delegate": "gpu"})
    options = {"benchmarks": [one, entry("ncnn-bench", "benchncnn")], "runs": 5}
    return AgentConfig(runtimes={"adb": RuntimeConfig(options=options)})


@pytest.fixture(scope="module")
def phones(rack: Rack) -> Iterator[list[VirtualPhone]]:
    """Two phones, and an adb server of their own."""
    with adb_server() as port, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANDROID_ADB_SERVER_PORT", port)
        binaries()
        with VirtualPhone("phone-1", rack) as one, VirtualPhone("phone-2", rack) as two:
            yield [one, two]
        remove_binaries()


@pytest.fixture
def one(phones: list[VirtualPhone]) -> VirtualPhone:
    phones[0].behave("")
    return phones[0]


@pytest.fixture
def bench(one: VirtualPhone, tmp_path: Path) -> Iterator[Bench]:
    made = phone_bench(
        one.serial,
        BenchOptions("phone-1", "acme4", tmp_path / "work", config=phone_config(), limits=PATIENT),
    )
    yield made
    made.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tflite"
    path.write_bytes(samples()["cnn-fp32"])
    return path


PLATFORM = "acme4-tflite1.0-fp32-1t"


def until(ready: Callable[[], bool], what: str) -> None:
    """Wait until `ready` is true. It takes tens of milliseconds itself, so there is no sleep."""
    for _ in range(400):
        if ready():
            return
    raise AssertionError(what)


def is_keeper(pid: int) -> bool:
    """Whether a child of this process is the keeper of a worker; the others are the phones."""
    return b"latfarm_agent.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.gate
def test_measures_and_profiles(one: VirtualPhone, bench: Bench, model: Path) -> None:
    board, (runtime,) = bench.describe()
    assert (board.hardware["model"], board.hardware["connection"]) == (
        "Acme Phone 4",
        f"adb {one.serial}",
    )
    assert {platform.name for platform in runtime.platforms} == {
        PLATFORM,
        "acme4-tflite1.0-gpu-fp32",
        "acme4-ncnn1.0-fp16-1t",
    }
    result = measure(bench, PLATFORM, model, settings=changed(QUICK, cold_runs=1), profile=True)
    assert result.outcome == "ok", result.error_message
    assert all(min(session.runs_ms) > 0 for session in result.sessions)
    assert [layer.device for layer in result.layers] == ["TfLiteXNNPackDelegate", "CPU"]
    assert result.conditions["battery_percent"] == "87"
    assert result.conditions["sample"] == "median of 5 runs of one process"
    assert not one.benchmarks()
    there = one.board.run("find /data/local/tmp/latfarm -type f").stdout
    assert "bin/" in there
    assert "models/" in there
    assert "run/" not in there


def test_cancelling_ends_the_binary_on_the_phone(
    one: VirtualPhone, bench: Bench, model: Path
) -> None:
    bench.describe()
    one.behave("hang")
    running: list[str] = []

    def cancelled() -> bool:
        running.extend(one.benchmarks())
        return bool(running)

    result = measure(bench, PLATFORM, model, settings=ONCE, cancelled=cancelled)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "CANCELLED")
    assert "--graph=" in running[0]
    until(lambda: not one.benchmarks(), "the binary outlived its request")
    one.behave("")
    assert measure(bench, PLATFORM, model, settings=ONCE).outcome == "ok"


def test_a_worker_that_is_killed_leaves_nothing_on_the_phone(
    one: VirtualPhone, bench: Bench, model: Path
) -> None:
    bench.describe()
    one.behave("hang")

    killed: list[int] = []

    def watched() -> bool:
        # Kill only the worker: its keeper must end the adb client that the worker has started.
        if not killed and one.benchmarks():
            (worker_keeper,) = filter(is_keeper, container.children(os.getpid()))
            killed.append(min(keeper.descendants(worker_keeper)))
            os.kill(killed[0], signal.SIGKILL)
        return False

    result = measure(bench, PLATFORM, model, settings=ONCE, cancelled=watched)
    assert result.error_code == "MODEL_CRASHED"
    until(lambda: not one.benchmarks(), "the binary outlived its worker")


def test_a_binary_that_never_ends(one: VirtualPhone, bench: Bench, model: Path) -> None:
    bench.describe()
    one.behave("hang")
    settings = changed(ONCE, compile_timeout_ms=3000.0)
    result = measure(bench, PLATFORM, model, settings=settings)
    assert (result.outcome, result.error_code) == ("model_error", "MODEL_TIMEOUT")
    until(lambda: not one.benchmarks(), "the binary outlived its time")


@pytest.mark.parametrize(
    ("word", "code"), [("segfault", "MODEL_CRASHED"), ("garbage", "MODEL_FAILED")]
)
def test_a_binary_that_fails(
    one: VirtualPhone, bench: Bench, model: Path, word: str, code: str
) -> None:
    bench.describe()
    one.behave(word)
    result = measure(bench, PLATFORM, model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("model_error", code), result.error_message


def test_a_phone_that_disappears_and_comes_back(
    one: VirtualPhone, bench: Bench, model: Path
) -> None:
    """adbd is killed during a measurement, and started again."""

    def pull(stage: BenchStage) -> None:
        if stage.name == "timing":
            one.kill_adbd()

    bench.describe()
    result = measure(bench, PLATFORM, model, settings=LONG, on_stage=pull)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "DEVICE_LOST")
    assert not result.sessions
    until(lambda: not one.benchmarks(), "the binary outlived the connection")
    one.start_adbd()
    again = measure(bench, PLATFORM, model, settings=ONCE)
    assert again.outcome == "ok", again.error_message


def test_a_phone_whose_network_is_cut(one: VirtualPhone, bench: Bench, model: Path) -> None:
    """Over the network nobody notices that a phone is gone; the model must not be blamed for it."""

    def cut(stage: BenchStage) -> None:
        if stage.name == "timing":
            one.board.cut_off()

    bench.describe()
    try:
        settings = changed(LONG, run_timeout_ms=500.0)
        result = measure(bench, PLATFORM, model, settings=settings, on_stage=cut)
        assert (result.outcome, result.error_code) == ("infrastructure_error", "DEVICE_LOST")
    finally:
        one.board.restore()
    again = measure(bench, PLATFORM, model, settings=ONCE)
    assert again.outcome == "ok", again.error_message


def test_a_phone_that_reboots(one: VirtualPhone, bench: Bench, model: Path) -> None:
    assert measure(bench, PLATFORM, model, settings=ONCE).outcome == "ok"
    one.board.reboot()
    one.wait_for_adbd()
    again = measure(bench, PLATFORM, model, settings=ONCE)
    assert again.outcome == "ok", again.error_message


def test_a_hot_phone_does_not_measure(one: VirtualPhone, bench: Bench, model: Path) -> None:
    bench.describe()
    hot = ANSWERS["dumpsys-thermalservice"].replace("Thermal Status: 0", "Thermal Status: 2")
    one.answer("dumpsys-thermalservice", hot)
    try:
        result = measure(bench, PLATFORM, model, settings=ONCE)
    finally:
        one.answer("dumpsys-thermalservice", ANSWERS["dumpsys-thermalservice"])
    assert (result.outcome, result.error_code) == ("infrastructure_error", "NOT_READY")
    assert "thermal status moderate" in result.error_message


class PhoneAgent:
    """A process of `latfarm-agent serve --adb`, started as users start it."""

    def __init__(self, phone: VirtualPhone, folder: Path) -> None:
        folder.mkdir()
        config = folder / "phones.json"
        options = phone_config().runtimes["adb"].options
        config.write_text(json.dumps({"runtimes": {"adb": {"options": options}}}))
        self._port_file = folder / "port"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "latfarm_agent.cli", "serve"),
                *("--adb", phone.serial, "--config", str(config), "--hardware", "acme4"),
                *("--name", phone.board.name, "--listen", "127.0.0.1:0"),
                *("--state-dir", str(folder / "state"), "--port-file", str(self._port_file)),
                "--exit-with-parent",
            ],
            stderr=subprocess.PIPE,
        )

    def stub(self) -> AgentServiceStub:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if b" serves on " in line:
                break
        channel = grpc.insecure_channel(self._port_file.read_text().strip())
        grpc.channel_ready_future(channel).result(60)
        return AgentServiceStub(channel)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        assert self._process.stderr is not None
        self._process.stderr.close()


def ask(stub: AgentServiceStub, data: bytes, digest: str, results: list[pb.Result]) -> None:
    lease = stub.AcquireLease(pb.AcquireLeaseRequest(holder="test", ttl_ms=60_000))
    upload = pb.UploadBlobRequest(
        token=lease.token, sha256=digest, size_bytes=len(data), offset=0, data=data
    )
    stub.UploadBlob(iter([upload]))
    request = pb.MeasureRequest(
        request_id="one",
        token=lease.token,
        platform=PLATFORM,
        blob_sha256=digest,
        settings=settings_as_pb(ONCE),
    )
    results.extend(event.result for event in stub.Measure(request) if event.HasField("result"))


def test_two_phones_on_one_host(phones: list[VirtualPhone], tmp_path: Path, model: Path) -> None:
    """Two agents measure on two phones at the same time: two boards that offer one platform."""
    phones[0].behave("")
    agents = [PhoneAgent(each, tmp_path / each.board.name) for each in phones]
    try:
        stubs = [agent.stub() for agent in agents]
        described = [stub.Describe(pb.DescribeRequest()) for stub in stubs]
        boards = [answer.board for answer in described]
        assert [board.name for board in boards] == ["phone-1", "phone-2"]
        assert len({board.board_id for board in boards}) == 2
        prints = {answer.runtimes[0].platforms[0].fingerprint for answer in described}
        assert len(prints) == 1
        data = model.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        results: list[pb.Result] = []
        threads = [
            threading.Thread(target=ask, args=(stub, data, digest, results)) for stub in stubs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert [result.outcome for result in results] == ["ok", "ok"]
        assert {result.board_id for result in results} == {board.board_id for board in boards}
    finally:
        for agent in agents:
            agent.close()
    assert not any(each.benchmarks() for each in phones)
