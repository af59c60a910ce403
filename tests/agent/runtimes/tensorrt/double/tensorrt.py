"""A strict double of TensorRT's Python package, for tests without a GPU.

It offers what latfarm calls and nothing else, under the names and with the signatures of the
vendor's package (`test_vendor_bindings.py` compares them), and refuses what that would refuse. It
parses real ONNX, fuses by simple rules, and "runs" an engine as work on a stream of the CUDA
driver's double, with memory that must be there. `LATFARM_TENSORRT_DOUBLE` says which version's
interface it has: 8.4, 8.6, 10.3 or 11.4. Attributes that begin with "_" are its own.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
from typing import Any, ClassVar

__version__ = os.environ.get("LATFARM_TENSORRT_DOUBLE", "10.3") + ".0"
_VERSION = tuple(int(part) for part in __version__.split(".")[:2])

# Beside this file, which only a worker's module search path knows.
_fusion: Any = importlib.import_module("double_fusion")
_driver = ctypes.CDLL("libcuda.so.1")
_driver.latfarm_double_launch.argtypes = (
    ctypes.c_void_p,
    ctypes.c_double,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_driver.latfarm_double_capturing.argtypes = (ctypes.c_void_p,)
_driver.cuStreamSynchronize.argtypes = (ctypes.c_void_p,)


class Misuse(Exception):
    """The real package would crash, hang or answer nonsense."""


def _check(right: object, what: str) -> None:
    if not right:
        raise Misuse(what)


class _Bound:
    """Like a class of the vendor's: public attributes that it does not have cannot be set."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not isinstance(getattr(type(self), name, None), property):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        super().__setattr__(name, value)


class _Member:
    """A member of an enumeration of the vendor's: no integer, but it converts to one."""

    __members__: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str, value: int) -> None:
        self.name = name
        self.value = value

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"


def _enumeration(title: str, **members: int) -> Any:
    kind: Any = type(title, (_Member,), {})
    kind.__members__ = {name: kind(name, value) for name, value in members.items()}
    for name, member in kind.__members__.items():
        setattr(kind, name, member)
    return kind


_old, _new = _VERSION < (10,), _VERSION >= (11,)
if _new:
    NetworkDefinitionCreationFlag = _enumeration("NetworkDefinitionCreationFlag", STRONGLY_TYPED=0)
    BuilderFlag = _enumeration("BuilderFlag", GPU_FALLBACK=3, TF32=6)
elif _old:
    NetworkDefinitionCreationFlag = _enumeration("NetworkDefinitionCreationFlag", EXPLICIT_BATCH=0)
    BuilderFlag = _enumeration("BuilderFlag", FP16=0, INT8=1, GPU_FALLBACK=3, TF32=7)
else:
    NetworkDefinitionCreationFlag = _enumeration(
        "NetworkDefinitionCreationFlag", EXPLICIT_BATCH=0, STRONGLY_TYPED=1
    )
    BuilderFlag = _enumeration("BuilderFlag", FP16=0, INT8=1, GPU_FALLBACK=3, TF32=6)
_types = {"FLOAT": 0, "HALF": 1, "INT8": 2, "INT32": 3, "BOOL": 4, "UINT8": 5}
DataType = _enumeration("DataType", **_types, **({} if _old else {"INT64": 8}))
DeviceType = _enumeration("DeviceType", GPU=0, DLA=1)
LayerInformationFormat = _enumeration("LayerInformationFormat", ONELINE=0, JSON=1)
MemoryPoolType = _enumeration("MemoryPoolType", WORKSPACE=0)
ProfilingVerbosity = _enumeration("ProfilingVerbosity", LAYER_NAMES_ONLY=0, NONE=1, DETAILED=2)
TensorIOMode = _enumeration("TensorIOMode", NONE=0, INPUT=1, OUTPUT=2)
TensorLocation = _enumeration("TensorLocation", DEVICE=0, HOST=1)
ErrorCode = _enumeration(
    "ErrorCode",
    **{
        name: number
        for number, name in enumerate(
            (
                "SUCCESS",
                "INTERNAL_ERROR",
                "MEM_ALLOC_FAILED",
                "MODEL_DESERIALIZE_FAILED",
                "INVALID_VALUE",
                "INVALID_GRAPH",
                "INVALID_NODE",
                "UNSUPPORTED_GRAPH",
                "UNSUPPORTED_NODE",
            )
        )
    },
)
_SIZES = {"FLOAT": 4, "HALF": 2, "INT8": 1, "INT32": 4, "BOOL": 1, "UINT8": 1, "INT64": 8}
# TensorProto.DataType -> DataType; before version 10 integers are cut to 32 bits.
_ELEMENTS = {
    1: "FLOAT",
    2: "UINT8",
    3: "INT8",
    6: "INT32",
    7: "INT32" if _old else "INT64",
    9: "BOOL",
    10: "HALF",
}
_DLA_CORES = 2
_GPU = "Double GPU 8.7"


