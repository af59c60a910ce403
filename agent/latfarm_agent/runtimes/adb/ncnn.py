"""ncnn's `benchncnn` on a phone: its arguments, and the line that it prints.

Vendor's document: ncnn's benchmark/README.md. It reads a param file alone (the weights are zeros),
warms up eight times (ten on a GPU), and prints least, greatest and average time with two decimals.
It turns half precision on wherever the device has it, and has no flag for that.
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
_MAGIC = "7767517"
_MOST_BYTES = 16 << 20
_DEVICE = {"cpu": "-1", "vulkan": "0"}
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
    """`benchncnn` of 2023 or newer, which takes models of one's own (param=, shape=)."""

    model_format = "ncnn"
    label = "ncnn"

    def inspect(self, model: Path) -> None:
        """Read the param and the shapes of its inputs."""
        _shapes(_param(model))

    def parts(self, model: Path, folder: Path) -> Mapping[str, Path]:
        """The param, which alone is read."""
        param = folder / _PARAM
        param.write_text(_param(model), encoding="ascii")
        return {_PARAM: param}

    def command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Runs, threads, all cores, device, no pause to cool down, model and its inputs' shapes."""
        if call.cold:
            raise RuntimeFailure(
                "SETTINGS_INVALID", f"{_TOOL} always warms up: ask for no cold runs (cold_runs 0)"
            )
        device = _DEVICE[variant.delegate]
        runs, threads = str(call.runs), str(call.threads)
        model = f"param={loaded.files[_PARAM]}"
        shapes = ",".join(_shapes(_param(loaded.model)))
        return [runs, threads, "0", device, "0", model, f"shape={shapes}"]

    def read(self, text: str, variant: Variant, call: BinaryRun) -> Report:
        """One sample: the average of the timed runs."""
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
        """What the library says of models that it does not take."""
        words = f"{_TOOL} ended with exit status {code}{said(text)}"
        return (
            self._refused(text) or ended(_TOOL, text, code) or RuntimeFailure("MODEL_FAILED", words)
        )

    def profile_command(self, loaded: Loaded, variant: Variant, call: BinaryRun) -> list[str]:
        """Never: only a library that was built for it prints times of layers.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE.
        """
        del loaded, variant, call
        raise RuntimeFailure("PROFILE_UNAVAILABLE", f"{_TOOL} tells no times of single layers")

    def layers(self, text: str, variant: Variant, model: Path) -> Sequence[LayerTime]:
        """Never; see `profile_command`."""
        del text, variant, model
        raise RuntimeFailure("PROFILE_UNAVAILABLE", f"{_TOOL} tells no times of single layers")

    def _refused(self, text: str) -> RuntimeFailure | None:
        """The library goes on, with a part of the model, after what it could not read."""
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
    """The param out of a packed model.

    Raises:
        RuntimeFailure: MODEL_INVALID.
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
    """Shapes of the inputs in the file's order, as the tool takes them: "[w,h,c]", "[w,h,d,c]".

    Raises:
        RuntimeFailure: MODEL_INVALID, an input has no shape.
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
