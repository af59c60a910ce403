"""ONNX models by OpenVINO 2021.4 or 2022.3, which still support the Neural Compute Stick 2.

These versions have the old Inference Engine API and need Python 3.6 to 3.9 (2022.3: up to 3.10). So
this runtime runs in an environment of its own (docs/how-to/ncs2.md), in which it needs only
OpenVINO and numpy.

It offers fp32 on the CPU and fp16 on the stick (MYRIAD), which computes in fp16 whatever type the
weights in the file have. It does not offer int8 on the CPU, because these versions turn QDQ models
into FakeQuantize and compute the layers in fp32.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import xml.etree.ElementTree as Xml
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.noise import input_noise
from latfarm_agent.runtimes.onnx.wire import read_nodes, read_opset
from latfarm_agent.runtimes.openvino import sticks
from latfarm_agent.runtimes.openvino.inference import infer, kernel_times
from latfarm_agent.runtimes.openvino.layers import ExecNode, layer_times
from latfarm_agent.runtimes.probe import matrix_probe

_ENGINE = "openvino.inference_engine"
"""The module of the Inference Engine."""
_NEWEST_OPSET = {"2021.4": 13, "2022.3": 15}
"""Version of OpenVINO -> newest ONNX opset that it reads. From a file of a newer opset it reads the
newest operators that it knows and only warns, so that another model would be measured."""
_UNSUPPORTED = ("not support", "unsupported", "unimplemented", "not implemented", "cannot convert")
_GONE = ("nc_error", "x_link", "xlink", "can not init myriad", "no device", "failed to find")
_DTYPES = {
    "FP32": "float32",
    "FP16": "float16",
    "I64": "int64",
    "U64": "uint64",
    "I32": "int32",
    "U32": "uint32",
    "I16": "int16",
    "U16": "uint16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


class OpenVino2021Runtime:
    """The Inference Engine with one stream, which runs one inference at a time.

    Args:
        threads: threads of the CPU device.
        device: name of the stick to use if there are several, for example "MYRIAD.1.2-ma2480";
            empty: the first by name.
        config: more keys of the engine by the kind of device, for example
            {"MYRIAD": {"MYRIAD_ENABLE_HW_ACCELERATION": "NO"}}.
    """

    def __init__(
        self,
        threads: int = 1,
        device: str = "",
        config: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._threads = threads
        self._pinned = _checked_device(device)
        self._config = _checked_config(config or {})
        self._core: Any = None
        self._network: Any = None
        self._request: Any = None

    def describe(self) -> Description:
        """Offer fp32 on the CPU, and fp16 on the stick if one is plugged in."""
        core, version, short = self._engine()
        cpu = {"device": "CPU", "streams": "1", "threads": str(self._threads)}
        name = f"openvino{short}-fp32-{self._threads}t"
        platforms = [PlatformSpec(name, "onnx", "fp32", dict(cpu, **self._more("CPU")))]
        stick = sticks.chosen(core, self._pinned)
        if stick:
            settings = {"device": sticks.MYRIAD, "streams": "1", **self._more(sticks.MYRIAD)}
            chip = sticks.chip(core, stick)
            if chip:
                settings["chip"] = chip
            platforms.append(PlatformSpec(f"openvino{short}-myriad-fp16", "onnx", "fp16", settings))
        return Description(version, tuple(platforms))

    def prepare(self, job: Job) -> Prepared:
        """Compile the file for its device, load it there, and fill the inputs with noise."""
        self._network = self._request = None
        gc.collect()
        device = self._device(job)
        network, compile_ms = self._load(job, device, profiling=False)
        self._network, self._request = network, network.requests[0]
        _fill(self._request)
        conditions: Mapping[str, str] = {}
        if device != "CPU":
            conditions = sticks.StickConditions(device, lambda: sticks.thermal(self._network))
        return Prepared(
            compile_ms=compile_ms,
            cpu_clock="process" if device == "CPU" else "none",
            probe=matrix_probe(),
            conditions=conditions,
        )

    def run(self) -> float | None:
        """Run one inference, including the transfers to the stick and back."""
        infer(self._request, _while_running)
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the times of the device's kernels, named after the nodes that they cover."""
        self._network = self._request = None
        device = self._device(job)
        network, _ = self._load(job, device, profiling=True)
        request = network.requests[0]
        _fill(request)
        ran: set[str] = set()

        def told_times(request: Any) -> Iterator[tuple[str, float]]:
            for name, entry in request.get_perf_counts().items():
                # The CPU gives another status to a kernel that took under a microsecond.
                if entry["status"] == "EXECUTED":
                    ran.add(str(name))
                yield str(name), float(entry["real_time"]) / 1e3

        times_ms = kernel_times(
            request, runs, told_times, _while_running, averages=device.startswith("CPU")
        )
        try:
            inputs = list(network.input_info)
            graph = _exec_graph(network, job.scratch_dir)
        except Exception as error:
            raise _while_running(error) from error
        times_ms = {name: spent for name, spent in times_ms.items() if name in ran}
        if not times_ms:
            raise RuntimeFailure(
                "PROFILE_UNAVAILABLE", f"{device} reports no kernel that took a microsecond"
            )
        nodes = read_nodes(job.model_path)
        silent = device != "CPU"
        return layer_times(graph, nodes, times_ms, inputs, sticks.kind(device), silent=silent)

    def _engine(self) -> tuple[Any, str, str]:
        """Return the engine's core, its version, and the first two numbers of the version."""
        if self._core is None and not _has_engine():
            raise _missing(f"No module named '{_ENGINE}'")
        try:
            from openvino.inference_engine import IECore, get_version
        except ImportError as error:
            raise _missing(str(error)) from error
        if self._core is None:
            self._core = IECore()
        version = str(get_version()).split("-", maxsplit=1)[0]
        return self._core, version, ".".join(version.split(".")[:2])

    def _more(self, kind: str) -> dict[str, str]:
        more = self._config.get(kind)
        return {"config": json.dumps(more, sort_keys=True)} if more else {}

    def _device(self, job: Job) -> str:
        core, _, _ = self._engine()
        if job.settings.get("device", "CPU") == "CPU":
            return "CPU"
        stick = sticks.chosen(core, self._pinned)
        if not stick:
            raise RuntimeFailure(
                "RUNTIME_MISSING", "no Neural Compute Stick is plugged in any more"
            )
        return stick

    def _load(self, job: Job, device: str, *, profiling: bool) -> tuple[Any, float]:
        """Load the network onto its device; return it with the milliseconds that this took."""
        core, _, short = self._engine()
        config = {"PERF_COUNT": "YES" if profiling else "NO"}
        if device == "CPU":
            config.update(
                CPU_THREADS_NUM=str(self._threads), CPU_THROUGHPUT_STREAMS="1", CPU_BIND_THREAD="NO"
            )
        else:
            config["MYRIAD_THROUGHPUT_STREAMS"] = "1"
        config.update(self._config.get(sticks.kind(device), {}))
        try:
            _check_opset(read_opset(job.model_path), short)
            network = core.read_network(str(named(job)))
            if device != "CPU":
                sticks.narrow_inputs(network)
        except Exception as error:
            raise _failure(error, loading=True) from error
        begun = time.perf_counter()
        try:
            loaded = core.load_network(network, device, config, 1)
        except Exception as error:
            raise _failure(error, loading=True) from error
        return loaded, (time.perf_counter() - begun) * 1e3


