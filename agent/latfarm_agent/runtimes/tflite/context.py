"""The execution plan of an interpreter, and how long each step of the plan takes.

The Python interface of the interpreter offers neither, but the interpreter passes its own context
to every delegate. `Scout` is a delegate that takes no node: it keeps the context, and later asks it
which nodes run in which order, and which operators a delegate took. To time the nodes, it puts a
clock around the function `invoke` of each node, in the interpreter that is measured.

The structures are those of TFLite's public C interface (tflite/core/c/common.h), against which
every external delegate is compiled. New versions only append fields to them.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.trace import middle_mean

_POINTER = ctypes.c_void_p
_OK = 0  # kTfLiteOk
_ALLOW_DYNAMIC_TENSORS = 1  # flag of a delegate; without it the graph would be frozen after it
_DELEGATE_CODE = 51  # builtin code of a node that a delegate made (kTfLiteBuiltinDelegate)
_OVERHEAD_CALLS = 400  # calls from which the time of the clock itself is worked out; our choice
_MOST_NODES = 1 << 20  # a longer list means that the structures are not as expected

_Prepare = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER)
_Invoke = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER)
_GetPlan = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.POINTER(_POINTER))
_GetNode = ctypes.CFUNCTYPE(
    ctypes.c_int, _POINTER, ctypes.c_int, ctypes.POINTER(_POINTER), ctypes.POINTER(_POINTER)
)


class _Context(ctypes.Structure):
    """The first fields of the structure TfLiteContext."""

    _fields_ = (
        ("tensors_size", ctypes.c_size_t),
        ("get_execution_plan", _POINTER),
        ("tensors", _POINTER),
        ("impl", _POINTER),
        ("resize_tensor", _POINTER),
        ("report_error", _POINTER),
        ("add_tensors", _POINTER),
        ("get_node_and_registration", _POINTER),
    )


class _Node(ctypes.Structure):
    """The fields of the structure TfLiteNode up to `delegate`."""

    _fields_ = (
        ("inputs", _POINTER),
        ("outputs", _POINTER),
        ("intermediates", _POINTER),
        ("temporaries", _POINTER),
        ("user_data", _POINTER),
        ("builtin_data", _POINTER),
        ("custom_initial_data", _POINTER),
        ("custom_initial_data_size", ctypes.c_int),
        ("delegate", _POINTER),
    )


class _Registration(ctypes.Structure):
    """The fields of the structure TfLiteRegistration up to `custom_name`."""

    _fields_ = (
        ("init", _POINTER),
        ("free", _POINTER),
        ("prepare", _POINTER),
        ("invoke", _POINTER),
        ("profiling_string", _POINTER),
        ("builtin_code", ctypes.c_int32),
        ("custom_name", ctypes.c_char_p),
    )


class _DelegateParams(ctypes.Structure):
    """The first fields of the structure TfLiteDelegateParams, which describes a delegate's node."""

    _fields_ = (("delegate", _POINTER), ("nodes_to_replace", _POINTER))


class _Delegate(ctypes.Structure):
    """The structure TfLiteDelegate."""

    _fields_ = (
        ("data", _POINTER),
        ("prepare", _Prepare),
        ("copy_from_buffer", _POINTER),
        ("copy_to_buffer", _POINTER),
        ("free_buffer", _POINTER),
        ("flags", ctypes.c_int64),
        ("opaque_builder", _POINTER),
    )


@dataclass(frozen=True)
class ExecutionStep:
    """One node of the execution plan.

    `index`: its number. `kernel`: name of the delegate's kernel, empty for an operator that the
    interpreter runs itself. `covers`: numbers of the model's operators that it runs. `delegate`:
    address of the delegate that took it, 0 for none.
    """

    index: int
    kernel: str
    covers: tuple[int, ...]
    delegate: int


