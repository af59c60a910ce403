"""The configuration of phones: an error names what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.runtimes.adb.options import Binary, Variant, read_options
from latfarm_agent.runtimes.adb.runtime import AdbRuntime
from latfarm_agent.runtimes.base import RuntimeFailure
from tests.agent.phones.kit import SERIAL, FakePhone, binaries, entry, sha256

GOOD: dict[str, Any] = {
    "kind": "tflite-benchmark",
    "path": "/opt/benchmark_model",
    "sha256": "ab" * 32,
    "variants": [{"dtype": "int8"}, {"delegate": "gpu", "dtype": "fp16", "arguments": ["--a_b=c"]}],
}


def test_a_good_configuration() -> None:
    options = read_options({"benchmarks": [GOOD], "core_mask": "f0", "runs": 5})
    (benchmark,) = options.benchmarks
    assert benchmark.binary == Binary(Path("/opt/benchmark_model"), "ab" * 32)
    assert benchmark.variants == (Variant("cpu", "int8"), Variant("gpu", "fp16", ("--a_b=c",)))
    assert benchmark.shown_version == "abababab"
    assert (options.core_mask, options.runs, options.keep_models) == ("f0", 5, 64)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "tflite"}, r"benchmarks\[0\].kind must be one of tflite-benchmark"),
        ({"path": "benchmark_model"}, r"benchmarks\[0\].path must be the absolute path"),
        ({"sha256": "ab"}, r"benchmarks\[0\].sha256 must be what `sha256sum"),
        ({"sha256": None}, "sha256sum"),
        ({"version": "1-2"}, "version must be letters"),
        ({"variants": []}, "variants must be a list of 1 to"),
        ({"variants": [{"delegate": "npu"}]}, "tflite-benchmark has cpu, builtin, gpu, nnapi"),
        ({"variants": [{"dtype": "fp8"}]}, "fp32, fp16, int8"),
        ({"variants": [{"threads": 2}]}, r"variants\[0\].threads is unknown"),
        ({"variants": [{}, {}]}, "names one twice"),
        ({"variants": [{"arguments": ["--x=$(reboot)"]}]}, "flags of the form --name=value"),
        ({"variants": [{"arguments": "--x=y"}]}, "must be a list of flags"),
        ({"libraries": {}}, "libraries must be a list"),
        ({"libraries": [{"path": "/x"}]}, r"libraries\[0\].sha256"),
        ({"profiler": {"path": "/x", "sha256": "ab" * 32}}, "only mnn-bench has one"),
        ({"colour": "red"}, "colour is unknown"),
    ],
)
def test_wrong_benchmarks(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RuntimeFailure, match=says) as failed:
        read_options({"benchmarks": [{**GOOD, **changes}]})
    assert failed.value.code == "RUNTIME_MISSING"
    assert "correct the configuration" in failed.value.message
    assert "\n" not in failed.value.message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"benchmarks": None}, "benchmarks must be a list"),
        ({"core_mask": "xyz"}, "core_mask must name cores in hex"),
        ({"core_mask": "0"}, "core_mask"),
        ({"runs": 0}, "runs must be a whole number from 1"),
        ({"runs": 1.5}, "runs must be a whole number"),
        ({"warmup_s": "1"}, "warmup_s must be a number"),
        ({"keep_models": True}, "keep_models"),
        ({"call_s": float("nan")}, "call_s"),
        ({"speed": 1}, "speed is unknown"),
    ],
)
def test_wrong_options(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RuntimeFailure, match=says):
        read_options({"benchmarks": [GOOD], **changes})


def test_a_runtime_without_a_phone() -> None:
    with pytest.raises(RuntimeFailure, match="start the agent with --adb"):
        AdbRuntime(benchmarks=[GOOD])


def test_platforms_have_names_that_tell(phone: FakePhone) -> None:
    runtime = AdbRuntime(
        threads=4,
        serial=SERIAL,
        benchmarks=[
            entry(
                "tflite-benchmark",
                "benchmark_model",
                {},
                {"delegate": "builtin", "dtype": "int8"},
                {"delegate": "gpu", "dtype": "fp16"},
                {"delegate": "nnapi", "dtype": "int8"},
                version="2.17",
            ),
            entry("mnn-bench", "benchmark.out", {}, {"delegate": "opencl", "dtype": "fp16"}),
            entry("ncnn-bench", "benchncnn", {"delegate": "vulkan"}, version="20240820"),
        ],
        core_mask="f0",
    )
    found = {spec.name: spec for spec in runtime.describe().platforms}
    assert list(found) == [
        "tflite2.17-fp32-4t",
        "tflite2.17-builtin-int8-4t",
        "tflite2.17-gpu-fp16",
        "tflite2.17-nnapi-int8",
        "mnn1.0-fp32-4t",
        "mnn1.0-opencl-fp16",
        "ncnn20240820-vulkan-fp16",
    ]
    settings = found["tflite2.17-gpu-fp16"].settings
    assert settings["binary_sha256"] == sha256(binaries() / "benchmark_model")
    assert (settings["threads"], settings["core_mask"]) == ("1", "f0")
    assert {spec.model_format for spec in found.values()} == {"tflite", "mnn", "ncnn"}
    assert len({str(sorted(spec.settings.items())) + spec.dtype for spec in found.values()}) == 7
    assert not phone.log(), "describing needs no phone"


def test_one_wrong_binary_takes_no_other_down(phone: FakePhone) -> None:
    good = entry("tflite-benchmark", "benchmark_model")
    bad = {**entry("ncnn-bench", "benchncnn"), "sha256": "0" * 64}
    gone = {**entry("mnn-bench", "benchmark.out"), "path": "/nowhere/benchmark.out"}
    found = AdbRuntime(serial=SERIAL, benchmarks=[good, bad, gone]).describe()
    assert [spec.name for spec in found.platforms] == ["tflite1.0-fp32-1t"]
    assert "configured is 0000" in found.lacking[0]
    assert "install" in found.lacking[1]
    with pytest.raises(RuntimeFailure, match="configured is 0000") as failed:
        AdbRuntime(serial=SERIAL, benchmarks=[bad]).describe()
    assert failed.value.code == "RUNTIME_MISSING"


def test_two_binaries_of_one_name(phone: FakePhone) -> None:
    twice = [entry("tflite-benchmark", "benchmark_model")] * 2
    with pytest.raises(RuntimeFailure, match="give benchmarks different versions"):
        AdbRuntime(serial=SERIAL, benchmarks=twice).describe()
