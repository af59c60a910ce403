"""LiteRT by its C interface: a compiled model with a profiler, on the CPU or on the GPU.

LiteRT's Python interface cannot profile, but the library in the package can (litert/c/*.h of
LiteRT). Its handles are opaque pointers, so only two structures have to be known here: the type of
a tensor, which the header declares stable, and an event of the profiler, whose size this module
works out from what the library writes.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from latfarm_agent.runtimes.base import RuntimeFailure

LIBRARY = "libLiteRt.so"
GPU_LIBRARY = "libLiteRtWebGpuAccelerator.so"
OLDEST = (2, 3)
"""The oldest supported version. Earlier versions have another signature to load a file."""

MOST_EVENTS = 2048
"""Number of events that a profiler keeps; it drops all further ones."""

_POINTER = ctypes.c_void_p
# Values of enumerations in LiteRT's headers.
_CPU, _GPU = 1, 2  # LiteRtHwAccelerators
_TAG_LIBRARY_DIR = 22  # LiteRtEnvOptionTag: the folder of runtime libraries
_ANY_STRING = 8  # LiteRtAnyType: a string
_LOCK_READ, _LOCK_WRITE = 0, 1  # LiteRtTensorBufferLockMode
_OPERATOR = 1 << 1  # type of an event: an operator of the interpreter
_DELEGATE_OPERATOR = (1 << 2) | (1 << 3)  # types of an event: an operator inside a delegate
_FP32 = 2  # precision of the GPU accelerator

# Layout of an event of the profiler, see `_events`.
_FILLER = 0xEE  # byte that fills the room before the library writes into it
_EVENT_ROOM = 512  # bytes of room for each event, more than any version needs
_EVENT_HEAD, _EVENT_TAIL = "<Qi4xQQ", "<QQi"
_STRIDES = range(72, _EVENT_ROOM, 16)  # sizes in bytes that an event may have

_Release = ctypes.CFUNCTYPE(None, _POINTER)


class _Layout(ctypes.Structure):
    _fields_ = (
        ("rank_and_flag", ctypes.c_uint32),
        ("dimensions", ctypes.c_int32 * 8),
        ("strides", ctypes.c_uint32 * 8),
    )


class _TensorType(ctypes.Structure):
    _fields_ = (("element", ctypes.c_int32), ("layout", _Layout))


class _EnvironmentOption(ctypes.Structure):
    _fields_ = (
        ("tag", ctypes.c_int),
        ("kind", ctypes.c_int64),  # an int in the C struct, followed by what aligns a pointer
        ("text", ctypes.c_char_p),
    )


@dataclass(frozen=True)
class Event:
    """An event of the profiler: one run of an operator.

    `tag`: name of the operator. `inside`: it ran inside a delegate. `number`: number of the node,
    or, inside a delegate, of the operator within the delegate's kernel, counted from 0.
    """

    tag: str
    inside: bool
    number: int
    latency_ms: float


@dataclass(frozen=True)
class LitertDevice:
    """Where to run: on the CPU with `threads`, or on the GPU; `fp32`: without half precision."""

    gpu: bool = False
    threads: int = 1
    fp32: bool = True


class CompiledModel:
    """One model, compiled for a device, whose inputs stay as they were filled.

    Args:
        folder: the folder of LiteRT's libraries.
        path: the file, which must exist as long as the model is open.
        device: where to run.
        profiling: with a profiler.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if the library lacks a function; MODEL_FAILED if it does not
            compile the file.
    """

    def __init__(self, folder: Path, path: Path, device: LitertDevice, *, profiling: bool) -> None:
        try:
            self._library = ctypes.CDLL(str(folder / LIBRARY))
        except OSError as error:
            raise RuntimeFailure("RUNTIME_MISSING", f"{LIBRARY}: {error}") from error
        self._kept: list[object] = []  # objects that the library reads while the model is open
        self._undo: list[tuple[str, Any]] = []
        self._profiler = _POINTER()
        try:
            self._environment = self._make_environment(folder)
            self._model = self._made(
                "CreateModelFromFile", "DestroyModel", self._environment, str(path).encode()
            )
            options = self._made("CreateOptions", "DestroyOptions")
            self._call("SetOptionsHardwareAccelerators", options, ctypes.c_int(_hardware(device)))
            for name, text in _settings(device, profiling).items():
                self._add_options(options, name, text)
            self._compiled = self._made(
                "CreateCompiledModel",
                "DestroyCompiledModel",
                self._environment,
                self._model,
                options,
            )
            self._inputs = self._buffers("Input")
            self._outputs = self._buffers("Output")
            if profiling:
                self._call("CompiledModelGetProfiler", self._compiled, ctypes.byref(self._profiler))
        except RuntimeFailure:
            self.close()
            raise

    @property
    def input_count(self) -> int:
        """Number of the model's inputs."""
        return len(self._inputs)

    def fill(self, index: int, data: bytes) -> None:
        """Fill an input.

        Raises:
            RuntimeFailure: MODEL_FAILED if `data` has another size than the input.
        """

        def write(address: int, size_bytes: int) -> None:
            if size_bytes != len(data):
                raise RuntimeFailure(
                    "MODEL_FAILED", f"input {index} takes {size_bytes} bytes, not {len(data)}"
                )
            ctypes.memmove(address, data, size_bytes)

        self._locked(self._inputs[index], _LOCK_WRITE, write)

    def run(self) -> None:
        """Run one inference, until the CPU can read its outputs."""
        self._call(
            "RunCompiledModel",
            self._compiled,
            ctypes.c_size_t(0),
            ctypes.c_size_t(len(self._inputs)),
            self._inputs,
            ctypes.c_size_t(len(self._outputs)),
            self._outputs,
        )
        for buffer in self._outputs:
            self._locked(buffer, _LOCK_READ, _nothing)

    def read(self, index: int) -> bytes:
        """Return the bytes of an output after the last run."""
        found: list[bytes] = []
        self._locked(
            self._outputs[index],
            _LOCK_READ,
            lambda address, size_bytes: found.append(ctypes.string_at(address, size_bytes)),
        )
        return found[0]

    def profile(self) -> list[Event]:
        """Run one inference; return its operators in the order in which they ended.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE if the events have an unknown form, or are more than
                the profiler keeps.
        """
        self._call("ResetProfiler", self._profiler)
        self._call("StartProfiler", self._profiler)
        try:
            self.run()
        finally:
            self._call("StopProfiler", self._profiler)
        count = ctypes.c_int()
        self._call("GetNumProfilerEvents", self._profiler, ctypes.byref(count))
        if not 0 < count.value < MOST_EVENTS:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", f"the profiler has {count.value} events")
        room = (ctypes.c_ubyte * (_EVENT_ROOM * count.value))()
        ctypes.memset(room, _FILLER, len(room))
        self._call("GetProfilerEvents", self._profiler, count, room)
        return _events(bytes(room), count.value)

    def close(self) -> None:
        """Free everything. Idempotent."""
        while self._undo:
            name, handle = self._undo.pop()
            function = getattr(self._library, f"LiteRt{name}")
            function.restype = None
            function(handle)

    def _make_environment(self, folder: Path) -> Any:
        text = str(folder).encode()
        option = _EnvironmentOption(_TAG_LIBRARY_DIR, _ANY_STRING, text)
        self._kept += [text, option]
        made = _POINTER()
        self._call("CreateEnvironment", ctypes.c_int(1), ctypes.byref(option), ctypes.byref(made))
        self._undo.append(("DestroyEnvironment", made))
        return made

    def _add_options(self, options: Any, name: str, text: str) -> None:
        payload = ctypes.create_string_buffer(text.encode())
        release = _Release(lambda _: None)  # this object owns the text, so nothing is freed
        self._kept += [payload, release]
        made = _POINTER()
        self._call("CreateOpaqueOptions", name.encode(), payload, release, ctypes.byref(made))
        self._call("AddOpaqueOptions", options, made)

    def _buffers(self, kind: str) -> Any:
        """Allocate memory for all inputs or outputs, as the compiled model requires."""
        signature, count = _POINTER(), ctypes.c_size_t()
        self._call("GetModelSignature", self._model, ctypes.c_size_t(0), ctypes.byref(signature))
        self._call(f"GetNumSignature{kind}s", signature, ctypes.byref(count))
        buffers = (_POINTER * count.value)()
        for index in range(count.value):
            tensor, kind_of, wanted = _POINTER(), _TensorType(), _POINTER()
            place = ctypes.c_size_t(index)
            self._call(f"GetSignature{kind}TensorByIndex", signature, place, ctypes.byref(tensor))
            self._call("GetRankedTensorType", tensor, ctypes.byref(kind_of))
            self._call(
                f"GetCompiledModel{kind}BufferRequirements",
                self._compiled,
                ctypes.c_size_t(0),
                place,
                ctypes.byref(wanted),
            )
            made = self._made(
                "CreateManagedTensorBufferFromRequirements",
                "DestroyTensorBuffer",
                self._environment,
                ctypes.byref(kind_of),
                wanted,
            )
            buffers[index] = made.value
        return buffers

    def _locked(self, buffer: int, mode: int, use: Callable[[int, int], None]) -> None:
        handle, address, size = _POINTER(buffer), _POINTER(), ctypes.c_size_t()
        self._call("GetTensorBufferPackedSize", handle, ctypes.byref(size))
        self._call("LockTensorBuffer", handle, ctypes.byref(address), ctypes.c_int(mode))
        try:
            use(address.value or 0, size.value)
        finally:
            self._call("UnlockTensorBuffer", handle)

    def _made(self, create: str, destroy: str, *arguments: object) -> Any:
        made = _POINTER()
        self._call(create, *arguments, ctypes.byref(made))
        self._undo.append((destroy, made))
        return made

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, f"LiteRt{name}")
        except AttributeError:
            raise RuntimeFailure("RUNTIME_MISSING", f"{LIBRARY} has no LiteRt{name}") from None
        function.restype = ctypes.c_int
        status = function(*arguments)
        if status:
            raise RuntimeFailure("MODEL_FAILED", f"LiteRt{name} ended with status {status}")


