"""Builds int8 TFLite models that Arm's Vela has compiled for an Ethos-U NPU.

The format is "tflite-vela:<accelerator>", for example "tflite-vela:ethos-u65-256". The board runs
the file without further conversion. Vela runs in a process of its own, because it prints messages,
keeps counters in global variables and may crash. Vela's estimate of the latency, and the operators
that it left to the CPU, are appended to the file, where the board's agent finds them. On a real
board, this project's predictors can be compared with Vela's estimate.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from latfarm_predictors.graph.graph import Graph
from numpy.typing import NDArray

from latfarm_controller.builders.tflite.build import build_tflite
from latfarm_controller.errors import BuildError

FORMAT = "tflite-vela"
ACCELERATORS = (
    *(f"ethos-u55-{macs}" for macs in (32, 64, 128, 256)),
    *(f"ethos-u65-{macs}" for macs in (256, 512)),
    *(f"ethos-u85-{macs}" for macs in (128, 256, 512, 1024, 2048)),
)
"""The accelerators for which models can be built, as Vela's `--accelerator-config` names them."""
MAGIC = b"latfarm-vela-1\0\0"
"""A file with an estimate ends with these bytes; the agent's `tflite.vela` looks for them too."""

REMEDY = "install it with: pip install 'latfarm-controller[vela]'"
TIMEOUT_S = 600.0
"""The longest time that Vela may take for one model, in seconds."""
_OLDEST = 5  # the oldest major version of Vela that is supported
_CUSTOM = 32  # the number that TFLite's schema gives to all custom operators
_STREAM = b"ethos-u"  # name of the custom operator that runs on the NPU
_SHOWN_CHARS = 400  # error messages quote at most this many characters of Vela's output


@dataclass(frozen=True)
class VelaSummary:
    """What Vela says about a model.

    `latency_ms` is the estimated latency of the NPU in milliseconds, or 0 if nothing runs there.
    `on_cpu` lists the operators that stay on the CPU. `version` is the version of Vela.
    """

    latency_ms: float
    on_cpu: tuple[str, ...]
    version: str


def build_vela(
    graph: Graph,
    accelerator: str,
    dtype: str = "int8",
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> bytes:
    """Build a compiled model, with Vela's estimate appended.

    Args:
        graph: the network to build.
        accelerator: one of `ACCELERATORS`.
        dtype: must be "int8", because the NPU has no floating-point arithmetic.
        weights: values of weights by name; weights that are not given become noise.

    Raises:
        BuildError: TFLite cannot express the graph, the accelerator is unknown, Vela is not
            installed (the message says how to install it), or Vela refuses the model (the message
            quotes Vela).
    """
    if accelerator not in ACCELERATORS:
        raise BuildError(
            f"{FORMAT}: no accelerator {accelerator!r}; known: {', '.join(ACCELERATORS)}"
        )
    if dtype != "int8":
        raise BuildError(f"{FORMAT} is built as int8, not {dtype!r}")
    version = _version()
    data, latency_ms = _compile(graph, build_tflite(graph, "int8", weights), accelerator)
    return with_estimate(data, VelaSummary(latency_ms, on_cpu(data), version))


def with_estimate(data: bytes, estimate: VelaSummary) -> bytes:
    """Return a file with an estimate appended."""
    text = json.dumps(asdict(estimate), sort_keys=True).encode()
    return data + text + len(text).to_bytes(8, "little") + MAGIC


def estimate_of(data: bytes) -> VelaSummary | None:
    """Return the estimate that is appended to a file; None if there is none."""
    tail = 8 + len(MAGIC)
    if data[-len(MAGIC) :] != MAGIC:
        return None
    length = int.from_bytes(data[-tail : -len(MAGIC)], "little")
    told = json.loads(data[-tail - length : -tail])
    return VelaSummary(told["latency_ms"], tuple(told["on_cpu"]), told["version"])


def on_cpu(data: bytes) -> tuple[str, ...]:
    """Return the operators of a compiled file that do not run on the NPU.

    Each is given by its type and its first output tensor, such as "Softmax 'y'".
    """
    from ai_edge_litert import schema_py_generated as schema

    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if name.isupper()}
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    found = []
    for graph in model.subgraphs:
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            if code.builtinCode == _CUSTOM and code.customCode == _STREAM:
                continue
            makes = graph.tensors[operator.outputs[0]].name.decode()
            found.append(f"{names[code.builtinCode]} {makes!r}")
    return tuple(found)


def _version() -> str:
    try:
        version = metadata.version("ethos-u-vela")
    except metadata.PackageNotFoundError:
        raise BuildError(f"{FORMAT} needs ethos-u-vela, which is not installed; {REMEDY}") from None
    if int(version.split(".", maxsplit=1)[0]) < _OLDEST:
        raise BuildError(
            f"{FORMAT} needs ethos-u-vela {_OLDEST}.0 or newer, {version} is here; {REMEDY}"
        )
    return version


def _compile(graph: Graph, model: bytes, accelerator: str) -> tuple[bytes, float]:
    """Return the file that Vela makes, and its estimate of the latency in milliseconds.

    Raises:
        BuildError: Vela refuses the model, crashes, or does not end within `TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory(prefix="vela-") as name:
        folder = Path(name)
        (folder / "model.tflite").write_bytes(model)
        # Without further options, Vela uses its own default system and memories of an accelerator.
        command = [sys.executable, "-W", "ignore", "-m", "ethosu.vela", "model.tflite"]
        command += ["--output-dir", ".", f"--accelerator-config={accelerator}"]
        try:
            done = subprocess.run(
                command, cwd=name, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"{graph.name}: Vela did not end within {TIMEOUT_S:.0f} s") from None
        made = folder / "model_vela.tflite"
        summaries = list(folder.glob("model_summary_*.csv"))
        if done.returncode or not made.exists() or len(summaries) != 1:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no word"]
            raise BuildError(
                f"{graph.name}: Vela cannot compile it for {accelerator} "
                f"(exit status {done.returncode}): {said[-1][:_SHOWN_CHARS]}"
            )
        return made.read_bytes(), _latency_ms(summaries[0])


def _latency_ms(summary: Path) -> float:
    """Read the estimated latency in milliseconds, which is the total cycles over the core clock.

    It is 0 if Vela scheduled nothing for the NPU.
    """
    with summary.open(newline="") as file:
        (totals,) = csv.DictReader(file)
    return float(totals["cycles_total"]) / float(totals["core_clock"]) * 1e3
