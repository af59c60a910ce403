"""The TensorRT runtime on the doubles, in a process of its own: leaks, caches, faults, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.runtimes.cuda import CudaDevice
from latfarm_agent.runtimes.tensorrt.cache import TimingCache

DOUBLE = Path(__file__).parent / "double"
START = """
import ctypes, json, sys
from pathlib import Path
from latfarm_agent.runtimes.base import Job, RuntimeFailure
from latfarm_agent.runtimes.cuda import Cuda
from latfarm_agent.runtimes.tensorrt.runtime import TensorRtRuntime
driver = ctypes.CDLL("libcuda.so.1")
model, cache = map(Path, sys.argv[1:])
runtime = TensorRtRuntime(threads=1, cuda_graph=True, transfers=True, cache_dir=str(cache))
specs = {spec.name.split("-", 1)[1]: spec for spec in runtime.describe().platforms}
def job(name, session=0, sequence=0):
    spec = specs[name]
    return Job(model, spec.settings, spec.dtype, cache, "request", session, sequence)
"""
ORIN = CudaDevice(0, "Double GPU", (8, 7), 0, 0, True, "", "")


@pytest.fixture(name="play")
def _play(driver: Path, tmp_path: Path, write: Callable[..., Path]) -> Callable[..., Any]:
    """Run a script after `START`; return the JSON that it printed last, or how it failed."""

    def play(script: str, kind: str = "conv", version: str = "10.3", **options: str) -> Any:
        environment = dict(
            os.environ,
            LD_LIBRARY_PATH=str(driver.parent),
            LATFARM_TENSORRT_DOUBLE=version,
            PYTHONPATH=os.pathsep.join([str(DOUBLE), os.environ.get("PYTHONPATH", "")]),
            **options,
        )
        model, cache = write(tmp_path / "m.onnx", kind), tmp_path / "cache"
        done = subprocess.run(
            [sys.executable, "-c", START + script, str(model), str(cache)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            return done.returncode, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return play


def test_sessions_leave_nothing_on_the_gpu(play: Callable[..., Any]) -> None:
    live = play("""
live = []
for session, name in enumerate(["fp32", "graph-fp32", "transfers-fp32", "fp32"]):
    prepared = runtime.prepare(job(name, session))
    prepared.flush()
    for _ in range(3):
        assert runtime.run() > 0
    assert runtime.profile(job(name, session), 2)
    live.append(driver.latfarm_double_live())
print(json.dumps(live))
""")
    assert live == [0, 0, 0, 0]


def test_it_tells_the_memory_of_the_gpu_that_a_model_takes(play: Callable[..., Any]) -> None:
    integrated, told, plain, staged, buffers = play("""
from latfarm_agent.runtimes.cuda import Cuda
allocated = []
allocate = Cuda.allocate
Cuda.allocate = lambda cuda, size: (allocated.append(size), allocate(cuda, size))[1]
told = runtime.prepare(job("fp32")).device_memory_bytes
plain, buffers = runtime._session.device_bytes, sum(allocated)
runtime.prepare(job("transfers-fp32", 1))
staged = runtime._session.device_bytes
print(json.dumps([Cuda().device.integrated, told, plain, staged, buffers]))
""")
    assert buffers > 0
    assert plain == 4096 + buffers
    assert staged == plain  # pinned buffers for transfers are memory of the host
    assert told == (0 if integrated else plain)  # an integrated GPU has no memory of its own


def test_timings_are_kept_and_engines_are_not(play: Callable[..., Any], tmp_path: Path) -> None:
    told = play("""
from latfarm_agent.runtimes.tensorrt.cache import TimingCache
kept = TimingCache(cache, "10.3.0", Cuda().device)
told = []
def build():
    prepared = runtime.prepare(job("fp32", 0, len(told)))
    runtime.run()
    told.append(prepared.conditions["timing_cache"])
    return kept.load()
build()
good = build()
# The digest of the file is right, but TensorRT refuses it: it is damaged, or of another GPU.
for refused in (b"garbage", good.replace(b"GPU 8.7", b"GPU 9.0")):
    kept.save(refused)
    assert build() == good
    build()
print(json.dumps(told))
""")
    assert told == ["cold", "warm", "cold", "warm", "cold", "warm"]
    cache = TimingCache(tmp_path / "cache", "10.3.0", ORIN)
    assert list((tmp_path / "cache").iterdir()) == [cache.path]
    assert b"conv0 + bn0 + relu0" in cache.load()
    # A later process uses the timings too.
    again = "print(json.dumps(runtime.prepare(job('fp32')).conditions['timing_cache']))"
    assert play(again) == "warm"


def test_a_fault_on_the_gpu_ends_the_process(play: Callable[..., Any]) -> None:
    for name in ("fp32", "graph-fp32"):
        code, told = play(f"""
