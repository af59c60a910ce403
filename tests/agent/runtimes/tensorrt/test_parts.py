"""Parts of the TensorRT runtime that need no library: options, cache, journal, log, failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_agent.bench.results import condition_of_sessions
from latfarm_agent.nvidia.gpu import GpuReading
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.cuda import CudaDevice
from latfarm_agent.runtimes.onnx.outside import outside_references
from latfarm_agent.runtimes.tensorrt.build import Journal, failure, read_model
from latfarm_agent.runtimes.tensorrt.cache import TimingCache
from latfarm_agent.runtimes.tensorrt.log import SessionLog
from latfarm_agent.runtimes.tensorrt.options import (
    TensorRtCapabilities,
    TensorRtOptions,
    lacking,
    platforms,
)
from latfarm_agent.runtimes.tensorrt.session import Times

ORIN = CudaDevice(0, "Orin", (8, 7), 1 << 34, 4 << 20, True, "0000:00:00.0", "12.6")
OFFER = TensorRtCapabilities(
    "10.3.0", ORIN, ("fp32", "fp16", "int8"), strong=True, weak=True, dla_cores=2
)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cudagraph": True}, "'cudagraph' is unknown"),
        ({"cuda_graph": 1}, "type bool"),
        ({"device": True}, "type int"),
        ({"dla_core": "0"}, "type int or null"),
        ({"dla_core": -1}, "within 0"),
        ({"optimization_level": 6}, "within 0 and 5"),
        ({"workspace_mib": 1 << 21}, "'workspace_mib'"),
        ({"typing": "loose"}, "one of auto, strong, weak"),
    ],
)
def test_options_that_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        TensorRtOptions.read(given)
    assert caught.value.code == "RUNTIME_MISSING"
    assert says in caught.value.message
    assert "\n" not in caught.value.message


def test_platforms_by_generation() -> None:
    options = TensorRtOptions.read({"dla_core": 0, "device": 1})
    named = {spec.name: spec for spec in platforms(options, OFFER)}
    assert list(named) == [
        "tensorrt10.3-gpu1-fp32",
        "tensorrt10.3-gpu1-fp16",
        "tensorrt10.3-gpu1-int8",
        "tensorrt10.3-gpu1-dla0-fp16",
        "tensorrt10.3-gpu1-dla0-int8",
    ]
    assert named["tensorrt10.3-gpu1-fp16"].settings["typing"] == "strong"
    assert named["tensorrt10.3-gpu1-dla0-fp16"].settings["typing"] == "weak"
    weak = platforms(TensorRtOptions(typing="weak"), OFFER)
    assert {spec.settings["typing"] for spec in weak} == {"weak"}
    # Version 8 has weak typing alone, version 11 strong typing alone, whatever is asked for.
    eight = platforms(TensorRtOptions(typing="strong"), replace(OFFER, strong=False))
    eleven = platforms(TensorRtOptions(typing="weak", dla_core=1), replace(OFFER, weak=False))
    assert {spec.settings["typing"] for spec in eight} == {"weak"}
    assert {spec.settings["typing"] for spec in eleven} == {"strong"}


def test_a_dla_that_is_not_there() -> None:
    options = TensorRtOptions(dla_core=2)
    assert not any("dla" in spec.name for spec in platforms(options, OFFER))
    assert "dla2" in lacking(options, OFFER)[0]
    assert lacking(TensorRtOptions(dla_core=1), OFFER) == ()


def test_a_timing_cache_is_kept(tmp_path: Path) -> None:
    cache = TimingCache(tmp_path / "new", "10.3.0", ORIN)
    assert cache.load() == b""
    assert cache.save(b"timings")
    assert cache.load() == b"timings"
    assert cache.path is not None
    assert [path.name for path in cache.path.parent.iterdir()] == [cache.path.name]
    assert cache.save(b"more")
    assert TimingCache(tmp_path / "new", "10.3.0", ORIN).load() == b"more"
    for other in (
        TimingCache(tmp_path / "new", "10.4.0", ORIN),
        TimingCache(tmp_path / "new", "10.3.0", replace(ORIN, capability=(8, 9))),
        TimingCache(tmp_path / "new", "10.3.0", replace(ORIN, name="Orin/2")),
    ):
        assert other.load() == b""
        assert other.path != cache.path


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d[:20], lambda d: b"", lambda d: d + d]
)
def test_a_damaged_timing_cache_is_dropped(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    cache = TimingCache(tmp_path, "10.3.0", ORIN)
    cache.save(b"timings")
    assert cache.path is not None
    cache.path.write_bytes(damage(cache.path.read_bytes()))
    assert cache.load() == b""
    assert not cache.path.exists()


def test_a_timing_cache_of_another_board_is_no_match(tmp_path: Path) -> None:
    mine, theirs = (TimingCache(tmp_path, v, ORIN) for v in ("10.3.0", "10.3.1"))
    assert mine.path is not None
    assert theirs.path is not None
    theirs.save(b"timings")
    theirs.path.replace(mine.path)
    assert mine.load() == b""


def test_a_timing_cache_without_a_place(tmp_path: Path) -> None:
    nowhere = TimingCache(None, "10.3.0", ORIN)
    assert (nowhere.path, nowhere.load(), nowhere.save(b"x")) == (None, b"", False)
    (tmp_path / "file").write_text("")
    assert not TimingCache(tmp_path / "file", "10.3.0", ORIN).save(b"x")


def test_the_journal_keeps_errors_and_places() -> None:
    journal = Journal()
    journal.add(2, "a warning")
    journal.add(3, "---------- Layers Running on DLA ----------")
    journal.add(3, "[DlaLayer] {ForeignNode[conv0...relu3]}")
    journal.add(3, "[GpuLayer] SHUFFLE: Reshape_2 + (Unnamed Layer* 7) [Shuffle]")
    journal.add(3, "[GpuLayer] PWN(PWN(Sigmoid_1), Mul_2)")
    journal.add(1, "Error Code 4:\n  it failed")
    journal.add(0, "badly")
    assert journal.errors() == "Error Code 4: it failed | badly"
    assert journal.errors() == ""
    assert journal.placed() == (
        ("{ForeignNode[conv0...relu3]}",),
        ("Reshape_2 + (Unnamed Layer* 7) [Shuffle]", "PWN(PWN(Sigmoid_1), Mul_2)"),
    )
    assert journal.placed() == ((), ())
    for index in range(100):
        journal.add(1, str(index))
    assert journal.errors().endswith("98 | 99")


@pytest.mark.parametrize(
    ("text", "doing", "code"),
    [
        ("Error Code 2: OutOfMemory (Requested size was 9 bytes.)", "building", "OUT_OF_MEMORY"),
        ("Cuda Runtime (out of memory)", "running", "OUT_OF_MEMORY"),
        (
            "Error Code 10: Could not find any implementation for node x",
            "building",
            "MODEL_UNSUPPORTED",
        ),
        ("x: DLA does not support this, unsupported", "building", "MODEL_UNSUPPORTED"),
        ("Error Code 3: not supported in this state", "running", "MODEL_FAILED"),
        ("Error Code 1: Internal Error", "building", "MODEL_FAILED"),
    ],
)
def test_failures_are_typed(text: str, doing: str, code: str) -> None:
    made = failure(text, doing)
    assert made.code == code
    assert text in made.message


def test_models_that_are_not_read(tmp_path: Path, write: Callable[..., Path]) -> None:
    outside = write(tmp_path / "m.onnx", "external")
    assert [reference.asked_by for reference in outside_references(outside)] == ["far"]
    assert outside_references(write(tmp_path / "n.onnx")) == []
    with pytest.raises(RuntimeFailure, match="another file"):
        read_model(outside)
    nothing = tmp_path / "nothing"
    nothing.write_bytes(b"\x08\x08")  # an ir_version alone
    with pytest.raises(RuntimeFailure, match="no node"):
        read_model(nothing)


def test_external_weights_of_a_constant_node(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    far = onnx.TensorProto(name="far", data_type=1, dims=[1], data_location=1)
    node = onnx.helper.make_node("Constant", [], ["y"], value=far)
    graph = onnx.helper.make_graph([node], "g", [], [])
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    assert [reference.asked_by for reference in outside_references(path)] == ["far"]


class Sensor:
    """A GPU whose sensor readings and clock a test sets."""

    def __init__(self, *readings: GpuReading) -> None:
        self.readings = list(readings)
        self.time_s = 0.0
        self.ended = 0

    def read(self) -> GpuReading:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def end(self) -> None:
        self.ended += 1

    def log(self, *, locked: bool = False) -> SessionLog:
        return SessionLog(
            {"latency_of": "host"}, self.read, locked=locked, end=self.end, now=lambda: self.time_s
        )


def test_conditions_of_a_session() -> None:
    calm = GpuReading(1300.5, 3199.0, 45.5, 9000.0, 0)
    capped = replace(calm, clock_mhz=1290.0, reasons=("software power cap",))
    sensor = Sensor(GpuReading(306.0, throttles=0), calm, capped)
    log = sensor.log()
    for index in range(10):
        sensor.time_s += 0.4
        log.add(Times(host_ms=20.0 - index, gpu_ms=10.0 - index))
    told = dict(log)
    assert told == {
        "latency_of": "host",
        "host_latency_ms": "13",
        "gpu_latency_ms": "3",
        "gpu_clock_mhz_log": "1300.5,1290,1290",
        "gpu_memory_clock_mhz_log": "3199,3199,3199",
        "gpu_temperature_c_log": "45.5,45.5,45.5",
        "gpu_power_mw_log": "9000,9000,9000",
        "gpu_clock_limited_by": "software power cap",
        "gpu_throttling": "0",
    }
    assert sensor.ended == 1
    assert len(log) == len(told)
    assert log["latency_of"] == "host"


@pytest.mark.parametrize(
    ("states", "told"), [((True, True), "yes"), ((False, True), "no"), ((None, None), None)]
)
def test_a_gpu_that_throttles_all_the_time_is_told(
    states: tuple[bool | None, ...], told: str | None
) -> None:
    sensor = Sensor(*(GpuReading(1300.0, throttles=1, throttled=each) for each in states))
    log = sensor.log()
    sensor.time_s = 2.0
    log.add(Times(host_ms=20.0, gpu_ms=10.0))
    assert dict(log).get("gpu_throttled_throughout") == told


def test_conditions_of_several_sessions() -> None:
    sessions = [{"conditions": {"gpu": "Orin", "gpu_latency_ms": told}} for told in ("3", "4")]
    assert condition_of_sessions(sessions, "gpu") == "Orin"
    assert condition_of_sessions(sessions, "gpu_latency_ms") == "3; 4"


def test_a_board_that_tells_nothing() -> None:
    assert dict(Sensor(GpuReading()).log()) == {"latency_of": "host", "gpu_throttling": "unknown"}


@pytest.mark.parametrize(
    ("locked", "before", "after", "says"),
    [
        (
            False,
            GpuReading(throttles=0),
            GpuReading(throttles=1, reasons=("hardware slowdown",)),
            "hardware slowdown",
        ),
        (False, GpuReading(throttles=27), GpuReading(throttles=28), "throttled"),
        (True, GpuReading(1300.0), GpuReading(1200.0), "from 1300 to 1200 MHz"),
        (False, GpuReading(1300.0), GpuReading(1200.0), ""),
        (True, GpuReading(1300.0), GpuReading(1290.0), ""),
        (False, GpuReading(throttles=27), GpuReading(throttles=27), ""),
    ],
)
def test_throttling_ends_the_measurement(
    locked: bool, before: GpuReading, after: GpuReading, says: str
) -> None:
    sensor = Sensor(before, before, after)
    log = sensor.log(locked=locked)
    sensor.time_s = 1.5
    log.add(Times(1.0, 0.5))
    sensor.time_s = 3.0
    if not says:
        log.add(Times(1.0, 0.5))
        return
    with pytest.raises(RuntimeFailure) as caught:
        log.add(Times(1.0, 0.5))
    assert caught.value.code == "THROTTLED"
    assert says in caught.value.message
    assert sensor.ended == 1
