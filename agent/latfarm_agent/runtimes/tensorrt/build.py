"""Builds TensorRT engines from ONNX on the board that runs them, for TensorRT 8.4 to 11.

A serialised engine is machine code, so an engine never leaves the process that built it: engines
are not sent, not accepted from others, and not read from a disk. Sources: NVIDIA, "TensorRT Python
API" of versions 8.6, 10.3 and 11.4; "TensorRT Developer Guide", chapters on types, DLA and timing
caches.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.onnx.outside import check_self_contained
from latfarm_agent.runtimes.onnx.wire import WireNode, read_nodes
from latfarm_agent.runtimes.tensorrt.cache import TimingCache

_ERROR, _INFO = 1, 3  # ILogger.Severity; INTERNAL_ERROR is 0
_LIMIT_BYTES = (2 << 30) - 1  # largest size of a protobuf message
_KEPT_ERRORS = 40  # number of errors that a journal keeps
_SHOWN = 600  # characters to which messages are cut
_PLACED = re.compile(r"^\[(?P<place>Dla|Gpu)Layer\] (?:[A-Z][A-Z0-9_]+: )?(?P<layer>.+)$")
_NO_MEMORY = (
    "out of memory",
    "outofmemory",
    "out_of_memory",
    "memoryallocation",
    "mem_alloc",
    "bad_alloc",
    "insufficient memory",
    "failed_allocation",
)
_LACKING = (
    "no importer registered",
    "plugin not found",
    "could not find plugin",
    "not supported",
    "unsupported",
    "could not find any implementation",
)


class Journal:
    """Collects what TensorRT logs: its errors, and where it placed layers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: list[str] = []
        self._placed: dict[str, list[str]] = {"Dla": [], "Gpu": []}

    def add(self, severity: int, text: str) -> None:
        """Add one message of TensorRT's log."""
        if severity <= _ERROR:
            with self._lock:
                self._errors.append(_one_line(text))
                del self._errors[:-_KEPT_ERRORS]
        elif severity == _INFO:
            found = _PLACED.match(text.strip())
            if found:
                with self._lock:
                    self._placed[found["place"]].append(found["layer"])

    def errors(self) -> str:
        """Return the errors since the last call, on one line; empty if there were none."""
        with self._lock:
            told, self._errors = " | ".join(self._errors), []
        return told

    def placed(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of layers placed on the DLA and on the GPU since the last call."""
        with self._lock:
            told = tuple(self._placed["Dla"]), tuple(self._placed["Gpu"])
            self._placed = {"Dla": [], "Gpu": []}
        return told


def make_logger(trt: Any, journal: Journal) -> Any:
    """Make a logger for TensorRT that writes into a journal."""

    class _Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            journal.add(int(severity), msg)

    return _Logger()


class OnnxFiles(NamedTuple):
    """The files of a model: the ONNX file, and the names of the files beside it that hold data."""

    path: Path
    companions: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnginePlan:
    """How to build an engine: the element type, the typing ("strong" or "weak"), and options.

    The options are explained in `tensorrt.options.TensorRtOptions`.
    """

    dtype: str
    typing: str
    tf32: bool = True
    dla_core: int | None = None
    workspace_mib: int | None = None
    optimization_level: int | None = None


@dataclass(frozen=True)
class BuiltEngine:
    """An engine, and facts about its build.

    Attributes:
        engine: the engine.
        runtime: the TensorRT runtime that the engine depends on; drop the engine first.
        compile_ms: time of the build.
        nodes: nodes of the model.
        inputs: names of the model's inputs.
        on_dla: names of the layers on the DLA, as far as the builder logged them.
        on_gpu: names of the layers on the GPU, as far as the builder logged them.
        cached: whether the build used timings of an earlier build.
        quantised: whether the model quantises anything.
    """

    engine: Any
    runtime: Any
    compile_ms: float
    nodes: tuple[WireNode, ...]
    inputs: tuple[str, ...]
    on_dla: tuple[str, ...]
    on_gpu: tuple[str, ...]
    cached: bool
    quantised: bool


def read_model(path: Path, companions: Sequence[str] = ()) -> tuple[bytes, tuple[WireNode, ...]]:
    """Read a file; return its bytes and its nodes.

    Args:
        path: the ONNX file.
        companions: names of the files beside it in which it may have weights.

    Raises:
        RuntimeFailure: MODEL_INVALID if it is not an ONNX file, too large, or has weights in
            another file that is not one of `companions`.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _LIMIT_BYTES:
            raise RuntimeFailure(
                "MODEL_INVALID", f"the ONNX file itself has {size_bytes} bytes, over 2 GiB"
            )
        nodes = tuple(read_nodes(path))
        data = path.read_bytes()
    except (ValueError, OSError) as error:
        raise RuntimeFailure("MODEL_INVALID", str(error)) from error
    check_self_contained(path, companions)
    if not nodes:
        raise RuntimeFailure("MODEL_INVALID", "not an ONNX model: it has no node")
    return data, nodes


def build(
    trt: Any, logger: Any, journal: Journal, files: OnnxFiles, plan: EnginePlan, cache: TimingCache
) -> BuiltEngine:
    """Parse a model and build its engine.

    Without a timing cache, building a large model takes minutes. TensorRT's parser looks for the
    files that a model names in the folder of the path that it is given ("TensorRT Python API",
    `OnnxParser.parse`). It is given one only for a model with companions. Before that, every name
    in the model is compared with those of the companions.

    Args:
        trt: the TensorRT module.
        logger: TensorRT's logger, which writes into `journal`.
        journal: collects TensorRT's messages.
        files: the model.
        plan: how to build.
        cache: timings of earlier builds, which the build updates.

    Raises:
        RuntimeFailure: MODEL_INVALID, MODEL_UNSUPPORTED (names the node), OUT_OF_MEMORY or
            MODEL_FAILED.
    """
    data, nodes = read_model(*files)
    journal.errors()
    journal.placed()
    builder = trt.Builder(logger)
    network = builder.create_network(_network_flags(trt, plan))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(data, *((str(files.path),) if files.companions else ())):
        raise _parser_failure(parser, nodes, journal)
    del data
    quantised = any(node.op == "QuantizeLinear" for node in nodes)
    if quantised and plan.dtype != "int8":
        raise RuntimeFailure(
            "MODEL_INVALID", "the model computes in int8: measure it on an int8 platform"
        )
    _check(trt, network, plan)
    config = builder.create_builder_config()
    _configure(trt, config, plan)
    cached = _attach(config, cache)
    begun = time.perf_counter()
    serialised = builder.build_serialized_network(network, config)
    if serialised is None:
        raise failure(journal.errors() or "the builder gave no engine and no reason", "building")
    compile_ms = (time.perf_counter() - begun) * 1e3
    kept = config.get_timing_cache()
    timings = kept.serialize() if kept is not None else None
    if timings is not None:
        cache.save(bytes(memoryview(timings)))
    on_dla, on_gpu = journal.placed()
    runtime = trt.Runtime(logger)
    if plan.dla_core is not None:
        runtime.DLA_core = plan.dla_core
    engine = runtime.deserialize_cuda_engine(serialised)
    if engine is None:
        raise failure(journal.errors() or "the engine that was built does not load", "loading")
    inputs = tuple(str(network.get_input(i).name) for i in range(network.num_inputs))
    return BuiltEngine(
        engine, runtime, compile_ms, nodes, inputs, on_dla, on_gpu, cached, quantised
    )


def failure(text: str, doing: str) -> RuntimeFailure:
    """Turn an error message that TensorRT logged while it was `doing` something into a failure."""
    low = text.lower()
    code = "MODEL_FAILED"
    if any(sign in low for sign in _NO_MEMORY):
        code = "OUT_OF_MEMORY"
    elif doing == "building" and any(sign in low for sign in _LACKING):
        code = "MODEL_UNSUPPORTED"
    return RuntimeFailure(code, f"TensorRT failed while {doing}: {text}"[:_SHOWN])


def _network_flags(trt: Any, plan: EnginePlan) -> int:
    # Find flags by name: bit 0 is explicit batch up to version 10, strong typing in version 11.
    kinds = trt.NetworkDefinitionCreationFlag
    wanted = ["EXPLICIT_BATCH"] + (["STRONGLY_TYPED"] if plan.typing == "strong" else [])
    return sum(1 << int(getattr(kinds, name)) for name in wanted if hasattr(kinds, name))


def _configure(trt: Any, config: Any, plan: EnginePlan) -> None:
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    flags = trt.BuilderFlag
    if not plan.tf32:
        config.clear_flag(flags.TF32)
    if plan.typing == "weak":
        if plan.dtype == "fp16" or (plan.dtype == "int8" and plan.dla_core is not None):
            config.set_flag(flags.FP16)  # what a DLA cannot do in int8 it can do in fp16
        if plan.dtype == "int8":
            config.set_flag(flags.INT8)
    if plan.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, plan.workspace_mib << 20)
    if plan.optimization_level is not None and hasattr(config, "builder_optimization_level"):
        config.builder_optimization_level = plan.optimization_level
    if plan.dla_core is not None:
        config.default_device_type = trt.DeviceType.DLA
        config.DLA_core = plan.dla_core
        config.set_flag(flags.GPU_FALLBACK)


