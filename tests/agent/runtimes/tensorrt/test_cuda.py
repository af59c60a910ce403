"""The calls of the CUDA driver, tested on a double of the driver that keeps its state."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.cuda import Cuda

TEXT = b"some bytes to carry"


@pytest.fixture(name="library")
def _library(driver: Path, tmp_path: Path) -> Path:
    """A copy of the driver's double, which has a state of its own."""
    return Path(shutil.copy(driver, tmp_path / "driver.so"))


@pytest.fixture(name="cuda")
def _cuda(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """The GPU of the double; after the test, nothing may be left on it."""
    monkeypatch.setenv("LATFARM_DOUBLE_MEMORY", str(1 << 20))
    double = ctypes.CDLL(str(library))
    yield Cuda(library=str(library))
    assert double.latfarm_double_live() == 0


def test_the_device(cuda: Cuda) -> None:
    device = cuda.device
    assert (device.name, device.capability, device.driver) == ("Double GPU", (8, 7), "12.6")
    assert (device.memory_bytes, device.l2_bytes) == (1 << 20, 256 << 10)
    assert (device.bus_id, device.integrated) == ("0000:65:00.0", True)


def test_copies_there_and_back(cuda: Cuda) -> None:
    stream, there, pinned = cuda.stream(), cuda.allocate(64), cuda.allocate_host(64)
    source = ctypes.create_string_buffer(TEXT)
    cuda.to_device(there, ctypes.addressof(source), len(TEXT), stream)
    cuda.to_host(pinned, there, len(TEXT), stream)
    cuda.synchronise(stream)
    assert ctypes.string_at(pinned, len(TEXT)) == TEXT
    cuda.fill(there, 7, 64, stream)
    cuda.to_host(pinned, there, 4, stream)
    cuda.synchronise(stream)
    assert ctypes.string_at(pinned, 4) == b"\7\7\7\7"
    with pytest.raises(RuntimeFailure, match="CUDA_ERROR_INVALID_VALUE"):
        cuda.to_device(there, ctypes.addressof(source), 65, stream)
    cuda.free(there)
    with pytest.raises(RuntimeFailure, match="cuMemcpyDtoHAsync_v2 failed"):
        cuda.to_host(pinned, there, 4, stream)
    with pytest.raises(RuntimeFailure, match="cuMemFree_v2"):
        cuda.free(there)
    cuda.free_host(pinned)
    cuda.destroy_stream(stream)
    with pytest.raises(RuntimeFailure, match="CUDA_ERROR_INVALID_HANDLE"):
        cuda.synchronise(stream)


def test_memory_that_is_not_there(cuda: Cuda) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        cuda.allocate(2 << 20)
    assert caught.value.code == "OUT_OF_MEMORY"
    cuda.free(cuda.allocate(0))


def launch(library: Path, stream: int, us: float) -> None:
    """Enqueue work of a known duration on the double."""
    function = ctypes.CDLL(str(library)).latfarm_double_launch
    function.argtypes = (ctypes.c_void_p, ctypes.c_double, ctypes.c_int, *[ctypes.c_void_p] * 2)
    buffer = ctypes.create_string_buffer(8)
    assert function(stream, us, 0, buffer, buffer) == 0


def test_time_between_events(cuda: Cuda, library: Path) -> None:
    stream, first, last = cuda.stream(), cuda.event(), cuda.event()
    with pytest.raises(RuntimeFailure, match="CUDA_ERROR_INVALID_HANDLE"):
        cuda.elapsed_ms(first, last)
    cuda.record(first, stream)
    launch(library, stream, 2_000.0)
    cuda.record(last, stream)
    cuda.synchronise(stream)
    assert cuda.elapsed_ms(first, last) >= 2.0
    cuda.destroy_event(first)
    cuda.destroy_event(last)
    cuda.destroy_stream(stream)


def test_graphs(cuda: Cuda, library: Path) -> None:
    stream, first, last = cuda.stream(), cuda.event(), cuda.event()
    graph = cuda.capture(stream, lambda: launch(library, stream, 3_000.0))
    for turns in (0, 2):
        cuda.record(first, stream)
        for _ in range(turns):
            cuda.launch(graph, stream)
        cuda.record(last, stream)
        cuda.synchronise(stream)
        assert cuda.elapsed_ms(first, last) >= 3.0 * turns
    with pytest.raises(RuntimeFailure) as caught:
        cuda.capture(stream, lambda: cuda.synchronise(stream))
    assert caught.value.code == "MODEL_UNSUPPORTED"
    assert "CUDA graph" in caught.value.message
    # The stream is usable again.
    cuda.synchronise(stream)
    cuda.destroy_graph(graph)
    cuda.destroy_event(first)
    cuda.destroy_event(last)
    cuda.destroy_stream(stream)


def test_a_lost_context_ends_the_process(cuda: Cuda, library: Path) -> None:
    stream = cuda.stream()
    cuda.destroy_stream(stream)
    script = f"""
import ctypes
from latfarm_agent.runtimes.cuda import Cuda
cuda = Cuda(library={str(library)!r})
stream = cuda.stream()
ctypes.CDLL({str(library)!r}).latfarm_double_fault(700)
try:
    cuda.synchronise(stream)
except Exception:
    print("went on")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "went on" not in done.stdout
    assert "CUDA_ERROR_ILLEGAL_ADDRESS: the GPU's context is lost" in done.stderr


@pytest.mark.parametrize(("spin", "flag"), [(True, 1), (False, 4)])
def test_how_it_waits(library: Path, spin: bool, flag: int) -> None:
    Cuda(spin=spin, library=str(library))
    assert ctypes.CDLL(str(library)).latfarm_double_flags() == flag


def test_what_is_missing(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, says in (
        ({"library": "libno-such-driver.so"}, "libno-such-driver.so"),
        ({"library": str(library), "index": 1}, "there is no GPU 1"),
    ):
        with pytest.raises(RuntimeFailure, match=says) as caught:
            Cuda(**arguments)
        assert caught.value.code == "RUNTIME_MISSING"
        assert "install" in caught.value.message
    monkeypatch.setenv("LATFARM_DOUBLE_DEVICES", "0")
    with pytest.raises(RuntimeFailure, match="CUDA_ERROR_NO_DEVICE"):
        Cuda(library=str(library))