def _hardware(device: LitertDevice) -> int:
    return _GPU | _CPU if device.gpu else _CPU


def _settings(device: LitertDevice, profiling: bool) -> dict[str, str]:
    """Return the options as TOML, by the names under which LiteRT looks for them."""
    found = {"xnnpack": f'kernel_mode = "xnnpack"\nnum_threads = {device.threads}\n'}
    if profiling:
        found["runtime_options_string"] = "enable_profiling = true\n"
    if device.gpu and device.fp32:
        found["gpu_options"] = f"precision = {_FP32}\n"
    return found


def _nothing(address: int, size_bytes: int) -> None:
    """Do nothing: locking an output for reading already waits for the device."""


def _events(room: bytes, count: int) -> list[Event]:
    """Return the operators among a profiler's events.

    An event begins with its tag, kind and times and ends with three numbers. Between them stands
    the use of memory, in as many numbers as the build of LiteRT counts. So the size of an event
    follows from how many bytes were written.
    """
    written = len(room.rstrip(bytes([_FILLER])))
    stride = -(-written // (8 * count)) * 8
    if stride not in _STRIDES:
        raise RuntimeFailure("PROFILE_UNAVAILABLE", f"events of {stride} bytes are unknown")
    found = []
    for start in range(0, stride * count, stride):
        tag, kind, _, spent_us = struct.unpack_from(_EVENT_HEAD, room, start)
        number, _, source = struct.unpack_from(_EVENT_TAIL, room, start + stride - 24)
        if not tag or not 0 <= source <= 2 or kind <= 0:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", "the form of the events is unknown")
        if kind & (_OPERATOR | _DELEGATE_OPERATOR):
            text = ctypes.string_at(tag).decode(errors="replace")
            inside = bool(kind & _DELEGATE_OPERATOR)
            found.append(Event(text, inside, number, spent_us / 1e3))
    return found
