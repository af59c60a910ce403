"""Sessions of a model: in an interpreter, with an external delegate, or on LiteRT's GPU.

The three differ in how a model is loaded and in the conditions of the result. Timing and profiling
a session is the same for all of them.
"""

from __future__ import annotations

import contextlib
import gc
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.tflite import delegates as tflite_delegates
from latfarm_agent.runtimes.tflite.cache import GraphCache, entry_key, file_sha256
from latfarm_agent.runtimes.tflite.context import ExecutionStep, Scout
from latfarm_agent.runtimes.tflite.delegates import Delegate
from latfarm_agent.runtimes.tflite.litert import CompiledModel, LitertDevice
from latfarm_agent.runtimes.tflite_format.model import TfliteOperator, operators_of

_UNSUPPORTED = (
    "custom op",
    "didn't find op",
    "unsupported",
    "op code",
    "regular tensorflow ops",
)
_EIGHT_BITS = {"int8": -128, "uint8": 0}  # type -> its least value


@dataclass
class TfliteSession:
    """A loaded model whose inputs are filled.

    Attributes:
        run: function that runs one inference.
        compile_ms: time that compiling took; 0 where it cannot be separated from loading.
        conditions: facts to add to the result.
        interpreter: the interpreter; None on LiteRT's GPU accelerator.
        scout: returns the execution plan; None if none was asked for.
        names: addresses of delegates -> their names.
        compiled: the model on LiteRT's GPU accelerator; None in an interpreter.
    """

    run: Callable[[], None]
    compile_ms: float = 0.0
    conditions: Mapping[str, str] = field(default_factory=dict)
    interpreter: Any = None
    scout: Scout | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    compiled: CompiledModel | None = None

    def steps(self) -> list[ExecutionStep]:
        """Return the execution plan.

        Raises:
            RuntimeFailure: PROFILE_UNAVAILABLE if the session has no scout.
        """
        if self.scout is None:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", "this session has no execution plan")
        return self.scout.steps()

    def close(self) -> None:
        """Free the memory of the session. Idempotent."""
        self.run = _closed
        if self.compiled is not None:
            self.compiled.close()
        self.interpreter = self.scout = self.compiled = None
        gc.collect()


def open_interpreter(
    module: Any,
    path: Path,
    threads: int,
    *,
    kernels: str = "xnnpack",
    delegate: tuple[Any, str] | None = None,
    scouted: bool = False,
) -> TfliteSession:
    """Load a model into an interpreter.

    Args:
        module: the interpreter's module.
        path: the file, which `check_file` has accepted.
        threads: threads for the kernels on the CPU.
        kernels: "xnnpack", "builtin" (the interpreter's own) or "reference" (its slow ones).
        delegate: a loaded delegate and its name; None: no delegate.
        scouted: whether the execution plan will be needed.

    Raises:
        RuntimeFailure: the model cannot be loaded.
    """
    scout = Scout() if scouted or delegate is not None else None
    given = [part for part in (scout, delegate[0] if delegate else None) if part is not None]
    resolvers = module.OpResolverType
    resolver = {
        "xnnpack": resolvers.AUTO,
        "builtin": resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        "reference": resolvers.BUILTIN_REF,
    }[kernels]
    try:
        interpreter = module.Interpreter(
            model_path=str(path),
            num_threads=threads,
            experimental_delegates=given or None,
            experimental_op_resolver_type=resolver,
        )
    except Exception as error:
        raise failure(error, loading=True) from error
    arrays = noise(interpreter.get_input_details())
    try:
        interpreter.allocate_tensors()
        for index, array in arrays:
            interpreter.set_tensor(index, array)
    except RuntimeFailure:
        raise
    except Exception as error:
        raise failure(error, loading=True) from error

    def run() -> None:
        try:
            interpreter.invoke()
        except Exception as error:
            raise failure(error, loading=False) from error

    names = {}
    if delegate is not None:
        names[int(delegate[0]._get_native_delegate_pointer())] = delegate[1]
    return TfliteSession(run, interpreter=interpreter, scout=scout, names=names)


@dataclass(frozen=True)
class GraphStore:
    """Where the compiled graphs of a delegate are kept.

    `identity`: texts that a graph depends on beside the model: the version of the runtime and the
    settings of the delegate.
    """

    cache: GraphCache
    identity: tuple[str, ...]


def open_external(
    module: Any,
    path: Path,
    threads: int,
    delegate: Delegate,
    scratch_dir: Path,
    store: GraphStore | None,
) -> TfliteSession:
    """Load a model with an external delegate; what the delegate does not take runs on the CPU.

    A delegate that compiles slowly compiles here, in its first inference, unless the store has the
    graph of an earlier session. A graph that fails is removed and compiled again.

    Args:
        module: the interpreter's module.
        path: the file, which `check_file` has accepted.
        threads: threads for the kernels on the CPU.
        delegate: the delegate.
        scratch_dir: folder for the file with the compiled graph.
        store: where compiled graphs are kept; None: nowhere.

    Raises:
        RuntimeFailure: the delegate refuses the model, or it cannot be loaded.
    """
    if store is None or not delegate.cache_option:
        return _compiled(module, path, threads, delegate, {})
    key = entry_key(file_sha256(path), *store.identity)
    graph = scratch_dir / f"{key}.graph"
    extra = dict(delegate.cache_options)
    extra[delegate.cache_option] = str(graph)
    _forget(graph)
    if store.cache.borrow(key, graph):
        try:
            session = _compiled(module, path, threads, delegate, extra)
        except RuntimeFailure:
            store.cache.drop(key)
            _forget(graph)
        else:
            store.cache.returned(key)
            session.conditions = dict(session.conditions, compiled_graph="from the cache")
            return session
    session = _compiled(module, path, threads, delegate, extra)
    taken = [step for step in session.steps() if session.names.get(step.delegate)]
    if len(taken) == 1:
        # With several partitions the file only holds the graph of the last one.
        store.cache.add(key, graph)
    session.conditions = dict(session.conditions, compiled_graph="compiled")
    return session


