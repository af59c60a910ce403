"""TFLite's `benchmark_model` on a phone: its command line, and the text that it prints.

It prints only statistics of the timed runs: count, first, last, least, greatest, average and
standard deviation; newer versions also print the median. Sources: "TFLite Model Benchmark Tool with
C++ Binary" and "TFLite Delegate Utilities for Tooling", two READMEs of TensorFlow Lite's tools.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping, Sequence

from latfarm_agent.runtimes.adb.options import Variant
from latfarm_agent.runtimes.adb.report import (
    BinaryRun,
    Loaded,
    Report,
    ended,
    garbled,
    plausible,
    said,
)
from latfarm_agent.runtimes.adb.tflite_layers import read_layers
from latfarm_agent.runtimes.base import LayerTime, RuntimeFailure
from latfarm_agent.runtimes.tflite_format.check import check_file

_TOOL = "benchmark_model"
_NUMBER = r"(\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?)"
_COUNT = re.compile(
    rf"\bcount=(\d{{1,12}})"
    rf"(?: first={_NUMBER} curr={_NUMBER} min={_NUMBER} max={_NUMBER} avg={_NUMBER} std={_NUMBER}"
    rf"| curr={_NUMBER}(?:\(all same\))?)"
    rf"(?: p5={_NUMBER} median={_NUMBER} p95={_NUMBER})?\s*$",
    re.MULTILINE,
)
_SUMMARY = re.compile(
    rf"\bInference timings in us: Init: {_NUMBER}, First inference: {_NUMBER}, "
    rf"Warmup \(avg\): {_NUMBER}, Inference \(avg\): {_NUMBER}\s*$",
    re.MULTILINE,
)
_PEAK = re.compile(rf"\bOverall peak memory footprint \(MB\) via periodic monitoring: {_NUMBER}")
_APPLIED = re.compile(
    r"model graph will be (completely|partially) executed by the delegate"
    r"(?: w/ (\d{1,6}) delegate kernels)?"
)
_NOT_APPLIED = "model graph will not be executed by the delegate"
_INVALID = (
    "failed to load model",
    "failed to mmap model",
    "could not open",
    "model provided has model identifier",
    "the model is not a valid flatbuffer",
    "failed to construct interpreter",
    "failed to initialize the interpreter",
)
_UNSUPPORTED = (
    "didn't find op",
    "unresolved custom op",
    "custom op",
    "regular tensorflow ops",
    "unsupported",
    "not supported",
    "failed to apply",
)


class TfliteBenchmark:
    """`benchmark_model` on the CPU (with or without XNNPACK), on the GPU and on NNAPI."""

    model_format = "tflite"
    label = "tflite"

    def inspect(self, model: Path) -> None:
        """Check the file, as every TFLite file is checked before an interpreter loads it."""
        check_file(model)

    def parts(self, model: Path, folder: Path) -> Mapping[str, Path]:
        """Return the file itself."""
        del folder
        return {"model.tflite": model}

    def command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Return the flags of one call; the warm-up run of a cold call is the cold run."""
        runs, warmup_runs, warmup_s = call.runs, call.warmup_runs, call.warmup_s
        if call.cold:
            runs, warmup_runs, warmup_s = 1, 1, 0.0
        flags = [
            f"--graph={loaded.files['model.tflite']}",
            f"--num_threads={call.threads}",
            f"--num_runs={runs}",
            "--min_secs=0",
            f"--max_secs={call.call_s:g}",
            f"--warmup_runs={warmup_runs}",
            f"--warmup_min_secs={warmup_s:g}",
            *_delegate_flags(variant),
        ]
        if call.inquire:
            flags.append("--report_peak_memory_footprint=true")
        return [*flags, *variant.arguments]

    def read(self, text: str, variant: Variant, call: BinaryRun) -> Report:
        """Read one sample: the median of the timed runs, or their average if none is printed."""
        conditions = _delegated(text, variant)
        counts = [_Stat(match) for match in _COUNT.finditer(text)]
        summaries = list(_SUMMARY.finditer(text))
        if len(counts) != 2 or len(summaries) != 1:
            raise garbled(_TOOL, "printed no timings", text)
        warmup, timed = counts
        init_us, first_us, _, average_us = map(float, summaries[0].groups())
        # Both lines print the same average with six digits.
        if abs(timed.average_us - average_us) > 1e-4 * average_us + 1.0 or not timed.sound:
            raise garbled(_TOOL, "contradicts itself", text)
        if not warmup.sound or timed.runs < 1:
            raise garbled(_TOOL, "timed no run", text)
        conditions["first_inference_ms"] = f"{first_us / 1e3:g}"
        peak = _PEAK.search(text)
        if peak:
            conditions["phone_peak_memory_mb"] = f"{float(peak[1]):g}"
        latency_us, runs, statistic = timed.median_us, timed.runs, "median"
        if latency_us is None:
            latency_us, statistic = timed.average_us, "average"
        if call.cold:
            latency_us, runs, statistic = first_us, 1, "first run"
        if not latency_us > 0:
            raise garbled(_TOOL, "timed runs of less than a microsecond", text)
        return Report(latency_us / 1e3, runs, statistic, init_us / 1e3, conditions)

    def failure(self, text: str, code: int) -> RuntimeFailure:
        """Recognise the messages of the binary about models that it does not accept."""
        low = text.lower()
        words = f"{_TOOL} ended with exit status {code}{said(text)}"
        if any(sign in low for sign in _UNSUPPORTED):
            return RuntimeFailure("MODEL_UNSUPPORTED", words)
        typed = ended(_TOOL, text, code)
        if typed:
            return typed
        if any(sign in low for sign in _INVALID):
            return RuntimeFailure("MODEL_INVALID", words)
        return RuntimeFailure("MODEL_FAILED", words)

    def profile_command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Return the flags of a call with the profiler, whose buffer must hold a run's events."""
        return [
            *self.command(loaded, variant, call),
            "--enable_op_profiling=true",
            "--max_profiling_buffer_entries=16384",
        ]

    def layers(self, text: str, variant: Variant, model: Path) -> Sequence[LayerTime]:
        """Read operators and partitions of delegates, named after the operators that they cover."""
        del variant
        return read_layers(text, model)