def _checked_device(device: Any) -> str:
    if not isinstance(device, str) or (device and not device.startswith(sticks.MYRIAD)):
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            "the openvino2021 runtime's option device must name a stick, for example "
            "MYRIAD.1.2-ma2480",
        )
    return device


def _checked_config(config: Any) -> dict[str, dict[str, str]]:
    if not isinstance(config, dict) or not all(
        kind in ("CPU", sticks.MYRIAD) and isinstance(values, dict)
        for kind, values in config.items()
    ):
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            "the openvino2021 runtime's option config must be an object of CPU and MYRIAD, each an "
            "object of the engine's keys",
        )
    return {
        kind: {str(key): str(value) for key, value in values.items()}
        for kind, values in config.items()
    }


def _check_opset(opset: int, short: str) -> None:
    newest = _NEWEST_OPSET.get(short, opset)
    if opset > newest:
        raise RuntimeFailure(
            "MODEL_UNSUPPORTED",
            f"the file uses ONNX opset {opset}; OpenVINO {short} reads up to {newest}",
        )


def named(job: Job) -> Path:
    """Link the model under a name that ends in ".onnx", by which the engine chooses its reader.

    The engine looks for other files of the model beside the link, so these are linked as well.
    """
    folder = job.scratch_dir / "named"
    folder.mkdir(exist_ok=True)
    # No companion has a name that begins like this one, so that none takes the model's place.
    named = {"_model.onnx": job.model_path.name, **{name: name for name in job.companions}}
    for name, source in named.items():
        link = folder / name
        if link.is_symlink():
            link.unlink()
        link.symlink_to(job.model_path.absolute().parent / source)
    return folder / "_model.onnx"


