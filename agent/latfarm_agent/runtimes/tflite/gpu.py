"""Whether LiteRT's GPU accelerator works on a board, tried in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from latfarm_agent.runtimes.tflite.litert import GPU_LIBRARY

_TIMEOUT_S = 120.0
"""Time in which the tiny model must have run; our choice, as a first compilation may take long."""
_SHOWN_CHARS = 300
"""Length to which messages of LiteRT are cut."""
_PROBE = """
import json, sys, tempfile
from pathlib import Path
given = json.loads(sys.argv[1])
sys.path[:0] = given["path"]
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.tflite.gpu import smallest_model
from latfarm_agent.runtimes.tflite.litert import CompiledModel, LitertDevice
with tempfile.TemporaryDirectory() as name:
    path = Path(name) / "model.tflite"
    path.write_bytes(smallest_model())
    try:
        model = CompiledModel(Path(given["folder"]), path, LitertDevice(gpu=True), profiling=False)
        model.run()
        model.close()
    except RuntimeFailure as failure:
        sys.exit("refused: " + failure.message)
print("made")
"""


def works(folder: Path) -> str:
    """Return why LiteRT cannot use a GPU here; empty if it can.

    Args:
        folder: the folder of LiteRT's libraries.
    """
    if not (folder / GPU_LIBRARY).is_file():
        return f"this build of LiteRT has no {GPU_LIBRARY}"
    given = json.dumps({"path": sys.path, "folder": str(folder)})
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, given],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return f"the GPU could not be tried: {error}"[:_SHOWN_CHARS]
    if done.returncode == 0 and b"made" in done.stdout:
        return ""
    text = done.stderr.decode(errors="replace")
    lines = [line for line in text.splitlines() if "ERROR" in line or "refused" in line]
    reason = next((line for line in lines if "adapter" in line), lines[-1] if lines else "")
    return (
        f"LiteRT's GPU accelerator does not work here ({' '.join(reason.split())[:_SHOWN_CHARS]}); "
        "it needs a GPU with a Vulkan driver"
    )


def smallest_model() -> bytes:
    """Return a TFLite file with one activation."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    def tensor(name: bytes) -> object:
        made = schema.TensorT()
        made.name, made.shape = name, [1, 4, 4, 4]
        return made

    operator = schema.OperatorT()
    operator.inputs, operator.outputs = [0], [1]
    graph = schema.SubGraphT()
    graph.name, graph.inputs, graph.outputs = b"main", [0], [1]
    graph.tensors, graph.operators = [tensor(b"x"), tensor(b"y")], [operator]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.RELU
    code.version = 1
    model = schema.ModelT()
    model.version, model.subgraphs = 3, [graph]
    model.operatorCodes, model.buffers = [code], [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