runtime.prepare(job({name!r}))
driver.latfarm_double_fault(700)
try:
    runtime.run()
except Exception as error:
    print("went on", error)
""")
        assert code == 1
        assert "CUDA_ERROR_ILLEGAL_ADDRESS: the GPU's context is lost" in told


def test_memory_that_is_too_small(play: Callable[..., Any]) -> None:
    told = play(
        """
try:
    runtime.prepare(job("fp32"))
except RuntimeFailure as failure:
    print(json.dumps([failure.code, driver.latfarm_double_live()]))
""",
        LATFARM_DOUBLE_MEMORY="12000",
    )
    assert told == ["OUT_OF_MEMORY", 0]


def test_a_new_request_builds_anew(play: Callable[..., Any]) -> None:
    told = play("""
built = []
for sequence, session in ((0, 0), (0, 1), (1, 0), (1, 1)):
    built.append(runtime.prepare(job("fp32", session, sequence)).compile_ms > 0)
model.write_bytes(model.read_bytes() + b"")
import os
os.utime(model, ns=(1, 1))
built.append(runtime.prepare(job("fp32", 2, 1)).compile_ms > 0)
print(json.dumps(built))
""")
    assert told == [True, False, True, False, True]


def test_nothing_runs_unprepared(play: Callable[..., Any]) -> None:
    told = play("""
try:
    runtime.run()
except RuntimeFailure as failure:
    print(json.dumps(failure.code))
""")
    assert told == "MODEL_FAILED"


def test_an_old_tensorrt(play: Callable[..., Any]) -> None:
    code, told = play("", version="8.2")
    assert code == 1
    assert "tensorrt 8.2.0 is too old; install 8.4 or newer" in told


def test_the_double_is_strict(play: Callable[..., Any]) -> None:
    """The double refuses what the real package would refuse, crash at or answer wrongly."""
    found = play("""
import tensorrt as trt
from latfarm_agent.runtimes.tensorrt.build import EnginePlan, Journal, OnnxFiles, build, make_logger
from latfarm_agent.runtimes.tensorrt.cache import TimingCache
refused = []
def wrong(what, kind=Exception):
    try:
        answer = what()
    except kind as error:
        refused.append(type(error).__name__)
    else:
        refused.append(answer)
journal = Journal()
logger = make_logger(trt, journal)
class Bare(trt.ILogger):
    def __init__(self): pass
class Mute(trt.IProfiler):
    def __init__(self): pass
wrong(lambda: trt.Builder(Bare()))
wrong(lambda: trt.Builder(object()))
wrong(lambda: trt.Builder(logger).create_network(1 << 5))
config = trt.Builder(logger).create_builder_config()
wrong(lambda: setattr(config, "max_workspace_size", 1))
wrong(lambda: config.set_flag("FP16"))
wrong(lambda: setattr(trt.Builder(logger), "num_DLA_cores", 3))
cuda = Cuda()
plan, nowhere = EnginePlan("fp32", "strong"), TimingCache(None, "", cuda.device)
built = build(trt, logger, journal, OnnxFiles(model), plan, nowhere)
context = built.engine.create_execution_context()
stream = cuda.stream()
wrong(lambda: context.execute_async_v3(stream))
wrong(lambda: context.set_tensor_address("no such tensor", 64))
wrong(lambda: context.set_tensor_address("x", 0))
wrong(lambda: context.execute_async_v3(0))
wrong(lambda: setattr(context, "profiler", Mute()))
wrong(lambda: trt.Runtime(logger).deserialize_cuda_engine(b"from a file"))
wrong(lambda: trt.Builder(logger).build_serialized_network(None, config))
for name in ("x", "y"):
    context.set_tensor_address(name, cuda.allocate(8192))
wrong(lambda: context.execute_async_v3(stream))
cuda.destroy_stream(stream)
wrong(lambda: context.execute_async_v3(stream))
print(json.dumps(refused))
""")
    assert found == [
        *("Misuse", "TypeError", "Misuse"),
        *("AttributeError", "Misuse", "AttributeError"),
        *(False, False, False, "Misuse", "Misuse", "Misuse", "AttributeError"),
        *(True, False),
    ]
