"""MNN's `benchmark.out` on a phone, and `MNNV2Basic.out` for the times of single operators.

`benchmark.out` runs every model of a folder and prints the greatest, the least and the average time
of each, with a resolution of a microsecond. Source: the pages "Benchmark" and "Test tools" of MNN's
documentation.
"""

from __future__ import annotations

import math
import mmap
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
from latfarm_agent.runtimes.base import LayerTime, RuntimeFailure
from latfarm_agent.runtimes.flatbuffer import Flatbuffer

_TOOL = "MNN's benchmark"
_MODEL = "model.mnn"
_FORWARD = {"cpu": 0, "opencl": 3, "vulkan": 7}  # delegate -> MNNForwardType
_PRECISION = {"fp32": 1, "fp16": 2}  # element type -> MNN's precision: high, low
_MOST_WARMUP_RUNS = 1000  # bound on the warm-up runs of very fast models; our choice
_NUMBER = r"(\d{1,12}\.\d{1,9})"
_LINE = re.compile(
    rf"^\[ - \] {re.escape(_MODEL)}\s+max =\s*{_NUMBER} ms\s+min =\s*{_NUMBER} ms"
    rf"\s+avg =\s*{_NUMBER} ms\s*$",
    re.MULTILINE,
)
_OPERATOR = re.compile(
    rf"^\s*(\S.*?)\s*\t\[(\w+)\] run \d+ average cost {_NUMBER} ms, .*$", re.MULTILINE
)
_TOTAL = re.compile(rf"^Avg= {_NUMBER} ms, min= {_NUMBER} ms, max= {_NUMBER} ms\s*$", re.MULTILINE)
_UNSUPPORTED = re.compile(r"don't support type|not support", re.IGNORECASE)
# Layout of the first fields of MNN's table Net: bizCode, extraTensorDescribe, extraInfo, oplists.
_NET = "sooo"


class MnnBenchmark:
    """`benchmark.out`: CPU, OpenCL and Vulkan."""

    model_format = "mnn"
    label = "mnn"

    def inspect(self, model: Path) -> None:
        """Check that the file is a flatbuffer with operators; the binary would crash on others."""
        try:
            with model.open("rb") as file, mmap.mmap(
                file.fileno(), 0, access=mmap.ACCESS_READ
            ) as m:
                flat = Flatbuffer(m)
                operators = flat.tables(flat.table(flat.root(), _NET)[3])
        except (OSError, ValueError) as error:
            raise RuntimeFailure("MODEL_INVALID", f"not an MNN model: {error}") from error
        if not operators:
            raise RuntimeFailure("MODEL_INVALID", "not an MNN model: it has no operators")

    def parts(self, model: Path, folder: Path) -> Mapping[str, Path]:
        """Return the file itself; it is alone in its folder on the phone."""
        del folder
        return {_MODEL: model}

    def command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Return folder, runs, warm-up runs, back end, threads and precision."""
        warmup = call.warmup_runs
        if call.expected_ms:
            enough = math.ceil(call.warmup_s * 1e3 / call.expected_ms)
            warmup = max(warmup, min(_MOST_WARMUP_RUNS, enough))
        return [
            loaded.files[_MODEL].rsplit("/", 1)[0],
            str(1 if call.cold else call.runs),
            str(0 if call.cold else warmup),
            str(_FORWARD[variant.delegate]),
            str(call.threads),
            str(_PRECISION[variant.dtype]),
        ]

    def read(self, text: str, variant: Variant, call: BinaryRun) -> Report:
        """Read one sample: the average of the timed runs."""
        del variant
        found = _LINE.findall(text)
        if len(found) != 1:
            raise _unread(text)
        most, least, average = map(float, found[0])
        if not average > 0 or not plausible(average, least, most):
            raise garbled(_TOOL, "contradicts itself", text)
        return Report(average, 1 if call.cold else call.runs, "average")

    def failure(self, text: str, code: int) -> RuntimeFailure:
        """Judge by the exit code and by what the library printed; the binary has no messages."""
        if _UNSUPPORTED.search(text):
            return RuntimeFailure("MODEL_UNSUPPORTED", f"MNN lacks an operator{said(text)}")
        words = f"{_TOOL} ended with exit status {code}{said(text)}"
        return ended(_TOOL, text, code) or RuntimeFailure("MODEL_FAILED", words)

    def profile_command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Return the arguments of MNNV2Basic.out: model, runs, save nothing, back end, threads."""
        if variant.dtype != "fp16":
            raise RuntimeFailure(
                "PROFILE_UNAVAILABLE",
                "MNNV2Basic computes in low precision unless it is given a shape: "
                "profile on a platform with fp16",
            )
        forward = str(_FORWARD[variant.delegate])
        return [loaded.files[_MODEL], str(call.runs), "0", forward, str(call.threads)]

    def layers(self, text: str, variant: Variant, model: Path) -> Sequence[LayerTime]:
        """Read the operators, the fastest first: the binary prints them in this order only."""
        del model
        if not _TOTAL.search(text):
            raise garbled("MNNV2Basic", "printed no timings", text)
        device = "CPU" if variant.delegate == "cpu" else variant.delegate
        layers: dict[str, LayerTime] = {}
        for name, op, spent in _OPERATOR.findall(text):
            layers[name] = LayerTime(name, op, float(spent), device)
        if not layers:
            raise garbled("MNNV2Basic", "printed no operators", text)
        return list(layers.values())


def _unread(text: str) -> RuntimeFailure:
    if _UNSUPPORTED.search(text):
        return RuntimeFailure("MODEL_UNSUPPORTED", f"MNN lacks an operator{said(text)}")
    return garbled(_TOOL, "printed no timings", text)