class ILogger(_Bound):
    """To be subclassed; `__init__` must be called."""

    Severity = _enumeration("Severity", INTERNAL_ERROR=0, ERROR=1, WARNING=2, INFO=3, VERBOSE=4)

    def __init__(self) -> None:
        self._ready = True

    def log(self, severity: Any, msg: str) -> None:
        raise Misuse("ILogger.log is not overridden")


class IProfiler(_Bound):
    """To be subclassed; `__init__` must be called."""

    def __init__(self) -> None:
        self._ready = True

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise Misuse("IProfiler.report_layer_time is not overridden")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # a Python subclass has a dictionary of its own


def _logger(logger: Any) -> ILogger:
    if not isinstance(logger, ILogger):
        raise TypeError("incompatible constructor arguments: an ILogger is needed")
    _check(getattr(logger, "_ready", False), "ILogger.__init__ was not called")
    return logger


class ITensor(_Bound):
    def __init__(self, name: str, dtype: Any, shape: tuple[int, ...], *, decides: bool) -> None:
        self._name, self._dtype, self._shape, self._decides = name, dtype, shape, decides

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def is_shape_tensor(self) -> bool:
        return self._decides


class ILayer(_Bound):
    def __init__(self, node: Any, outputs: list[ITensor]) -> None:
        self._node, self._outputs = node, outputs

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_output(self, index: int) -> ITensor:
        return self._outputs[index]


class INetworkDefinition(_Bound):
    def __init__(self, builder: Builder, strong: bool) -> None:
        self._builder, self._strong = builder, strong
        self._inputs: list[ITensor] = []
        self._outputs: list[ITensor] = []
        self._layers: list[ILayer] = []
        self._constants: set[str] = set()

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def get_input(self, index: int) -> ITensor:
        return self._inputs[index]

    def get_layer(self, index: int) -> ILayer:
        return self._layers[index]


class ParserError(_Bound):
    def __init__(self, code: str, desc: str, node: int) -> None:
        self._code, self._desc, self._node = getattr(ErrorCode, code), desc, node

    def code(self) -> Any:
        return self._code

    def desc(self) -> str:
        return self._desc

    def node(self) -> int:
        return self._node


class OnnxParser(_Bound):
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network, self._log = network, _logger(logger)
        self._errors: list[ParserError] = []
        self._parsed = False

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse(self, model: bytes, path: str | None = None) -> bool:
        import onnx
        from google.protobuf.message import DecodeError

        _check(path is None, "weights in other files must not be looked for")
        _check(not self._parsed, "a network takes one model")
        self._parsed = True
        try:
            proto = onnx.load_model_from_string(bytes(memoryview(model)))
        except DecodeError:
            return self._refuse("MODEL_DESERIALIZE_FAILED", "Failed to parse ONNX model", -1)
        graph = proto.graph
        if not graph.node:
            return self._refuse("MODEL_DESERIALIZE_FAILED", "the graph has no node", -1)
        for index, node in enumerate(graph.node):
            if node.op_type not in _fusion.SUPPORTED:
                text = f"No importer registered for op: {node.op_type}. Plugin not found"
                return self._refuse("UNSUPPORTED_NODE", text, index)
        try:
            graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True).graph
        except onnx.shape_inference.InferenceError as error:
            return self._refuse("INVALID_GRAPH", str(error), 0)
        return self._read(graph)

    def _read(self, graph: Any) -> bool:
        network = self._network
        made = {entry.name for entry in graph.initializer}
        network._constants = set(made)
        kinds: dict[str, Any] = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            if kind.elem_type not in _ELEMENTS:
                return self._refuse("UNSUPPORTED_NODE", f"type of {value.name}", 0)
            shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
            decides = any(
                value.name in node.input[1:2] for node in graph.node if node.op_type == "Reshape"
            )
            element = getattr(DataType, _ELEMENTS[kind.elem_type])
            kinds[value.name] = ITensor(value.name, element, shape, decides=decides)
        network._inputs = [kinds[v.name] for v in graph.input if v.name not in made]
        network._outputs = [kinds[value.name] for value in graph.output]
        for node in graph.node:
            if network._constants.issuperset(node.input):
                network._constants.update(node.output)
            outputs = [kinds[name] for name in node.output if name in kinds]
            network._layers.append(ILayer(node, outputs))
        return True

    def _refuse(self, code: str, text: str, node: int) -> bool:
        self._errors.append(ParserError(code, text, node))
        self._log.log(ILogger.Severity.ERROR, f"ModelImporter: {text}")
        return False


