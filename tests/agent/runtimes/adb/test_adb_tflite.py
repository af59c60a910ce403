"""The agent reads older and newer output of `benchmark_model`, and refuses wrong output."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from latfarm_agent.runtimes.adb.options import Variant
from latfarm_agent.runtimes.adb.report import BinaryRun, Loaded
from latfarm_agent.runtimes.adb.tflite import TfliteBenchmark
from latfarm_agent.runtimes.adb.tflite_layers import read_layers
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.testing import tflite_samples
from latfarm_agent.testing.tflite_samples import SampleWriter

TOOL = TfliteBenchmark()
CALL = BinaryRun(threads=4, runs=50, warmup_runs=2, warmup_s=0.05, call_s=2.0)
CPU = Variant()
GPU = Variant("gpu", "fp16")

OLD = """\
STARTING!
Num threads: [4]
Loaded model /data/local/tmp/m.tflite
Explicitly applied GPU delegate, and the model graph will be completely executed by the delegate.
Initialized session in 870.5ms.
Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
count=4 first=130500 curr=120800 min=117300 max=130500 avg=122300 std=4930

Running benchmark for at least 50 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
count=50 first=119200 curr=118000 min=113700 max=1.2477e+06 avg=119375 std=1948

Inference timings in us: Init: 870500, First inference: 130500, Warmup (avg): 122300, Inference (avg): 119375
Peak memory footprint (MB): init=0 overall=12.8
"""  # noqa: E501 - as it is printed
NEW = """\
INFO: STARTING!
INFO: Explicitly applied XNNPACK delegate, and the model graph will be partially executed by the delegate w/ 3 delegate kernels.
INFO: count=1 curr=3678 p5=3678 median=3678 p95=3678

INFO: count=261 first=3937 curr=3959 min=3190 max=6333 avg=3790.92 std=358 p5=3300 median=3755 p95=4100

