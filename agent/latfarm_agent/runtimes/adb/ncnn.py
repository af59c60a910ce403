"""ncnn's `benchncnn` on a phone: its arguments, and the line that it prints.

It reads only a param file and sets all weights to zero. It warms up eight times (ten times on a
GPU), and prints the least, the greatest and the average time with two decimals. It uses half
precision wherever the device supports it, and has no option to change that. Source: ncnn's
benchmark/README.md.
"""

from __future__ import annotations

import re
import zipfile
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

_TOOL = "benchncnn"
_PARAM = "model.param"
_MAGIC = "7767517"  # the first line of each param file
_MOST_BYTES = 16 << 20  # bound on the size of a param file; our choice
_DEVICE = {"cpu": "-1", "vulkan": "0"}  # delegate -> the argument gpu_device
_NUMBER = r"(\d{1,12}\.\d{2,9})"
_LINE = re.compile(
    rf"\bmin =\s*{_NUMBER}\s+max =\s*{_NUMBER}\s+avg =\s*{_NUMBER}\s*$", re.MULTILINE
)
_LACKING = re.compile(r"layer (\S+) not exists or registered")
_INVALID = (
    "param is too old",
    "parse ",
    "find_blob_index_by_name",
    "load_param",
    "graph not ready",
)
_NO_GPU = ("no vulkan device", "invalid gpu device", "vkcreateinstance failed")


class NcnnBenchmark:
    """`benchncnn` of 2023 or newer, which accepts any model by the arguments param= and shape=."""

    model_format = "ncnn"
    label = "ncnn"

    def inspect(self, model: Path) -> None:
        """Check that the param and the shapes of its inputs can be read."""
        _shapes(_param(model))

    def parts(self, model: Path, folder: Path) -> Mapping[str, Path]:
        """Return the param, the only file that the binary reads."""
        param = folder / _PARAM
        param.write_text(_param(model), encoding="ascii")
        return {_PARAM: param}

    def command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Return runs, threads, all cores, device, no pause to cool down, model, input shapes."""
        if call.cold:
            raise RuntimeFailure("SETTINGS_INVALID", f"{_TOOL} always warms up: set cold_runs to 0")
        device = _DEVICE[variant.delegate]
        runs, threads = str(call.runs), str(call.threads)
        model = f"param={loaded.files[_PARAM]}"
        shapes = ",".join(_shapes(_param(loaded.model)))
        return [runs, threads, "0", device, "0", model, f"shape={shapes}"]

    def read(self, text: str, variant: Variant, call: BinaryRun) -> Report:
        """Read one sample: the average of the timed runs."""
        del variant
        refused = self._refused(text)
        if refused:
            raise refused
        found = _LINE.findall(text)
        if len(found) != 1:
            raise garbled(_TOOL, "printed no timings", text)
        least, most, average = map(float, found[0])
        if not average > 0:
            raise garbled(_TOOL, "ran the model in less than 0.01 ms, or not at all", text)
        if not plausible(average, least, most):
            raise garbled(_TOOL, "contradicts itself", text)
        conditions = {"weights": "zeros", "resolution_ms": "0.01"}
        return Report(average, call.runs, "average", conditions=conditions)

    def failure(self, text: str, code: int) -> RuntimeFailure:
        """Recognise the messages of ncnn about models that it does not accept."""
        words = f"{_TOOL} ended with exit status {code}{said(text)}"
        return (
            self._refused(text) or ended(_TOOL, text, code) or RuntimeFailure("MODEL_FAILED", words)
        )

    def profile_command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Raise PROFILE_UNAVAILABLE: only a special build of ncnn prints the times of layers.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE, always.
        """
        del loaded, variant, call
        raise RuntimeFailure("PROFILE_UNAVAILABLE", f"{_TOOL} tells no times of single layers")

    def layers(self, text: str, variant: Variant, model: Path) -> Sequence[LayerTime]:
        """Raise PROFILE_UNAVAILABLE, as `profile_command` does."""
        del text, variant, model
        raise RuntimeFailure("PROFILE_UNAVAILABLE", f"{_TOOL} tells no times of single layers")

    def _refused(self, text: str) -> RuntimeFailure | None:
        """Return the failure that ncnn printed; None if it printed none.

        ncnn goes on with a part of the model after an error, so the exit code does not show it.
        """
        low = text.lower()
        lacking = _LACKING.search(text)
        if lacking:
            return RuntimeFailure("MODEL_UNSUPPORTED", f"ncnn has no layer {lacking[1]}")
        if any(sign in low for sign in _NO_GPU):
            return RuntimeFailure("RUNTIME_MISSING", f"ncnn finds no GPU here{said(text)}")
        if any(sign in low for sign in _INVALID):
            return RuntimeFailure("MODEL_INVALID", f"ncnn does not read the model{said(text)}")
        return None


def _param(model: Path) -> str:
    """Read the param from a packed model.

    Raises:
        RuntimeFailure: MODEL_INVALID if there is no valid param.
    """
    wrong = ""
    try:
        with zipfile.ZipFile(model) as archive:
            entry = archive.getinfo(_PARAM)
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > _MOST_BYTES:
                wrong, text = "is compressed or too long", ""
            else:
                text = archive.read(entry).decode("ascii")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise RuntimeFailure("MODEL_INVALID", f"not a packed ncnn model: {error}") from error
    if not wrong and text.split("\n", 1)[0].strip() != _MAGIC:
        wrong = "does not begin with ncnn's number"
    if wrong:
        raise RuntimeFailure("MODEL_INVALID", f"not a packed ncnn model: {_PARAM} {wrong}")
    return text


def _shapes(param: str) -> list[str]:
    """Return the shapes of the inputs as arguments, in the file's order: "[w,h,c]", "[w,h,d,c]".

    Raises:
        RuntimeFailure: MODEL_INVALID if an input has no shape, or there are no inputs.
    """
    found = []
    for line in param.splitlines()[2:]:
        words = line.split()
        if len(words) < 5 or words[0] != "Input":
            continue
        given = dict(word.split("=", 1) for word in words[5:] if "=" in word)
        sizes = [given[key] for key in ("0", "1", "11", "2") if given.get(key, "0") != "0"]
        if not sizes or not all(size.isdigit() for size in sizes):
            raise RuntimeFailure("MODEL_INVALID", f"input {words[4]!r} has no shape in the file")
        found.append(f"[{','.join(sizes)}]")
    if not found:
        raise RuntimeFailure("MODEL_INVALID", "the model has no inputs")
    return found