class IHostMemory(bytes):
    """Bytes that the library owns."""

    @property
    def nbytes(self) -> int:
        return len(self)


class ITimingCache(_Bound):
    def __init__(self, gpu: str, known: list[str]) -> None:
        self._gpu, self._known = gpu, known

    def serialize(self) -> IHostMemory:
        return IHostMemory(b"TIMINGS" + json.dumps([self._gpu, self._known]).encode())


class IBuilderConfig(_Bound):
    def __init__(self, log: ILogger) -> None:
        self._log = log
        self._flags = {"TF32"}
        self._verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self._device, self._core, self._level = DeviceType.GPU, -1, 3
        self._timings: ITimingCache | None = None
        self._workspace = 0

    @property
    def profiling_verbosity(self) -> Any:
        return self._verbosity

    @profiling_verbosity.setter
    def profiling_verbosity(self, value: Any) -> None:
        _check(isinstance(value, ProfilingVerbosity), "a ProfilingVerbosity is needed")
        self._verbosity = value

    @property
    def default_device_type(self) -> Any:
        return self._device

    @default_device_type.setter
    def default_device_type(self, value: Any) -> None:
        _check(isinstance(value, DeviceType), "a DeviceType is needed")
        self._device = value

    @property
    def DLA_core(self) -> int:
        return self._core

    @DLA_core.setter
    def DLA_core(self, value: int) -> None:
        self._core = value

    @property
    def builder_optimization_level(self) -> int:
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, value: int) -> None:
        _check(0 <= value <= 5, "a level from 0 to 5 is needed")
        self._level = value

    def set_flag(self, flag: Any) -> None:
        _check(isinstance(flag, BuilderFlag), "a BuilderFlag is needed")
        self._flags.add(flag.name)

    def clear_flag(self, flag: Any) -> None:
        _check(isinstance(flag, BuilderFlag), "a BuilderFlag is needed")
        self._flags.discard(flag.name)

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        _check(isinstance(pool, MemoryPoolType), "a MemoryPoolType is needed")
        self._workspace = pool_size

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache | None:
        if not serialized_timing_cache:
            return ITimingCache(_GPU, [])
        if not serialized_timing_cache.startswith(b"TIMINGS"):
            self._log.log(ILogger.Severity.ERROR, "Error Code 9: the timing cache is damaged")
            return None
        return ITimingCache(*json.loads(serialized_timing_cache[7:]))

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        _check(isinstance(cache, ITimingCache), "an ITimingCache is needed")
        if cache._gpu != _GPU and not ignore_mismatch:
            return False
        self._timings = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        return self._timings


class Builder(_Bound):
    def __init__(self, logger: ILogger) -> None:
        self._log = _logger(logger)
        _check(_driver.latfarm_double_ready() == 0, "a CUDA context must be current")

    @property
    def num_DLA_cores(self) -> int:
        return _DLA_CORES

    @property
    def platform_has_fast_fp16(self) -> bool:
        return True

    @property
    def platform_has_fast_int8(self) -> bool:
        return True

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        members = {1 << int(m): n for n, m in NetworkDefinitionCreationFlag.__members__.items()}
        unknown = flags & ~sum(members)
        _check(not unknown, f"network flags {unknown:#x} are unknown")
        names = {name for bit, name in members.items() if flags & bit}
        _check(not _old or "EXPLICIT_BATCH" in names, "an ONNX model needs an explicit batch")
        return INetworkDefinition(self, _new or "STRONGLY_TYPED" in names)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig(self._log)

    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig
    ) -> IHostMemory | None:
        _check(network._builder is self, "the network is another builder's")
        _check(network._outputs, "the network has no output")
        wrong = _wrong_types(network, config)
        plan = None if wrong else _plan(network, config)
        if plan is None:
            told = wrong or "Error Code 4: a layer is not supported on DLA, GPU fallback is off"
            self._log.log(ILogger.Severity.ERROR, told)
            return None
        if config._timings is None:
            config._timings = ITimingCache(_GPU, [])
        known = config._timings._known
        known += [layer["Name"] for layer in plan["layers"] if layer["Name"] not in known]
        for place in ("Dla", "Gpu"):
            for name in plan["placed"][place]:
                self._log.log(ILogger.Severity.INFO, f"[{place}Layer] {name}")
        return IHostMemory(json.dumps(plan).encode())