def _attach(config: Any, cache: TimingCache) -> bool:
    """Give the builder the timings of earlier builds; return whether there were any."""
    saved = cache.load()
    timings = config.create_timing_cache(saved)
    if timings is not None and config.set_timing_cache(timings, False):
        return bool(saved)
    # TensorRT refuses a cache of another driver or of another board of the same name.
    cache.drop()
    fresh = config.create_timing_cache(b"")
    if fresh is not None:
        config.set_timing_cache(fresh, False)
    return False


def _check(trt: Any, network: Any, plan: EnginePlan) -> None:
    """Check that the inputs can be filled, and that tensors have the type of the platform."""
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if any(size < 0 for size in tensor.shape):
            raise RuntimeFailure(
                "MODEL_INVALID",
                f"input {tensor.name!r} has an open dimension: {list(tensor.shape)}",
            )
        if tensor.is_shape_tensor:
            raise RuntimeFailure(
                "MODEL_UNSUPPORTED", f"input {tensor.name!r} decides shapes: noise cannot fill it"
            )
    types = set()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for output in range(layer.num_outputs):
            tensor = layer.get_output(output)
            if tensor is not None:
                types.add(tensor.dtype)
    kinds = trt.DataType
    if plan.dtype == "fp32" and kinds.HALF in types:
        raise RuntimeFailure(
            "MODEL_INVALID", "the model computes in fp16: measure it on an fp16 platform"
        )
    floats = kinds.FLOAT in types
    if plan.typing == "strong" and plan.dtype == "fp16" and floats and kinds.HALF not in types:
        raise RuntimeFailure(
            "MODEL_INVALID",
            "the model computes in fp32, and a strongly typed network uses the types of the model: "
            "build it as fp16",
        )


def _parser_failure(parser: Any, nodes: Sequence[WireNode], journal: Journal) -> RuntimeFailure:
    """Return the typed failure for a model that the parser refused, naming the node."""
    told = journal.errors()
    code, message = "MODEL_INVALID", told or "the parser gave no reason"
    if parser.num_errors:
        error = parser.get_error(0)  # the further errors follow from the first
        kind, text, place = error.code().name, _one_line(error.desc()), error.node()
        if kind == "MEM_ALLOC_FAILED":
            code = "OUT_OF_MEMORY"
        elif kind.startswith("UNSUPPORTED") or any(sign in text.lower() for sign in _LACKING):
            code = "MODEL_UNSUPPORTED"
        message = f"{kind}: {text}"
        if kind != "MODEL_DESERIALIZE_FAILED" and 0 <= place < len(nodes):
            node = nodes[place]
            name = node.name or (node.outputs[0] if node.outputs else str(place))
            message = f"node {name!r} ({node.op}): {message}"
    return RuntimeFailure(code, f"TensorRT's parser refused the model: {message}"[:_SHOWN])


def _one_line(text: str) -> str:
    return " ".join(text.split())
