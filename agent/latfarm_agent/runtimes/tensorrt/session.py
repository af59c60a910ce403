"""A session of an engine: its memory, its stream, and a synchronous inference.

Both of TensorRT's ways to pass memory are supported: tensors by name (8.5 and newer) and bindings
by index (8.4). Each run has two latencies. The host latency is the time from the first call to the
end of the wait. The GPU latency is the time between two events around the work of the engine.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Any, Callable

from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.cuda import Cuda
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.tensorrt.build import Journal, failure

_TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}
_FLUSHED = 2  # a cold run is preceded by writing this many times the size of the last-level cache


@dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine.

    `size_bytes`: the memory that it needs. `on_host`: its memory is on the host, not on the GPU.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    is_input: bool
    on_host: bool


@dataclass(frozen=True)
class Times:
    """The two latencies of one inference, by the host's and by the GPU's clock."""

    host_ms: float
    gpu_ms: float


@dataclass(frozen=True)
class SessionMode:
    """How a session runs its engine.

    `transfers`: each run copies the inputs from pinned host memory to the GPU and the outputs back.
    `graph`: the engine is launched as a CUDA graph. `profiler`: an object that TensorRT tells each
    layer's time in each run, which makes the runs slower; None: no profiler.
    """

    transfers: bool = False
    graph: bool = False
    profiler: Any = None


_PLAIN = SessionMode()


class TensorRtSession:
    """An execution context with everything that it needs. Close it before its engine is dropped.

    Args:
        trt: the TensorRT module.
        cuda: the GPU.
        engine: the engine to run.
        journal: holds the errors that TensorRT logs.
        mode: how to run the engine.

    Raises:
        RuntimeFailure: OUT_OF_MEMORY, MODEL_FAILED, MODEL_INVALID (an input cannot be filled) or
            MODEL_UNSUPPORTED (the model cannot run as a graph).
    """

    def __init__(
        self, trt: Any, cuda: Cuda, engine: Any, journal: Journal, mode: SessionMode = _PLAIN
    ) -> None:
        self._cuda = cuda
        self._journal = journal
        self._memory: list[int] = []
        self._host_memory: list[int] = []
        self._events: list[int] = []
        self._stream = self._graph = 0
        self._copies_in: list[tuple[int, int, int]] = []
        self._copies_out: list[tuple[int, int, int]] = []
        self._scratch = 0
        self._buffer_bytes = 0
        self._working_bytes = _working_bytes(engine)
        self._context: Any = None
        self._start: Callable[[], bool] = _unbound
        try:
            self._stream = cuda.stream()
            self._events = [cuda.event()]
            self._events.append(cuda.event())
            self._context = _context(engine, journal)
            if mode.profiler is not None:
                self._context.profiler = mode.profiler
            self._bind(trt, engine, transfers=mode.transfers)
            if mode.graph:
                # Run once before the capture, so that one-time work of TensorRT is not captured.
                self._enqueue()
                cuda.synchronise(self._stream)
                self._graph = cuda.capture(self._stream, lambda: self._enqueue(waiting=False))
        except BaseException:
            self.close()
            raise

    @property
    def device_bytes(self) -> int:
        """Memory of the GPU for inputs, outputs and intermediate results; without weights.

        TensorRT does not tell how much of an engine's weights lie on the GPU.
        """
        return self._buffer_bytes + self._working_bytes

    def run(self) -> Times:
        """Run one inference, from the first call to the end of the wait for the GPU.

        Raises:
            RuntimeFailure: MODEL_FAILED or OUT_OF_MEMORY.
        """
        cuda, stream = self._cuda, self._stream
        first, last = self._events
        begun = time.perf_counter_ns()
        for target, source, size_bytes in self._copies_in:
            cuda.to_device(target, source, size_bytes, stream)
        cuda.record(first, stream)
        if self._graph:
            cuda.launch(self._graph, stream)
        else:
            self._enqueue()
        cuda.record(last, stream)
        for target, source, size_bytes in self._copies_out:
            cuda.to_host(target, source, size_bytes, stream)
        cuda.synchronise(stream)
        ended = time.perf_counter_ns()
        return Times((ended - begun) / 1e6, cuda.elapsed_ms(first, last))

    def flush(self) -> None:
        """Overwrite the GPU's last-level cache, so that the next run is a cold one."""
        size_bytes = _FLUSHED * self._cuda.device.l2_bytes
        if not self._scratch:
            self._scratch = self._allocate(size_bytes)
        self._cuda.fill(self._scratch, 0, size_bytes, self._stream)
        self._cuda.synchronise(self._stream)

    def close(self) -> None:
        """Free everything. Idempotent."""
        cuda = self._cuda
        if self._graph:
            cuda.destroy_graph(self._graph)
        self._context = None
        for event in self._events:
            cuda.destroy_event(event)
        for address in self._memory:
            cuda.free(address)
        for address in self._host_memory:
            cuda.free_host(address)
        if self._stream:
            cuda.destroy_stream(self._stream)
        self._stream = self._graph = self._scratch = 0
        self._events, self._memory, self._host_memory = [], [], []

    def _enqueue(self, *, waiting: bool = True) -> None:
        if self._start():
            return
        if waiting:
            # Waiting shows which kernel failed, which says more than TensorRT's answer.
            self._cuda.synchronise(self._stream)
        told = self._journal.errors()
        raise failure(told or "the engine could not be enqueued", "running")

    def _bind(self, trt: Any, engine: Any, *, transfers: bool) -> None:
        """Allocate memory for each input and output, and fill the inputs with noise."""
        import numpy as np

        context, stream = self._context, self._stream
        named = hasattr(context, "execute_async_v3")
        tensors = _named(trt, engine, context) if named else _indexed(trt, engine)
        draw = np.random.default_rng(0)
        addresses: list[int] = []
        for tensor in tensors:
            address = self._allocate(tensor.size_bytes, on_host=tensor.on_host)
            addresses.append(address)
            staged = 0
            if not tensor.on_host and transfers:
                staged = self._allocate(tensor.size_bytes, on_host=True)
                if tensor.is_input:
                    self._copies_in.append((address, staged, tensor.size_bytes))
                else:
                    self._copies_out.append((staged, address, tensor.size_bytes))
            if tensor.is_input:
                array = np.ascontiguousarray(input_noise(draw, tensor.shape, tensor.dtype))
                host = address if tensor.on_host else staged
                if host:
                    _copy(host, array)
                if not tensor.on_host:
                    self._cuda.to_device(address, array.ctypes.data, array.nbytes, stream)
                    self._cuda.synchronise(stream)
        if named:
            for tensor, address in zip(tensors, addresses):
                if not context.set_tensor_address(tensor.name, address):
                    told = self._journal.errors()
                    raise failure(told or f"no memory for {tensor.name!r}", "preparing to run")
            self._start = lambda: bool(context.execute_async_v3(stream))
        else:
            self._start = lambda: bool(context.execute_async_v2(addresses, stream))

    def _allocate(self, size_bytes: int, *, on_host: bool = False) -> int:
        if on_host:
            self._host_memory.append(self._cuda.allocate_host(size_bytes))
            return self._host_memory[-1]
        self._memory.append(self._cuda.allocate(size_bytes))
        self._buffer_bytes += size_bytes
        return self._memory[-1]