def _wrong_types(network: INetworkDefinition, config: IBuilderConfig) -> str:
    types = {t.dtype.name for layer in network._layers for t in layer._outputs}
    for dtype, flag in (("HALF", "FP16"), ("INT8", "INT8")):
        if network._strong and flag in config._flags:
            return f"Error Code 3: API Usage Error (k{flag} with a strongly typed network)"
        if not network._strong and dtype in types and flag not in config._flags:
            return f"Error Code 4: {dtype} tensors, but {flag} is not configured in the builder"
    if config._device is DeviceType.DLA:
        if not 0 <= config._core < _DLA_CORES:
            return "Error Code 3: there is no such DLA core"
        if not types & {"HALF", "INT8"}:
            return "Error Code 4: DLA needs fp16 or int8"
    return ""


def _plan(network: INetworkDefinition, config: IBuilderConfig) -> dict[str, Any] | None:
    shapes = {t.name: t.shape for t in network._inputs}
    for layer in network._layers:
        shapes.update({t.name: t.shape for t in layer._outputs})
    on_dla = config._device is DeviceType.DLA
    found = _fusion.fused(
        [layer._node for layer in network._layers],
        shapes,
        network._constants,
        [tensor.name for tensor in network._inputs],
        version=_VERSION,
        on_dla=on_dla,
        fallback="GPU_FALLBACK" in config._flags,
    )
    if found is None:
        return None
    layers, placed = found
    return {
        "layers": layers,
        "placed": placed,
        "core": config._core if on_dla else -1,
        "detailed": config._verbosity.name == "DETAILED",
        "tensors": [
            [t.name, t.dtype.name, list(t.shape), t in network._inputs]
            for t in (*network._inputs, *network._outputs)
        ],
    }


class Runtime(_Bound):
    def __init__(self, logger: ILogger) -> None:
        self._log, self._core = _logger(logger), -1

    @property
    def DLA_core(self) -> int:
        return self._core

    @DLA_core.setter
    def DLA_core(self, value: int) -> None:
        self._core = value

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        _check(isinstance(serialized_engine, IHostMemory), "only what was just built is loaded")
        plan = json.loads(serialized_engine)
        if plan["core"] != self._core:
            self._log.log(ILogger.Severity.ERROR, "Error Code 1: the engine is for another DLA")
            return None
        return ICudaEngine(self, plan)


class ICudaEngine(_Bound):
    def __init__(self, runtime: Runtime, plan: dict[str, Any]) -> None:
        self._runtime, self._plan = runtime, plan
        self._tensors = {entry[0]: entry for entry in plan["tensors"]}
        self._names: list[str] = [entry[0] for entry in plan["tensors"]]

    @property
    def num_io_tensors(self) -> int:
        return len(self._names)

    def get_tensor_name(self, index: int) -> str:
        return self._names[index]

    def get_tensor_dtype(self, name: str) -> Any:
        return getattr(DataType, self._tensors[name][1])

    def get_tensor_mode(self, name: str) -> Any:
        return TensorIOMode.INPUT if self._tensors[name][3] else TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> Any:
        _check(name in self._tensors, f"no tensor {name!r}")
        return TensorLocation.DEVICE

    @property
    def num_bindings(self) -> int:
        return len(self._names)

    def get_binding_name(self, index: int) -> str:
        return self._names[index]

    def get_binding_dtype(self, index: int) -> Any:
        return getattr(DataType, self._plan["tensors"][index][1])

    def get_binding_shape(self, index: int) -> tuple[int, ...]:
        return tuple(self._plan["tensors"][index][2])

    def binding_is_input(self, index: int) -> bool:
        return bool(self._plan["tensors"][index][3])

    def get_location(self, index: int) -> Any:
        _check(0 <= index < len(self._names), f"no binding {index}")
        return TensorLocation.DEVICE

    def create_execution_context(self) -> IExecutionContext:
        return IExecutionContext(self)

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self)

    def _size_bytes(self, name: str) -> int:
        _, dtype, shape, _ = self._tensors[name]
        size_bytes = _SIZES[dtype]
        for size in shape:
            size_bytes *= size
        return size_bytes


