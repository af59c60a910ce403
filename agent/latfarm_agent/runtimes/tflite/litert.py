"""LiteRT by its C interface: a compiled model with a profiler, on the CPU or on the GPU.

The Python package has no method that profiles; the library inside it does (litert/c/*.h of LiteRT).
Handles are opaque pointers there, so little of the layout of anything is needed here: the type of a
tensor (ABI stable, as its header says) and a profiler's event, whose size is found out by asking.
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
"""Before, models were made from files by another signature."""

MOST_EVENTS = 2048
"""A profiler keeps so many and drops the rest."""

_POINTER = ctypes.c_void_p
_CPU, _GPU = 1, 2
_TAG_LIBRARY_DIR = 22
_ANY_STRING = 8
_LOCK_READ, _LOCK_WRITE = 0, 1
_OPERATOR = 1 << 1
_DELEGATE_OPERATOR = (1 << 2) | (1 << 3)
_FILLER = 0xEE
_EVENT_ROOM = 512
_EVENT_HEAD, _EVENT_TAIL = "<Qi4xQQ", "<QQi"
_STRIDES = range(72, _EVENT_ROOM, 16)
_FP32 = 2

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
    """What the profiler saw: an operator of the interpreter's, or one inside a delegate.

    `number`: of the node, or within its delegate's kernel, counted from 0.
    """

    tag: str
    inside: bool
    number: int
    latency_ms: float


@dataclass(frozen=True)
class LitertDevice:
    """Where to run: a CPU with `threads`, or the GPU; `fp32`: forbid it to compute in half."""

    gpu: bool = False
    threads: int = 1
    fp32: bool = True


class CompiledModel:
    """One model, compiled for a device, with inputs that stay as they were filled.

    Args:
        folder: where LiteRT's libraries are.
        path: the file; it must stay while the model lives.
        device: where to run.
        profiling: with a profiler.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, the library lacks what this needs; MODEL_FAILED, it does
            not compile the file.
    """

    def __init__(self, folder: Path, path: Path, device: LitertDevice, *, profiling: bool) -> None:
        try:
            self._library = ctypes.CDLL(str(folder / LIBRARY))
        except OSError as error:
            raise RuntimeFailure("RUNTIME_MISSING", f"{LIBRARY}: {error}") from error
        self._kept: list[object] = []  # what the library reads for as long as the model lives
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
        """How many inputs the model has."""
        return len(self._inputs)

    def fill(self, index: int, data: bytes) -> None:
        """Fill an input.

        Raises:
            RuntimeFailure: MODEL_FAILED, it is of another size.
        """

        def write(address: int, size_bytes: int) -> None:
            if size_bytes != len(data):
                raise RuntimeFailure(
                    "MODEL_FAILED", f"input {index} takes {size_bytes} bytes, not {len(data)}"
                )
            ctypes.memmove(address, data, size_bytes)

        self._locked(self._inputs[index], _LOCK_WRITE, write)

    def run(self) -> None:
        """One inference, until its outputs can be read by the CPU."""
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
        """What the last run left in an output."""
        found: list[bytes] = []
        self._locked(
            self._outputs[index],
            _LOCK_READ,
            lambda address, size_bytes: found.append(ctypes.string_at(address, size_bytes)),
        )
        return found[0]

    def profile(self) -> list[Event]:
        """The operators of one inference, in the order in which they ended.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE where its events are not of the known form, or more
                than the profiler keeps.
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
        """Give all back. Idempotent."""
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
        release = _Release(lambda _: None)  # the text is ours
        self._kept += [payload, release]
        made = _POINTER()
        self._call("CreateOpaqueOptions", name.encode(), payload, release, ctypes.byref(made))
        self._call("AddOpaqueOptions", options, made)

    def _buffers(self, kind: str) -> Any:
        """Memory for all inputs or outputs, as the compiled model wants it."""
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
    """Options by the name that their reader looks for, in TOML."""
    found = {"xnnpack": f'kernel_mode = "xnnpack"\nnum_threads = {device.threads}\n'}
    if profiling:
        found["runtime_options_string"] = "enable_profiling = true\n"
    if device.gpu and device.fp32:
        found["gpu_options"] = f"precision = {_FP32}\n"
    return found


def _nothing(address: int, size_bytes: int) -> None:
    """Reading is what waits for the device."""


def _events(room: bytes, count: int) -> list[Event]:
    """The operators among a profiler's events.

    An event begins with its tag, kind and times and ends with three numbers. How much memory was
    in use stands between, in as many numbers as a build counts: so its size is what was written.
    """
    written = len(room.rstrip(bytes([_FILLER])))
    stride = -(-written // (8 * count)) * 8
    if stride not in _STRIDES:
        raise RuntimeFailure("PROFILE_UNAVAILABLE", f"an event of {stride} bytes is unknown")
    found = []
    for start in range(0, stride * count, stride):
        tag, kind, _, spent_us = struct.unpack_from(_EVENT_HEAD, room, start)
        number, _, source = struct.unpack_from(_EVENT_TAIL, room, start + stride - 24)
        if not tag or not 0 <= source <= 2 or kind <= 0:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", "the profiler's events are not as known")
        if kind & (_OPERATOR | _DELEGATE_OPERATOR):
            text = ctypes.string_at(tag).decode(errors="replace")
            inside = bool(kind & _DELEGATE_OPERATOR)
            found.append(Event(text, inside, number, spent_us / 1e3))
    return found