class _Stat:
    """One line of statistics, in microseconds."""

    def __init__(self, match: re.Match[str]) -> None:
        count, first, last, least, most, average, _, same, p5, median, p95 = match.groups()
        self.runs = int(count)
        self.average_us = float(average or same)
        self.median_us = float(median) if median else None
        least_us, most_us = float(least or same), float(most or same)
        told = [self.average_us, float(first or same), float(last or same)]
        told += [float(value) for value in (p5, median, p95) if value]
        self.sound = all(plausible(us / 1e3, least_us / 1e3, most_us / 1e3) for us in told)


def _delegate_flags(variant: Variant) -> list[str]:
    half = variant.dtype == "fp16"
    if variant.delegate == "gpu":
        return ["--use_gpu=true", f"--gpu_precision_loss_allowed={str(half).lower()}"]
    if variant.delegate == "nnapi":
        return ["--use_nnapi=true", f"--nnapi_allow_fp16={str(half).lower()}"]
    if variant.delegate == "builtin":
        return ["--use_xnnpack=false"]
    return ["--use_xnnpack=true", *(["--xnnpack_force_fp16=true"] if half else [])]


def _delegated(text: str, variant: Variant) -> dict[str, str]:
    """Return a condition that says how much of the model a delegate took.

    Raises:
        RuntimeFailure: MODEL_UNSUPPORTED if an accelerator took nothing, as the time would be that
            of the CPU.
    """
    if _NOT_APPLIED in text:
        if variant.delegate == "cpu":
            return {"delegated": "nothing"}
        raise RuntimeFailure("MODEL_UNSUPPORTED", f"{variant.delegate} takes nothing of the model")
    found = _APPLIED.search(text)
    if not found:
        return {}
    told = "all" if found[1] == "completely" else "a part"
    return {"delegated": told + (f", {found[2]} partitions" if found[2] else "")}
