"""The runtime of phones: results of each kind of benchmark binary, and failures of a phone."""

from __future__ import annotations

import os
import typing
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.phone import RUNTIME, phone_bench
from latfarm_agent.testing.runtime_suite import (
    PATIENT,
    QUICK,
    changed,
    measure,
    platform_of,
)
from latfarm_agent.testing.tflite_samples import samples
from latfarm_agent.worker import keeper
from tests.agent.conftest import write_tflite
from tests.agent.phones.kit import SERIAL, FakePhone, config, entry, write_cnn

ONCE = changed(QUICK, sessions=1)


Make = typing.Callable[..., Bench]


@pytest.fixture
def make(phone: FakePhone, tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes benches on the phone.

    After the test, the fixture closes the benches and checks that no process is left.
    """
    before = keeper.descendants(os.getpid())
    made: list[Bench] = []

    def bench(*benchmarks: dict[str, object], **options: object) -> Bench:
        asked = config(*benchmarks, **options)
        made.append(
            phone_bench(
                SERIAL, BenchOptions("p", None, tmp_path / "work", config=asked, limits=PATIENT)
            )
        )
        return made[-1]

    yield bench
    for each in made:
        each.close()
    assert keeper.descendants(os.getpid()) <= before


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_cnn(tmp_path / "model.tflite")


@pytest.fixture(scope="module")
def one_tflite(one_phone: FakePhone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    asked = config(entry("tflite-benchmark", "benchmark_model"))
    bench = phone_bench(
        SERIAL,
        BenchOptions("p", None, tmp_path_factory.mktemp("work"), config=asked, limits=PATIENT),
    )
    yield bench
    bench.close()


@pytest.fixture
def tflite(phone: FakePhone, one_tflite: Bench) -> Bench:
    """Return a bench with one platform, on a phone in its normal state."""
    return one_tflite


def test_a_sample_is_the_median_of_a_calls_runs(
    phone: FakePhone, tflite: Bench, model: Path
) -> None:
    platform = platform_of(tflite, RUNTIME)
    phone.log()
    result = measure(tflite, platform, model)
    assert result.outcome == "ok", result.error_message
    calls = sum("exec 3<&0" in line for line in phone.log())
    # Each session makes one call to inquire, one for its first run, and one for each timed run.
    assert calls == sum(2 + len(session.runs_ms) for session in result.sessions)
    told = result.conditions
    assert told["sample"] == "median of 3 runs of one process"
    assert told["delegated"] == "a part, 1 partitions"
    for name in ("first_inference_ms", "init_ms"):
        assert all(float(value) > 0 for value in told[name].split("; ")), told
    assert told["phone_peak_memory_mb"] == "12.5"
    assert (told["os"], told["governor"]) == ("Android 13", "schedutil")
    assert (told["charging"], told["battery_percent"]) == ("charging", "87")
    assert told["core_mask"] == "any"
    assert "nice" not in told
    assert result.memory_bytes == 0
    assert result.settings.warmup_runs == QUICK.warmup_runs
    assert not phone.files("run"), "nothing is left of a call"


def test_old_binaries_print_no_median(phone: FakePhone, tflite: Bench, model: Path) -> None:
    phone.behave("old")
    result = measure(tflite, platform_of(tflite, RUNTIME), model, settings=ONCE)
    assert result.conditions["sample"] == "average of 3 runs of one process"


def test_binary_and_model_are_pushed_once(phone: FakePhone, tflite: Bench, model: Path) -> None:
    platform = platform_of(tflite, RUNTIME)
    phone.log()
    for _ in range(2):
        assert measure(tflite, platform, model, settings=ONCE).outcome == "ok"
    assert sum(" push " in line for line in phone.log()) == 2
    (binary,), (pushed,) = phone.files("bin"), phone.files("models")
    assert (binary.name, pushed.name) == ("benchmark_model", "model.tflite")


def test_old_models_leave_the_phone(phone: FakePhone, make: Make, tmp_path: Path) -> None:
    bench = make(entry("tflite-benchmark", "benchmark_model"), keep_models=2)
    platform = platform_of(bench, RUNTIME)
    models = [write_tflite(tmp_path / f"{kind}.tflite", "add", kind) for kind in ("fp32", "int8")]
    models += [write_cnn(tmp_path / "cnn.tflite"), tmp_path / "math.tflite"]
    models[-1].write_bytes(samples()["math-fp32"])
    for path in (*models, models[0]):
        assert measure(bench, platform, path, settings=ONCE).outcome == "ok"
        assert len(phone.files("models")) <= 3, "two, and the one in use"


def test_a_wiped_phone_gets_its_files_again(phone: FakePhone, tflite: Bench, model: Path) -> None:
    platform = platform_of(tflite, RUNTIME)
    assert measure(tflite, platform, model, settings=ONCE).outcome == "ok"
    for path in (*phone.files("bin"), *phone.files("models")):
        path.unlink()
    assert measure(tflite, platform, model, settings=ONCE).outcome == "ok"


@pytest.mark.parametrize(
    ("word", "outcome", "code", "says"),
    [
        ("segfault", "model_error", "MODEL_CRASHED", "SIGSEGV"),
        ("killed", "model_error", "OUT_OF_MEMORY", "SIGKILL"),
        ("garbage", "model_error", "MODEL_FAILED", "printed no timings"),
        ("silent", "model_error", "MODEL_FAILED", "it printed nothing"),
        ("lie", "model_error", "MODEL_FAILED", "contradicts itself"),
        ("fail", "model_error", "MODEL_FAILED", "something of its own"),
        ("flood", "infrastructure_error", "DEVICE_FAILED", "more than 4 MiB"),
    ],
)
def test_binaries_on_a_bad_day(
    phone: FakePhone, tflite: Bench, model: Path, word: str, outcome: str, code: str, says: str
) -> None:
    platform = platform_of(tflite, RUNTIME)
    phone.behave(word)
    result = measure(tflite, platform, model, settings=ONCE)
    assert (result.outcome, result.error_code) == (outcome, code), result.error_message
    assert says in result.error_message
    assert not result.sessions


def test_a_binary_that_hangs(phone: FakePhone, tflite: Bench, model: Path) -> None:
    platform = platform_of(tflite, RUNTIME)
    phone.behave("hang")
    settings = changed(ONCE, compile_timeout_ms=1000.0)
    result = measure(tflite, platform, model, settings=settings)
    assert (result.outcome, result.error_code) == ("model_error", "MODEL_TIMEOUT")
    phone.behave("")
    assert measure(tflite, platform, model, settings=ONCE).outcome == "ok"


def test_a_phone_that_goes_away_while_it_measures(
    phone: FakePhone, tflite: Bench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = platform_of(tflite, RUNTIME)
    phone.switch("drops")
    result = measure(tflite, platform, model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "DEVICE_LOST")
    assert SERIAL in result.error_message
    phone.switch("drops", on=False)
    phone.switch("comes back")
    assert measure(tflite, platform, model, settings=ONCE).outcome == "ok"


def test_a_phone_that_hangs_with_its_binary_is_lost(
    phone: FakePhone, tflite: Bench, model: Path
) -> None:
    """After a timeout the agent asks the phone, as a broken connection looks like a hang."""
    platform = platform_of(tflite, RUNTIME)
    phone.behave("hang")
    settings = changed(ONCE, compile_timeout_ms=1000.0)

    def cancelled() -> bool:
        if any("exec 3<&0" in line for line in phone.log()):
            phone.state("absent")  # the binary hangs now or will hang soon
        return False

    result = measure(tflite, platform, model, settings=settings, cancelled=cancelled)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "DEVICE_LOST")


@pytest.mark.parametrize(("switch", "code"), [("full", "DISK_FULL"), ("corrupt", "DEVICE_FAILED")])
def test_pushes_that_fail(
    phone: FakePhone, tflite: Bench, model: Path, switch: str, code: str
) -> None:
    platform = platform_of(tflite, RUNTIME)
    phone.switch(switch)
    result = measure(tflite, platform, model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("infrastructure_error", code)


def test_a_binary_that_was_replaced(
    phone: FakePhone, make: Make, model: Path, tmp_path: Path
) -> None:
    """The checksum of a binary is verified before each push, not only when the agent starts."""
    one = entry("tflite-benchmark", "benchmark_model")
    copy = tmp_path / "benchmark_model"
    copy.write_bytes(Path(str(one["path"])).read_bytes())
    bench = make({**one, "path": str(copy)})
    platform = platform_of(bench, RUNTIME)
    copy.write_bytes(copy.read_bytes() + b"x")
    result = measure(bench, platform, model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "RUNTIME_MISSING")
    assert "correct the configuration" in result.error_message
    assert not phone.files("bin")


def test_what_is_not_for_this_phone(
    phone: FakePhone, make: Make, model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "benchmark_model"
    other.write_bytes(b"\x7fELF of another architecture")
    from tests.agent.phones.kit import sha256

    one = entry("tflite-benchmark", "benchmark_model")
    bench = make({**one, "path": str(other), "sha256": sha256(other)})
    result = measure(bench, platform_of(bench, RUNTIME), model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "RUNTIME_MISSING")
    assert "wrong architecture" in result.error_message


def test_an_accelerator_that_takes_nothing(phone: FakePhone, make: Make, model: Path) -> None:
    bench = make(entry("tflite-benchmark", "benchmark_model", {"delegate": "nnapi"}))
    phone.behave("refuse")
    result = measure(bench, platform_of(bench, RUNTIME), model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("model_error", "MODEL_UNSUPPORTED")
    assert "nnapi takes nothing" in result.error_message


def test_cores_and_libraries(phone: FakePhone, make: Make, model: Path) -> None:
    """The binary runs under `taskset`, with its libraries in the path."""
    taskset = phone.folder / "bin/taskset"
    told = phone.folder / "told"
    taskset.write_text(f'#!/bin/sh\necho "$1 $LD_LIBRARY_PATH" >{told}\nshift\nexec "$@"\n')
    taskset.chmod(0o755)
    library = entry("ncnn-bench", "benchncnn")
    one = entry(
        "tflite-benchmark",
        "benchmark_model",
        libraries=[{"path": library["path"], "sha256": library["sha256"]}],
    )
    bench = make(one, core_mask="f0")
    result = measure(bench, platform_of(bench, RUNTIME), model, settings=ONCE)
    assert result.outcome == "ok", result.error_message
    mask, path = told.read_text().split()
    assert mask == "f0"
    assert Path(path).name == library["sha256"]
    assert result.conditions["core_mask"] == "f0"


def test_layers_name_what_a_partition_covers(phone: FakePhone, tflite: Bench, model: Path) -> None:
    result = measure(tflite, platform_of(tflite, RUNTIME), model, settings=ONCE, profile=True)
    assert result.outcome == "ok", result.error_message
    assert [(layer.name, layer.op, layer.device) for layer in result.layers] == [
        (
            "t@0+t@1+t@2+t@3+t@4+t@5",
            "Conv2D+DepthwiseConv2D+MaxPool2D+AveragePool2D+Reshape+FullyConnected",
            "TfLiteXNNPackDelegate",
        ),
        ("t@6", "Softmax", "CPU"),
    ]


def write_ncnn(path: Path, layers: str = "Input in0 0 1 in0 0=8 1=9 2=3") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.param", f"7767517\n2 2\n{layers}\nReLU r0 1 1 in0 out0\n")
        archive.writestr("model.bin", b"")
    return path


def test_ncnn(phone: FakePhone, make: Make, tmp_path: Path) -> None:
    bench = make(entry("ncnn-bench", "benchncnn"))
    platform = platform_of(bench, RUNTIME)
    path = write_ncnn(tmp_path / "model.ncnn")
    result = measure(bench, platform, path, settings=ONCE)
    assert result.outcome == "ok", result.error_message
    assert result.conditions["sample"] == "average of 3 runs of one process"
    assert result.conditions["weights"] == "zeros"
    (param,) = phone.files("models")
    assert param.name == "model.param"
    cold = measure(bench, platform, path, settings=changed(ONCE, cold_runs=1))
    assert (cold.outcome, cold.error_code) == ("infrastructure_error", "SETTINGS_INVALID")
    profiled = measure(bench, platform, path, settings=ONCE, profile=True)
    assert profiled.error_code == "PROFILE_UNAVAILABLE"
    for word, code, says in (
        ("lacking", "MODEL_UNSUPPORTED", "no layer Strange"),
        ("nothing", "MODEL_FAILED", "less than 0.01 ms"),
    ):
        phone.behave(word)
        result = measure(bench, platform, path, settings=ONCE)
        assert (result.error_code, says in result.error_message) == (code, True)
    for layers in ("Input in0 0 1 in0", "Input in0 0 1 in0 0=x", "ReLU r 1 1 x y"):
        result = measure(bench, platform, write_ncnn(tmp_path / "bad", layers), settings=ONCE)
        assert result.error_code == "MODEL_INVALID"


@pytest.fixture
def mnn_model(tmp_path: Path) -> Path:
    """Write a minimal file of MNN's schema: a table whose fourth field is a vector of one table."""
    flatbuffers = pytest.importorskip("flatbuffers")
    builder = flatbuffers.Builder(64)

    def table(slots: dict[int, typing.Any]) -> typing.Any:
        builder.StartObject(4)
        for slot, value in slots.items():
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        return builder.EndObject()

    op = table({})
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(op)
    builder.Finish(table({3: builder.EndVector()}))
    path = tmp_path / "model.mnn"
    path.write_bytes(bytes(builder.Output()))
    return path


def test_mnn(phone: FakePhone, make: Make, mnn_model: Path, tmp_path: Path) -> None:
    basic = entry("mnn-bench", "MNNV2Basic.out")
    profiler = {"path": basic["path"], "sha256": basic["sha256"]}
    bench = make(
        entry("mnn-bench", "benchmark.out", {"dtype": "fp16"}, {}, profiler=profiler),
        entry("mnn-bench", "benchmark.out", {"dtype": "fp16"}, version="2.0"),
    )
    half, full, bare = (entry.name for entry in bench.describe()[1][0].platforms)
    assert (half, full, bare) == ("p-mnn1.0-fp16-1t", "p-mnn1.0-fp32-1t", "p-mnn2.0-fp16-1t")
    result = measure(bench, half, mnn_model, settings=changed(ONCE, cold_runs=1), profile=True)
    assert result.outcome == "ok", result.error_message
    assert len(result.sessions[0].cold_ms) == 1
    assert [(layer.name, layer.op) for layer in result.layers] == [
        ("y", "UnaryOp"),
        ("c 0", "Convolution"),
    ]
    assert measure(bench, full, mnn_model, settings=ONCE).outcome == "ok"
    for platform, says in ((full, "profile on a platform with fp16"), (bare, "no profiler")):
        result = measure(bench, platform, mnn_model, settings=ONCE, profile=True)
        assert result.error_code == "PROFILE_UNAVAILABLE"
        assert says in result.error_message
    for number, data in enumerate((b"", b"\0" * 40, bytes(range(256)))):
        bad = tmp_path / f"bad{number}"
        bad.write_bytes(data)
        assert measure(bench, full, bad, settings=ONCE).error_code == "MODEL_INVALID"