class Scout:
    """A delegate that takes no node. Pass it to an interpreter as the first of its delegates.

    It must live as long as the interpreter, which keeps a list of its delegates.
    """

    def __init__(self) -> None:
        self._context = 0
        self._get_plan = self._get_node = 0
        self._callback = _Prepare(self._prepare)
        self._struct = _Delegate(prepare=self._callback, flags=_ALLOW_DYNAMIC_TENSORS)

    def _get_native_delegate_pointer(self) -> int:  # the interpreter calls this method by its name
        return ctypes.addressof(self._struct)

    def _prepare(self, context: int, delegate: int) -> int:
        del delegate
        if not self._context:  # the interpreter calls this for each subgraph, the main one first
            fields = _Context.from_address(context)
            self._context = context
            # The context only offers these functions while a delegate is prepared, so keep them.
            self._get_plan = fields.get_execution_plan
            self._get_node = fields.get_node_and_registration
        return _OK

    def steps(self) -> list[ExecutionStep]:
        """Return the execution plan of the main subgraph; the tensors must be allocated.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE if the interpreter is not of a known kind.
        """
        found = []
        for index in self._plan():
            node, registration = self._node(index)
            if node.delegate and registration.builtin_code == _DELEGATE_CODE:
                params = _DelegateParams.from_address(node.builtin_data)
                covers = tuple(_ints(params.nodes_to_replace))
                kernel = (registration.custom_name or b"delegate").decode(errors="replace")
                found.append(ExecutionStep(index, kernel, covers, int(node.delegate)))
            else:
                found.append(ExecutionStep(index, "", (index,), int(node.delegate or 0)))
        return found

    @contextlib.contextmanager
    def clocks(self) -> Iterator[dict[int, list[float]]]:
        """Time every step while this context is open.

        Yields the index of each step -> the milliseconds of each of its runs, without the time that
        the clock itself takes. Closing the context removes the clocks.
        """
        overhead_ns = _overhead_ns()
        times: dict[int, list[float]] = {}
        restore: list[tuple[Any, int]] = []
        kept: list[object] = []  # callbacks must live as long as they may be called
        try:
            for index in self._plan():
                _, registration = self._node(index)
                original = int(registration.invoke or 0)
                if not original:
                    continue
                spent: list[float] = []
                callback = _timed(_Invoke(original), spent, overhead_ns)
                kept.append(callback)
                restore.append((registration, original))
                registration.invoke = ctypes.cast(callback, _POINTER).value
                times[index] = spent
            yield times
        finally:
            for registration, original in restore:
                registration.invoke = original

    def _plan(self) -> list[int]:
        if not self._context:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", "the interpreter prepared no delegate")
        plan = _POINTER()
        if _GetPlan(self._get_plan)(self._context, ctypes.byref(plan)) != _OK or not plan.value:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", "the interpreter has no execution plan")
        return _ints(plan.value)

    def _node(self, index: int) -> tuple[_Node, _Registration]:
        node, registration = _POINTER(), _POINTER()
        status = _GetNode(self._get_node)(
            self._context, index, ctypes.byref(node), ctypes.byref(registration)
        )
        if status != _OK or not node.value or not registration.value:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", f"the interpreter hides its node {index}")
        return _Node.from_address(node.value), _Registration.from_address(registration.value)


def _ints(address: int) -> list[int]:
    """Read a TfLiteIntArray: the number of its values, then the values."""
    count = ctypes.c_int.from_address(address).value
    if not 0 <= count <= _MOST_NODES:
        raise RuntimeFailure("PROFILE_UNAVAILABLE", "the interpreter's structures are unknown")
    first = address + ctypes.sizeof(ctypes.c_int)
    return list((ctypes.c_int * count).from_address(first))


def _timed(original: Callable[[int, int], int], spent: list[float], overhead_ns: float) -> Any:
    def invoke(context: int, node: int) -> int:
        begun = time.perf_counter_ns()
        status = original(context, node)
        taken_ns = time.perf_counter_ns() - begun
        spent.append(max(0.0, taken_ns - overhead_ns) / 1e6)
        return status

    return _Invoke(invoke)


def _overhead_ns() -> float:
    """Measure how long the clock of `_timed` makes a call of a C function that does nothing."""
    nothing = _Invoke(ctypes.cast(ctypes.CDLL(None).getppid, _POINTER).value or 0)
    spent: list[float] = []
    for _ in range(_OVERHEAD_CALLS):
        begun = time.perf_counter_ns()
        nothing(0, 0)
        spent.append(float(time.perf_counter_ns() - begun))
    return middle_mean(spent)
