"""The CUDA driver through ctypes: the calls that are needed to run an engine and to time it.

This module uses the driver (`libcuda.so.1`) instead of the CUDA runtime (`libcudart`), because
every NVIDIA driver and every Jetson has it under the same name, whatever toolkit is installed. Its
primary context is shared with the libraries that bring a CUDA runtime of their own. Handles and
addresses are plain integers. Source: NVIDIA, "CUDA Driver API".
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable

from latfarm_agent.runtimes.base import RuntimeFailure

LIBRARY = "libcuda.so.1"

_OUT_OF_MEMORY = 2  # CUresult: CUDA_ERROR_OUT_OF_MEMORY
# Values of CUresult after which a context cannot be used any more, so that the process has to end:
# illegal address, launch timeout, destroyed context, assertion, hardware stack error, illegal
# instruction, misaligned address, invalid address space, invalid program counter, failed launch,
# uncorrectable memory error.
_LOST = frozenset({214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})

_SCHEDULE_SPIN, _SCHEDULE_BLOCK = 1, 4  # CUctx_flags
_NON_BLOCKING = 1  # CUstream_flags
_CAPTURE_THREAD_LOCAL = 1  # CUstreamCaptureMode
# CUdevice_attribute
_INTEGRATED, _L2_BYTES, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 18, 38, 75, 76
_NAME_BYTES = 256  # room for a device's name or PCI bus id

_int, _uint, _void = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
_size, _address, _long = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_ulonglong
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_uint,),
    "cuDriverGetVersion": (_void,),
    "cuGetErrorName": (_int, _void),
    "cuDeviceGetCount": (_void,),
    "cuDeviceGet": (_void, _int),
    "cuDeviceGetName": (_void, _int, _int),
    "cuDeviceGetAttribute": (_void, _int, _int),
    "cuDeviceGetPCIBusId": (_void, _int, _int),
    "cuDeviceTotalMem_v2": (_void, _int),
    "cuDevicePrimaryCtxSetFlags_v2": (_int, _uint),
    "cuDevicePrimaryCtxRetain": (_void, _int),
    "cuCtxSetCurrent": (_void,),
    "cuMemAlloc_v2": (_void, _size),
    "cuMemFree_v2": (_address,),
    "cuMemAllocHost_v2": (_void, _size),
    "cuMemFreeHost": (_void,),
    "cuMemcpyHtoDAsync_v2": (_address, _void, _size, _void),
    "cuMemcpyDtoHAsync_v2": (_void, _address, _size, _void),
    "cuMemsetD8Async": (_address, ctypes.c_ubyte, _size, _void),
    "cuStreamCreate": (_void, _uint),
    "cuStreamSynchronize": (_void,),
    "cuStreamDestroy_v2": (_void,),
    "cuStreamBeginCapture_v2": (_void, _int),
    "cuStreamEndCapture": (_void, _void),
    "cuEventCreate": (_void, _uint),
    "cuEventRecord": (_void, _void),
    "cuEventElapsedTime": (_void, _void, _void),
    "cuEventDestroy_v2": (_void,),
    "cuGraphInstantiateWithFlags": (_void, _void, _long),
    "cuGraphDestroy": (_void,),
    "cuGraphLaunch": (_void, _void),
    "cuGraphExecDestroy": (_void,),
}


@dataclass(frozen=True)
class CudaDevice:
    """A GPU as the driver describes it.

    `index`: its number in CUDA's order. `capability`: major and minor compute capability.
    `integrated`: the GPU shares the memory of the host, as on Jetsons. `bus_id`: its PCI bus id.
    `driver`: the newest CUDA version that the driver supports, for example "12.6".
    """

    index: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    l2_bytes: int
    integrated: bool
    bus_id: str
    driver: str


class Cuda:
    """The primary context of one GPU; it may only be used from the thread that made it.

    A failed call raises RuntimeFailure (OUT_OF_MEMORY or MODEL_FAILED). If the context is lost with
    it, SystemExit ends the process instead: nothing can run in this process any more, and the next
    model would be blamed for the failure.

    Args:
        index: number of the GPU in CUDA's order.
        spin: wait for the GPU by spinning, which reacts sooner; otherwise by sleeping.
        library: file name of the driver's library.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if there is no driver or no such GPU.
    """

    def __init__(self, index: int = 0, *, spin: bool = True, library: str = LIBRARY) -> None:
        self._functions = _load(library)
        self.device = self._describe(index)
        # The result is ignored: if another library has made the context, its flags cannot change.
        handle = self._integer("cuDeviceGet", index)
        self._functions["cuDevicePrimaryCtxSetFlags_v2"](
            handle, _SCHEDULE_SPIN if spin else _SCHEDULE_BLOCK
        )
        context = self._made("cuDevicePrimaryCtxRetain", handle)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, size_bytes: int) -> int:
        """Allocate device memory and return its address."""
        address = _address()
        self._call("cuMemAlloc_v2", ctypes.byref(address), max(1, size_bytes))
        return address.value

    def allocate_host(self, size_bytes: int) -> int:
        """Allocate pinned host memory, which the GPU itself can copy; return its address."""
        return self._made("cuMemAllocHost_v2", max(1, size_bytes))

    def free(self, address: int) -> None:
        """Free device memory."""
        self._call("cuMemFree_v2", address)

    def free_host(self, address: int) -> None:
        """Free pinned host memory."""
        self._call("cuMemFreeHost", address)

    def to_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy from host memory to device memory."""
        self._call("cuMemcpyHtoDAsync_v2", target, source, size_bytes, stream)

    def to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy from device memory to host memory."""
        self._call("cuMemcpyDtoHAsync_v2", target, source, size_bytes, stream)

    def fill(self, target: int, value: int, size_bytes: int, stream: int) -> None:
        """Enqueue work that sets each byte of a piece of device memory to `value`."""
        self._call("cuMemsetD8Async", target, value, size_bytes, stream)

    def stream(self) -> int:
        """Make a stream that does not wait for other streams; return its handle."""
        return self._made("cuStreamCreate", _NON_BLOCKING)

    def synchronise(self, stream: int) -> None:
        """Wait until all work of a stream is done."""
        self._call("cuStreamSynchronize", stream)

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""
        self._call("cuStreamDestroy_v2", stream)

    def event(self) -> int:
        """Make an event that records the time; return its handle."""
        return self._made("cuEventCreate", 0)

    def record(self, event: int, stream: int) -> None:
        """Enqueue an event, which happens when all earlier work of the stream is done."""
        self._call("cuEventRecord", event, stream)

    def elapsed_ms(self, first: int, last: int) -> float:
        """Return the milliseconds between two past events by the GPU's clock (steps of 0.5 us)."""
        value = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(value), first, last)
        return float(value.value)

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._call("cuEventDestroy_v2", event)

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """Record the work that `work` enqueues as a CUDA graph, without running it.

        Returns the handle of a graph that can be launched.

        Raises:
            RuntimeFailure: MODEL_UNSUPPORTED if the work cannot be captured.
        """
        self._call("cuStreamBeginCapture_v2", stream, _CAPTURE_THREAD_LOCAL)
        failure: RuntimeFailure | None = None
        try:
            work()
        except RuntimeFailure as found:
            failure = found
        graph = _void()
        code = self._functions["cuStreamEndCapture"](stream, ctypes.byref(graph))
        if failure is not None or code or not graph.value:
            why = failure.message if failure else self._name(code)
            raise RuntimeFailure("MODEL_UNSUPPORTED", f"it cannot run as a CUDA graph: {why}")
        try:
            return self._made("cuGraphInstantiateWithFlags", graph.value, 0)
        finally:
            self._call("cuGraphDestroy", graph.value)

    def launch(self, graph: int, stream: int) -> None:
        """Enqueue a run of a graph."""
        self._call("cuGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph."""
        self._call("cuGraphExecDestroy", graph)

    def _describe(self, index: int) -> CudaDevice:
        code = self._functions["cuInit"](0)
        if code:
            raise RuntimeFailure(
                "RUNTIME_MISSING",
                f"the CUDA driver does not start ({self._name(code)}); install the driver of this "
                "GPU, or give the agent's user access to the GPU",
            )
        count = self._integer("cuDeviceGetCount")
        if not 0 <= index < count:
            raise RuntimeFailure(
                "RUNTIME_MISSING",
                f"there is no GPU {index}: the CUDA driver sees {count}; set the option 'device', "
                "or install the driver of this GPU",
            )
        device = self._integer("cuDeviceGet", index)
        version = self._integer("cuDriverGetVersion")
        total = _size()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        return CudaDevice(
            index=index,
            name=self._text("cuDeviceGetName", device),
            capability=(
                self._integer("cuDeviceGetAttribute", _CAPABILITY_MAJOR, device),
                self._integer("cuDeviceGetAttribute", _CAPABILITY_MINOR, device),
            ),
            memory_bytes=total.value,
            l2_bytes=self._integer("cuDeviceGetAttribute", _L2_BYTES, device),
            integrated=bool(self._integer("cuDeviceGetAttribute", _INTEGRATED, device)),
            bus_id=self._text("cuDeviceGetPCIBusId", device),
            driver=f"{version // 1000}.{version % 1000 // 10}",
        )

    def _integer(self, name: str, *arguments: int) -> int:
        value = _int()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _text(self, name: str, device: int) -> str:
        buffer = ctypes.create_string_buffer(_NAME_BYTES)
        self._call(name, buffer, _NAME_BYTES, device)
        return buffer.value.decode(errors="replace")

    def _made(self, name: str, *arguments: int) -> int:
        """Call a function that writes a handle or an address, and return that."""
        handle = _void()
        self._call(name, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._functions[name](*arguments)
        if not code:
            return
        message = f"{name} failed with {self._name(code)}"
        if code in _LOST:
            raise SystemExit(f"{message}: the GPU's context is lost")
        raise RuntimeFailure("OUT_OF_MEMORY" if code == _OUT_OF_MEMORY else "MODEL_FAILED", message)

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._functions["cuGetErrorName"](code, ctypes.byref(text)) or not text.value:
            return f"error {code}"
        return text.value.decode(errors="replace")


def _load(library: str) -> dict[str, Any]:
    """Load the driver's library and return its functions with their types set."""
    try:
        loaded = ctypes.CDLL(library)
        functions = {}
        for name, types in _PROTOTYPES.items():
            functions[name] = getattr(loaded, name)
            functions[name].argtypes = types
            functions[name].restype = _int
    except (OSError, AttributeError) as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"the CUDA driver cannot be used ({error}); install NVIDIA's driver (CUDA 11.4 or "
            "newer); in a container, give the container access to the GPU",
        ) from error
    return functions