INFO: Inference timings in us: Init: 630, First inference: 3678, Warmup (avg): 3678, Inference (avg): 3790.92
INFO: Overall peak memory footprint (MB) via periodic monitoring: 21.25
"""  # noqa: E501 - as it is printed


def test_the_older_form() -> None:
    report = TOOL.read(OLD, GPU, CALL)
    assert (report.latency_ms, report.runs, report.statistic) == (119.375, 50, "average")
    assert report.init_ms == 870.5
    assert report.conditions == {"delegated": "all", "first_inference_ms": "130.5"}


def test_the_newer_form() -> None:
    report = TOOL.read(NEW, CPU, CALL)
    assert (report.latency_ms, report.runs, report.statistic) == (3.755, 261, "median")
    assert report.conditions == {
        "delegated": "a part, 3 partitions",
        "first_inference_ms": "3.678",
        "phone_peak_memory_mb": "21.25",
    }


def test_a_cold_call_tells_its_first_run() -> None:
    cold = BinaryRun(4, 50, 2, 0.05, 2.0, cold=True)
    report = TOOL.read(NEW, CPU, cold)
    assert (report.latency_ms, report.runs) == (3.678, 1)
    flags = TOOL.command(Loaded(Path("m"), {"model.tflite": "/m"}), CPU, cold)
    assert {"--num_runs=1", "--warmup_runs=1", "--warmup_min_secs=0"} <= set(flags)


def test_runs_that_are_all_the_same() -> None:
    text = NEW.replace(
        "count=261 first=3937 curr=3959 min=3190 max=6333 avg=3790.92 std=358 p5=3300 median=3755 "
        "p95=4100",
        "count=5 curr=12(all same)",
    ).replace("(avg): 3790.92", "(avg): 12")
    assert TOOL.read(text, CPU, CALL).latency_ms == 0.012


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("count=261 ", "count=0 "),
        ("Inference (avg): 3790.92", "Inference (avg): 3990.92"),
        ("Inference timings in us", "Inference timings in ms"),
        ("median=3755", "median=9755"),
        ("median=3755", "median=-3755"),
        ("min=3190", "min=nan"),
        ("avg=3790.92", "avg=inf"),
        ("INFO: count=1 curr=3678 p5=3678 median=3678 p95=3678\n", ""),
        ("INFO: Overall", "INFO: count=2 curr=5(all same)\nINFO: Overall"),
        ("count=261", "count=" + "9" * 400),
    ],
)
def test_texts_that_cannot_be(old: str, new: str) -> None:
    assert old in NEW
    with pytest.raises(RuntimeFailure) as failed:
        TOOL.read(NEW.replace(old, new), CPU, CALL)
    assert failed.value.code == "MODEL_FAILED"
    assert len(failed.value.message) < 600


def test_damaged_texts_are_read_or_refused() -> None:
    draw = random.Random(7)
    for _ in range(500):
        cut = draw.randrange(len(NEW))
        noise = "".join(draw.choice("0123456789.e+-= \n\tcountavg:") for _ in range(9))
        text = NEW[:cut] + noise[: draw.randrange(9)] + NEW[cut + draw.randrange(12) :]
        report, code = None, "MODEL_FAILED"
        try:
            report = TOOL.read(text, CPU, CALL)
        except RuntimeFailure as failure:
            code = failure.code
        assert code == "MODEL_FAILED"
        assert report is None or (0 < report.latency_ms < 1e15 and report.runs > 0)


def test_a_delegate_that_takes_nothing() -> None:
    text = OLD.replace(
        "Explicitly applied GPU delegate, and the model graph will be completely executed by",
        "Though GPU delegate is explicitly applied, the model graph will not be executed by",
    )
    with pytest.raises(RuntimeFailure, match="gpu takes nothing") as failed:
        TOOL.read(text, GPU, CALL)
    assert failed.value.code == "MODEL_UNSUPPORTED"
    assert TOOL.read(text, CPU, CALL).conditions["delegated"] == "nothing"


@pytest.mark.parametrize(
    ("text", "code", "wanted"),
    [
        ("ERROR: Failed to load model /m", 1, "MODEL_INVALID"),
        ("ERROR: Could not open '/m'.", 1, "MODEL_INVALID"),
        ("ERROR: Didn't find op for builtin opcode 'X' version '9'", 1, "MODEL_UNSUPPORTED"),
        ("ERROR: Encountered unresolved custom op: Y.", 1, "MODEL_UNSUPPORTED"),
        ("ERROR: Failed to apply GPU delegate.", 1, "MODEL_UNSUPPORTED"),
        ("ERROR: Failed to allocate tensors!", 1, "OUT_OF_MEMORY"),
        ("Benchmarking failed.", 1, "MODEL_FAILED"),
        ("", 139, "MODEL_CRASHED"),
        ("", 134, "MODEL_CRASHED"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", 134, "OUT_OF_MEMORY"),
        ("", 137, "OUT_OF_MEMORY"),
        ("sh: /x: not executable: 64-bit ELF file", 126, "RUNTIME_MISSING"),
        ("CANNOT LINK EXECUTABLE: library not found", 127, "RUNTIME_MISSING"),
    ],
)
def test_exit_codes(text: str, code: int, wanted: str) -> None:
    assert TOOL.failure(text, code).code == wanted


@pytest.mark.parametrize(
    ("variant", "flags"),
    [
        (Variant(), ["--use_xnnpack=true"]),
        (Variant("cpu", "fp16"), ["--use_xnnpack=true", "--xnnpack_force_fp16=true"]),
        (Variant("builtin"), ["--use_xnnpack=false"]),
        (Variant("gpu"), ["--use_gpu=true", "--gpu_precision_loss_allowed=false"]),
        (Variant("gpu", "fp16"), ["--use_gpu=true", "--gpu_precision_loss_allowed=true"]),
        (Variant("nnapi", "int8"), ["--use_nnapi=true", "--nnapi_allow_fp16=false"]),
        (Variant("cpu", "fp32", ("--use_caching=true",)), ["--use_caching=true"]),
    ],
)
def test_flags(variant: Variant, flags: list[str]) -> None:
    loaded = Loaded(Path("m"), {"model.tflite": "/models/m.tflite"})
    found = TOOL.command(loaded, variant, CALL)
    assert set(flags) <= set(found)
    assert {"--graph=/models/m.tflite", "--num_threads=4", "--num_runs=50"} <= set(found)
    assert ("--use_gpu=true" in found) == (variant.delegate == "gpu")
    profiled = TOOL.profile_command(loaded, variant, CALL)
    assert "--enable_op_profiling=true" in profiled


HEADER = "\t[node type]\t[start]\t[first]\t[avg ms]\t[%]\t[cdf%]\t[mem KB]\t[times called]\t[Name]"


def table(*rows: tuple[str, float, str], header: str = HEADER, calls: int = 1) -> str:
    made = [f"\t{kind}\t0.0\t9\t{ms}\t1%\t1%\t0\t{calls}\t{name}" for kind, ms, name in rows]
    return "\n".join(
        [
            "Profiling Info for Benchmark Initialization:",
            "==== Run Order ====",
            header,
            "\tAllocateTensors\t0\t1\t1\t1%\t1%\t0\t1\t[not this]:0",
            "",
            "Operator-wise Profiling Info for Regular Benchmark Runs:",
            "============================== Run Order ==============================",
            header,
            *made,
            "",
            "==== Top by Computation Time ====",
            header,
            "\tCONV_2D\t0\t1\t77\t1%\t1%\t0\t1\t[not this either]:0",
        ]
    )


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """Write a TFLite model with five operators and two outputs, and return its path.

    The chain is x -> RELU -> a -> TANH -> b -> ABS -> c -> RELU6 -> d. LOGISTIC also reads b and
    makes e. The tensor b has the name "b, b]:1".
    """
    writer = SampleWriter()
    x = writer.input([1, 4])
    a = writer.op("RELU", [x], [1, 4])
    b = writer.op("TANH", [a], [1, 4])
    c = writer.op("ABS", [b], [1, 4])
    d = writer.op("RELU6", [c], [1, 4])
    e = writer.op("LOGISTIC", [b], [1, 4])
    writer.output(d, e)
    names = dict(zip((x, a, b, c, d, e), ("x", "a", "b, b]:1", "c", "d", "e")))
    for number, name in names.items():
        writer.described(number).name = name.encode()
    path = tmp_path / "chain.tflite"
    path.write_bytes(writer.finish())
    return path


def test_operators_of_the_cpu(chain: Path) -> None:
    rows = [("RELU", 0.5, "[a]:0"), ("TANH/fast", 1.5, "[b, b]:1]:1"), ("ABS", 0.25, "[c]:2"),
            ("RELU6", 0.1, "[d]:3"), ("LOGISTIC", 0.2, "[e]:4")]  # fmt: skip
    layers = read_layers(table(*rows), chain)
    assert [(layer.name, layer.op, layer.latency_ms, layer.device) for layer in layers] == [
        ("a", "Relu", 0.5, "CPU"),
        ("b, b]:1", "Tanh", 1.5, "CPU"),
        ("c", "Abs", 0.25, "CPU"),
        ("d", "Relu6", 0.1, "CPU"),
        ("e", "Logistic", 0.2, "CPU"),
    ]


def test_partitions_and_what_they_cover(chain: Path) -> None:
    """An operator on the CPU separates two partitions.

    Rows of operators inside a delegate are not counted a second time.
    """
    layers = read_layers(
        table(
            ("TfLiteGpuDelegateV2", 2.0, "[b, b]:1]:5"),
            ("DelegateOpInvoke", 1.9, "Delegate/tanh:0"),
            ("ABS", 0.25, "[c]:2"),
            ("TfLiteGpuDelegateV2", 3.0, "[d, e]:6"),
        ),
        chain,
    )
    assert [(layer.name, layer.op, layer.device) for layer in layers] == [
        ("a+b, b]:1", "Relu+Tanh", "TfLiteGpuDelegateV2"),
        ("c", "Abs", "CPU"),
        ("d+e", "Relu6+Logistic", "TfLiteGpuDelegateV2"),
    ]


def test_several_calls_of_an_operator_in_a_run_add_up(chain: Path) -> None:
    (layer,) = read_layers(table(("Whole", 2.0, "[d, e]:5"), calls=3), chain)
    assert layer.latency_ms == 6.0
    assert layer.name == "a+b, b]:1+c+d+e"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "printed no profile"),
        (table(), "an empty profile"),
        (table(("RELU", 1.0, "[a]:0"), header="\ta\tb"), "without the columns"),
        (table(("RELU", float("nan"), "[a]:0")), "something that is not a time"),
        (table(("RELU", 1.0, "[a]:0"), ("RELU", 1.0, "[a]:0")), "a node twice"),
    ],
)
def test_profiles_that_cannot_be(chain: Path, text: str, says: str) -> None:
    with pytest.raises(RuntimeFailure, match=says) as failed:
        read_layers(text, chain)
    assert failed.value.code == "MODEL_FAILED"


def test_a_partition_of_which_nothing_is_known(chain: Path) -> None:
    rows = [("Npu", 1.0, "[b, b]:1]:5"), ("Npu", 1.0, "[somewhere]:6")]
    with pytest.raises(RuntimeFailure, match="Npu 6 covers") as failed:
        read_layers(table(*rows), chain)
    assert failed.value.code == "MODEL_UNSUPPORTED"


@pytest.mark.parametrize("name", sorted(tflite_samples.samples()))
def test_every_sample_is_covered_as_one_partition(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(tflite_samples.samples()[name])
    (layer,) = read_layers(table(("Whole", 1.0, "[t]:9999")), path)
    assert layer.name.count("+") == layer.op.count("+") > 0 or "+" not in layer.name
