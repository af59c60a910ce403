"""Engines of TensorRT's double: loading one, running it on a stream, asking what is in it."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from double_build import IHostMemory
from double_driver import driver
from double_kinds import (
    SIZES,
    Bound,
    DataType,
    LayerInformationFormat,
    TensorIOMode,
    TensorLocation,
    check,
)
from double_network import ILogger, IProfiler, checked_logger


class Runtime(Bound):
    def __init__(self, logger: ILogger) -> None:
        self._log, self._core = checked_logger(logger), -1

    @property
    def DLA_core(self) -> int:
        return self._core

    @DLA_core.setter
    def DLA_core(self, value: int) -> None:
        self._core = value

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        check(isinstance(serialized_engine, IHostMemory), "only what was just built is loaded")
        plan = json.loads(serialized_engine)
        if plan["core"] != self._core:
            self._log.log(ILogger.Severity.ERROR, "Error Code 1: the engine is for another DLA")
            return None
        return ICudaEngine(self, plan)


class ICudaEngine(Bound):
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
        check(name in self._tensors, f"no tensor {name!r}")
        return TensorLocation.DEVICE

    @property
    def device_memory_size_v2(self) -> int:
        return 4096

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
        check(0 <= index < len(self._names), f"no binding {index}")
        return TensorLocation.DEVICE

    def create_execution_context(self) -> IExecutionContext:
        return IExecutionContext(self)

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self)

    def _size_bytes(self, name: str) -> int:
        _, dtype, shape, _ = self._tensors[name]
        size_bytes = SIZES[dtype]
        for size in shape:
            size_bytes *= size
        return size_bytes


class IExecutionContext(Bound):
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        self._addresses: dict[str, int] = {}
        self._profiler: IProfiler | None = None

    @property
    def profiler(self) -> IProfiler | None:
        return self._profiler

    @profiler.setter
    def profiler(self, value: IProfiler) -> None:
        check(isinstance(value, IProfiler), "an IProfiler is needed")
        check(getattr(value, "_ready", False), "IProfiler.__init__ was not called")
        self._profiler = value

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._engine._tensors[name][2])

    def get_max_output_size(self, name: str) -> int:
        return self._engine._size_bytes(name)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        check(isinstance(name, str) and isinstance(memory, int), "a name and an address")
        if name not in self._engine._tensors or not memory:
            return False
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        return self._execute(stream_handle)

    def execute_async_v2(self, bindings: list[int], stream_handle: int) -> bool:
        check(len(bindings) == len(self._engine._names), "an address for each binding")
        self._addresses = dict(zip(self._engine._names, bindings))
        return self._execute(stream_handle)

    def _execute(self, stream: int) -> bool:
        log = self._engine._runtime._log
        check(isinstance(stream, int) and stream, "work belongs into a stream of its own")
        missing = [name for name in self._engine._names if name not in self._addresses]
        if missing:
            log.log(ILogger.Severity.ERROR, f"Error Code 3: the address of {missing[0]} is not set")
            return False
        if self._profiler is not None and driver.latfarm_double_capturing(stream):
            log.log(ILogger.Severity.ERROR, "Error Code 1: a profiler cannot be captured")
            return False
        count = len(self._engine._names)
        pointers = (ctypes.c_size_t * count)(*(self._addresses[n] for n in self._engine._names))
        sizes = (ctypes.c_size_t * count)(*map(self._engine._size_bytes, self._engine._names))
        for layer in self._engine._plan["layers"]:
            code = driver.latfarm_double_launch(stream, layer["us"], count, pointers, sizes)
            if code:
                log.log(ILogger.Severity.ERROR, f"Error Code 1: Cuda Runtime (error {code})")
                return False
        if self._profiler is not None:
            driver.cuStreamSynchronize(stream)
            for layer in self._engine._plan["layers"]:
                self._profiler.report_layer_time(layer["Name"], layer["us"] / 1e3)
        return True


class EngineInspector(Bound):
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine

    def get_engine_information(self, format: Any) -> str:
        check(format is LayerInformationFormat.JSON, "JSON is what is read")
        plan = self._engine._plan
        layers: list[Any] = [
            {key: value for key, value in layer.items() if key != "us"} for layer in plan["layers"]
        ]
        if not plan["detailed"]:
            layers = [layer["Name"] for layer in layers]
        return json.dumps({"Layers": layers, "Bindings": self._engine._names})