def _fill(request: Any) -> None:
    """Fill the inputs with the same random values each time; see `input_noise`."""
    import numpy as np

    draw = np.random.default_rng(0)
    for name, blob in request.input_blobs.items():
        described = blob.tensor_desc
        if described.precision not in _DTYPES:
            raise RuntimeFailure("MODEL_INVALID", f"input {name!r} is a {described.precision}")
        blob.buffer[...] = input_noise(draw, tuple(described.dims), _DTYPES[described.precision])


def _exec_graph(network: Any, scratch_dir: Path) -> list[ExecNode]:
    """Read from the engine's XML which nodes the device runs, in order."""
    path = scratch_dir / "executed.xml"
    network.get_exec_graph_info().serialize(str(path), str(scratch_dir / "executed.bin"))
    root = Xml.parse(str(path)).getroot()
    names: dict[str, str] = {}
    found = []
    for layer in root.iterfind("./layers/layer"):
        data = layer.find("data")
        told = {} if data is None else data.attrib
        names[layer.attrib["id"]] = layer.attrib["name"]
        order = told.get("execOrder", "")
        found.append((int(order) if order.lstrip("-").isdigit() else 0, layer, told))
    reads: dict[str, list[str]] = {}
    for edge in root.iterfind("./edges/edge"):
        reads.setdefault(edge.attrib["to-layer"], []).append(names[edge.attrib["from-layer"]])
    found.sort(key=lambda entry: entry[0])
    return [
        ExecNode(
            name=layer.attrib["name"],
            kind=told.get("layerType") or layer.attrib["type"],
            primitive=told.get("primitiveType", ""),
            layers=tuple(told.get("originalLayersNames", "").split(",")),
            reads=tuple(reads.get(layer.attrib["id"], ())),
        )
        for _, layer, told in found
    ]


def _while_running(error: Exception) -> RuntimeFailure:
    return _failure(error, loading=False)


def _failure(error: Exception, *, loading: bool) -> RuntimeFailure:
    """Turn an exception of the engine into a typed failure with a message of one line."""
    if isinstance(error, RuntimeFailure):
        return error
    message = " ".join(str(error).split())[:600]
    low = message.lower()
    code = "MODEL_INVALID" if loading else "MODEL_FAILED"
    if isinstance(error, MemoryError) or "alloc" in low or "create a memory object" in low:
        code = "OUT_OF_MEMORY"
    elif any(sign in low for sign in _GONE):
        code = "RUNTIME_MISSING"
        message = f"the stick does not answer: {message}"
    elif "dynamic output shape" in low:
        code = "MODEL_INVALID"
        message = f"an input has an open dimension: {message}"
    elif any(sign in low for sign in _UNSUPPORTED):
        code = "MODEL_UNSUPPORTED"
    return RuntimeFailure(code, message)


def _missing(reason: str) -> RuntimeFailure:
    return RuntimeFailure(
        "RUNTIME_MISSING",
        f"OpenVINO's Inference Engine cannot be imported ({reason}); install openvino 2021.4.2 "
        "into an environment of its own and name its interpreter in the agent's configuration: "
        "see docs/how-to/ncs2.md",
    )


def _has_engine() -> bool:
    """Whether an OpenVINO with its Inference Engine is installed, as versions before 2024 are.

    OpenVINO itself is not imported for this: newer versions take a third of a second.
    """
    places = [str(Path(folder) / "openvino") for folder in sys.path]
    return PathFinder.find_spec(_ENGINE, places) is not None
