"""A strict double of MNN's Python package as if it were built with GPUs.

It follows MNN's pymnn and headers: names and numbers of back ends, GPU modes in place of a number
of threads, a null pointer for the host memory of a GPU's tensor, results that exist only after they
are copied, and a cache file that is read before a session is made and written afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Halide_Type_Float, Halide_Type_Int = "float", "int"
Tensor_DimensionType_Caffe = 1
NUMBERS = {"CPU": 13, "OPENCL": 3, "VULKAN": 7}
TUNINGS = {1, 2, 4, 8, 16}

present: set[str] = {"CPU", "OPENCL", "VULKAN"}
sessions: list[dict[str, Any]] = []
caches: list[tuple[str, str, bytes]] = []


def version() -> str:
    return "3.6.1"


class Tensor:
    def __init__(self, shape: Sequence[int], kind: str, data: Any, dimensions: int) -> None:
        assert dimensions == Tensor_DimensionType_Caffe
        assert tuple(data.shape) == tuple(shape)
        self.shape, self.kind, self.data, self.on_gpu, self.ready = shape, kind, data, False, True

    def getShape(self) -> tuple[int, ...]:
        return tuple(self.shape)

    def getDataType(self) -> str:
        return self.kind

    def getHost(self) -> object:
        if self.on_gpu:
            raise ValueError("PyCapsule_New called with null pointer")
        return object()

    def copyFrom(self, other: Tensor) -> bool:
        return self.shape == other.shape

    def copyToHostTensor(self, host: Tensor) -> bool:
        assert not host.on_gpu
        assert host.shape == self.shape
        self.ready = True
        return True


class OpInfo:
    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind

    def getName(self) -> str:
        return self._name

    def getType(self) -> str:
        return self._kind


class Session:
    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.input, self.output = _tensor(backend), _tensor(backend)
        self.ops = [
            (OpInfo("conv", "Convolution"), _tensor(backend)),
            (OpInfo("topk", "TopKV2"), _tensor("CPU")),  # what the back end lacks
        ]


class Interpreter:
    def __init__(self, path: str) -> None:
        assert Path(path).is_file()
        self._cache = ""

    @staticmethod
    def createRuntime(configs: Sequence[dict[str, Any]]) -> tuple[object, tuple[bool, ...]]:
        return object(), tuple(_checked(config)["backend"] in present for config in configs)

    def setCacheFile(self, path: str) -> None:
        self._cache = path
        known = Path(path).read_bytes() if Path(path).exists() else b""
        caches.append(("read", path, known))

    def updateCacheFile(self, session: Session, flag: int) -> int:
        assert flag == 0
        Path(self._cache).write_bytes(b"tuned for " + session.backend.encode())
        return 0

    def createSession(self, config: dict[str, Any]) -> Session:
        sessions.append(_checked(config))
        backend = config["backend"]
        return Session(backend if backend in present else "CPU")

    def getSessionInfo(self, session: Session, code: int) -> int:
        return {2: NUMBERS[session.backend], 3: 0}[code]

    def getSessionInputAll(self, session: Session) -> dict[str, Tensor]:
        return {"x": session.input}

    def getSessionOutputAll(self, session: Session) -> dict[str, Tensor]:
        return {"y": session.output}

    def getSessionOutput(self, session: Session, name: str) -> Tensor:
        assert name == "y"
        return session.output

    def runSession(self, session: Session) -> int:
        assert session.output.ready, "the run before was not waited for"
        session.output.ready = session.backend == "CPU"
        return 0

    def runSessionWithCallBackInfo(
        self, session: Session, before: Callable[..., bool], after: Callable[..., bool]
    ) -> int:
        for info, tensor in session.ops:
            assert before([], info)
            assert after([tensor], info)
        return 0


def _tensor(backend: str) -> Tensor:
    import numpy as np

    made = Tensor((1, 2), Halide_Type_Float, np.zeros((1, 2), np.float32), 1)
    made.on_gpu = backend != "CPU"
    return made


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    assert set(config) == {"backend", "numThread", "precision"}
    assert config["backend"] in NUMBERS
    assert config["precision"] in ("high", "low")
    if config["backend"] != "CPU":
        bits = config["numThread"]
        assert bits & 31 in TUNINGS
        assert bits & ~31 in ((64, 128, 0) if config["backend"] == "OPENCL" else (0,))
    return config