def _working_bytes(engine: Any) -> int:
    """Memory in which an execution context of the engine keeps intermediate results."""
    for name in ("device_memory_size_v2", "device_memory_size"):  # the first from 10.1 on
        found = getattr(engine, name, None)
        if isinstance(found, int) and found > 0:
            return found
    return 0


def _unbound() -> bool:
    return False


def _context(engine: Any, journal: Journal) -> Any:
    context = engine.create_execution_context()
    if context is None:
        raise failure(journal.errors() or "no execution context", "preparing to run")
    return context


def _named(trt: Any, engine: Any, context: Any) -> list[EngineTensor]:
    found = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        dtype, shape = _type(engine.get_tensor_dtype(name), name), context.get_tensor_shape(name)
        size_bytes = _size_bytes(shape, dtype)
        if size_bytes < 0:
            # The size depends on the data, so allocate memory for the largest possible size.
            size_bytes = int(context.get_max_output_size(name))
        found.append(
            EngineTensor(
                name=name,
                dtype=dtype,
                shape=tuple(shape),
                size_bytes=_known(size_bytes, name),
                is_input=engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
                on_host=engine.get_tensor_location(name) == trt.TensorLocation.HOST,
            )
        )
    return found


def _indexed(trt: Any, engine: Any) -> list[EngineTensor]:
    found = []
    for index in range(engine.num_bindings):
        name = engine.get_binding_name(index)
        dtype, shape = _type(engine.get_binding_dtype(index), name), engine.get_binding_shape(index)
        found.append(
            EngineTensor(
                name=name,
                dtype=dtype,
                shape=tuple(shape),
                size_bytes=_known(_size_bytes(shape, dtype), name),
                is_input=engine.binding_is_input(index),
                on_host=engine.get_location(index) == trt.TensorLocation.HOST,
            )
        )
    return found


def _type(kind: Any, name: str) -> str:
    if kind.name not in _TYPES:
        raise RuntimeFailure("MODEL_INVALID", f"tensor {name!r} is of type {kind.name}")
    return _TYPES[kind.name]


def _size_bytes(shape: Any, dtype: str) -> int:
    import numpy as np

    size_bytes = int(np.dtype(dtype).itemsize)
    for size in shape:
        if size < 0:
            return -1
        size_bytes *= int(size)
    return size_bytes


def _known(size_bytes: int, name: str) -> int:
    if size_bytes < 0:
        raise RuntimeFailure("MODEL_UNSUPPORTED", f"the size of output {name!r} is not known")
    return size_bytes


def _copy(address: int, array: Any) -> None:
    ctypes.memmove(address, array.ctypes.data, array.nbytes)