class IExecutionContext(_Bound):
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        self._addresses: dict[str, int] = {}
        self._profiler: IProfiler | None = None

    @property
    def profiler(self) -> IProfiler | None:
        return self._profiler

    @profiler.setter
    def profiler(self, value: IProfiler) -> None:
        _check(isinstance(value, IProfiler), "an IProfiler is needed")
        _check(getattr(value, "_ready", False), "IProfiler.__init__ was not called")
        self._profiler = value

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._engine._tensors[name][2])

    def get_max_output_size(self, name: str) -> int:
        return self._engine._size_bytes(name)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        _check(isinstance(name, str) and isinstance(memory, int), "a name and an address")
        if name not in self._engine._tensors or not memory:
            return False
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        return self._execute(stream_handle)

    def execute_async_v2(self, bindings: list[int], stream_handle: int) -> bool:
        _check(len(bindings) == len(self._engine._names), "an address for each binding")
        self._addresses = dict(zip(self._engine._names, bindings))
        return self._execute(stream_handle)

    def _execute(self, stream: int) -> bool:
        log = self._engine._runtime._log
        _check(isinstance(stream, int) and stream, "work belongs into a stream of its own")
        missing = [name for name in self._engine._names if name not in self._addresses]
        if missing:
            log.log(ILogger.Severity.ERROR, f"Error Code 3: the address of {missing[0]} is not set")
            return False
        if self._profiler is not None and _driver.latfarm_double_capturing(stream):
            log.log(ILogger.Severity.ERROR, "Error Code 1: a profiler cannot be captured")
            return False
        count = len(self._engine._names)
        pointers = (ctypes.c_size_t * count)(*(self._addresses[n] for n in self._engine._names))
        sizes = (ctypes.c_size_t * count)(*map(self._engine._size_bytes, self._engine._names))
        for layer in self._engine._plan["layers"]:
            code = _driver.latfarm_double_launch(stream, layer["us"], count, pointers, sizes)
            if code:
                log.log(ILogger.Severity.ERROR, f"Error Code 1: Cuda Runtime (error {code})")
                return False
        if self._profiler is not None:
            _driver.cuStreamSynchronize(stream)
            for layer in self._engine._plan["layers"]:
                self._profiler.report_layer_time(layer["Name"], layer["us"] / 1e3)
        return True


class EngineInspector(_Bound):
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine

    def get_engine_information(self, format: Any) -> str:
        _check(format is LayerInformationFormat.JSON, "JSON is what is read")
        plan = self._engine._plan
        layers: list[Any] = [
            {key: value for key, value in layer.items() if key != "us"} for layer in plan["layers"]
        ]
        if not plan["detailed"]:
            layers = [layer["Name"] for layer in layers]
        return json.dumps({"Layers": layers, "Bindings": self._engine._names})


_NAMED = (
    (ICudaEngine, "num_io_tensors get_tensor_name get_tensor_dtype get_tensor_mode"),
    (ICudaEngine, "get_tensor_location"),
    (IExecutionContext, "get_tensor_shape get_max_output_size set_tensor_address"),
    (IExecutionContext, "execute_async_v3"),
)
_INDEXED = (
    (ICudaEngine, "num_bindings get_binding_name get_binding_dtype get_binding_shape"),
    (ICudaEngine, "binding_is_input get_location"),
    (IExecutionContext, "execute_async_v2"),
)
_WEAK = ((Builder, "platform_has_fast_fp16 platform_has_fast_int8"),)


def _without(*gone: tuple[type, str]) -> None:
    for kind, names in gone:
        for name in names.split():
            delattr(kind, name)


if _VERSION < (8, 5):
    _without(*_NAMED)
if _VERSION < (8, 6):
    _without((IBuilderConfig, "builder_optimization_level"))
if not _old:
    _without(*_INDEXED)
if _new:
    _without(*_WEAK)