def open_gpu(module: Any, path: Path, *, fp32: bool, profiling: bool = False) -> TfliteSession:
    """Load a model on LiteRT's GPU accelerator; operators that it lacks run on the CPU.

    Args:
        module: the interpreter's module.
        path: the file, which `check_file` has accepted.
        fp32: compute in float32; otherwise the GPU may use half precision.
        profiling: with LiteRT's profiler.

    Raises:
        RuntimeFailure: the model cannot be compiled, or there is no such accelerator.
    """
    reader = open_interpreter(module, path, 1, kernels="builtin")
    arrays = noise(reader.interpreter.get_input_details())
    reader.close()
    folder = Path(module.__file__).parent
    begun = time.perf_counter()
    compiled = CompiledModel(folder, path, LitertDevice(gpu=True, fp32=fp32), profiling=profiling)
    try:
        for place, (_, array) in enumerate(arrays):
            compiled.fill(place, array.tobytes())
        made_ms = (time.perf_counter() - begun) * 1e3
        compile_ms = made_ms + _first_ms(compiled.run)
    except RuntimeFailure:
        compiled.close()
        raise
    return TfliteSession(compiled.run, compile_ms, compiled=compiled)


def operators(session: TfliteSession, path: Path) -> list[TfliteOperator]:
    """Return the operators of the file that a session with an interpreter has loaded."""
    return operators_of(session.interpreter, path)


def noise(details: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return values for the inputs, the same each time, as (index of the tensor, array).

    Floats get normal noise, 8-bit types values of their whole range, other types zeros and ones.
    """
    import numpy as np

    draw = np.random.default_rng(0)
    made: list[tuple[int, Any]] = []
    for item in details:
        shape = [int(size) for size in item["shape"]]
        signature = [int(size) for size in item.get("shape_signature", item["shape"])]
        if any(size < 0 for size in signature):
            raise RuntimeFailure(
                "MODEL_INVALID", f"input {item['name']!r} has an open dimension: {signature}"
            )
        kind = np.dtype(item["dtype"])
        low = _EIGHT_BITS.get(kind.name)
        if low is not None:
            array = draw.integers(low, low + 256, shape).astype(kind)
        elif kind.kind in "fiub":
            array = input_noise(draw, shape, kind)
        else:
            raise RuntimeFailure("MODEL_INVALID", f"input {item['name']!r} is a {kind}")
        made.append((int(item["index"]), array))
    return made


def failure(error: Exception, *, loading: bool) -> RuntimeFailure:
    """Turn an exception of the interpreter into a typed failure with a message of one line."""
    message = " ".join(str(error).split())[:600]
    if not message:
        # Only one failure of the interpreter has no message: that it cannot allocate its tensors.
        return RuntimeFailure("OUT_OF_MEMORY", "the interpreter could not allocate its tensors")
    low = message.lower()
    code = "MODEL_INVALID" if loading else "MODEL_FAILED"
    if isinstance(error, MemoryError) or "bad_alloc" in low or "failed to allocate" in low:
        code = "OUT_OF_MEMORY"
    elif any(sign in low for sign in _UNSUPPORTED):
        code = "MODEL_UNSUPPORTED"
    return RuntimeFailure(code, message)


def _compiled(
    module: Any, path: Path, threads: int, delegate: Delegate, extra: Mapping[str, str]
) -> TfliteSession:
    begun = time.perf_counter()
    loaded = tflite_delegates.load(module, delegate, extra)
    session = open_interpreter(module, path, threads, delegate=(loaded, delegate.name))
    if delegate.slow_compile:
        made_ms = (time.perf_counter() - begun) * 1e3
        session.compile_ms = made_ms + _first_ms(session.run)
    session.conditions = _where(session, path, delegate)
    return session


def _where(session: TfliteSession, path: Path, delegate: Delegate) -> dict[str, str]:
    """Return conditions that say how many operators the delegate took, and which run on the CPU."""
    named = operators(session, path)
    taken = 0
    left = []
    for step in session.steps():
        if session.names.get(step.delegate) == delegate.name:
            taken += len(step.covers)
        else:
            left += [f"{named[index].op} {named[index].name!r}" for index in step.covers]
    told = {"delegated_operators": f"{taken} of {len(named)}"}
    if left:
        told["on_cpu"] = tflite_delegates.listed(left)
    return told


def _first_ms(run: Callable[[], None]) -> float:
    """Return by how much the first inference takes longer than the second: its one-time work."""
    marks = [time.perf_counter()]
    for _ in range(2):
        run()
        marks.append(time.perf_counter())
    return max(0.0, (marks[1] - marks[0]) - (marks[2] - marks[1])) * 1e3


def _forget(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _closed() -> None:
    raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
