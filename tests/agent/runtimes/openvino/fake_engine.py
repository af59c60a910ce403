"""A strict double of openvino 2021.4's `inference_engine` with Neural Compute Sticks.

It has the calls that the runtime makes and the keys that the plugins have, and refuses all others.
The file `machine.json` beside the package says what is plugged in: {"sticks": ids ("1.2-ma2480"),
"unsupported": ops that a stick refuses, "gone": whether it was unplugged, "busy": whether it does
not start}. It writes how each network was loaded to `loads.jsonl`.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as Xml
from pathlib import Path
from typing import Any, Mapping

import numpy as np

_HERE = Path(__file__).parent.parent
_KEYS = {
    "CPU": {"PERF_COUNT", "CPU_THREADS_NUM", "CPU_THROUGHPUT_STREAMS", "CPU_BIND_THREAD"},
    "MYRIAD": {"PERF_COUNT", "MYRIAD_THROUGHPUT_STREAMS", "MYRIAD_ENABLE_HW_ACCELERATION"},
}
_KERNEL_US = 50


def get_version() -> str:
    return "2021.4.2-3976-0943ed67223-refs/pull/539/head"


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_HERE / "machine.json").read_text())
    return found


class TensorDesc:
    def __init__(self, precision: str, dims: list[int]) -> None:
        self.precision, self.dims = precision, dims


class Blob:
    def __init__(self, description: TensorDesc) -> None:
        self.tensor_desc = description
        dtype = {"FP32": "f4", "I32": "i4", "I64": "i8"}[description.precision]
        self.buffer = np.full(description.dims, 77, dtype)


class InputInfo:
    def __init__(self, precision: str) -> None:
        self.precision = precision


class IENetwork:
    def __init__(self, path: Path) -> None:
        from latfarm_agent.runtimes.onnx.wire import read_nodes

        assert path.suffix == ".onnx", "the reader is chosen by the name"
        self.nodes = read_nodes(path)
        integers = self.nodes[0].op == "Gather"
        self.dims = [4] if integers else [1, 8, 16, 16]
        self.input_info = {"x": InputInfo("I64" if integers else "FP32")}


class ExecGraph:
    """The graph that a stick runs: one kernel for each node that is not a fused activation."""

    def __init__(self, nodes: list[Any]) -> None:
        self.kernels = stages(nodes)

    def serialize(self, path: str, weights: str) -> None:
        assert weights.endswith(".bin")
        net = Xml.Element("net")
        layers, edges = Xml.SubElement(net, "layers"), Xml.SubElement(net, "edges")
        given = Xml.SubElement(layers, "layer", id="0", name="x", type="Input")
        Xml.SubElement(given, "data", execOrder="0", layerType="Input")
        for order, (name, op, layer) in reversed(list(enumerate(self.kernels, start=1))):
            told = {"execOrder": str(order), "layerType": op, "originalLayersNames": layer}
            kernel = Xml.SubElement(layers, "layer", id=str(order), name=name, type=op)
            Xml.SubElement(kernel, "data", told, primitiveType=f"Myriad{op}")
            ends = {"from-layer": str(order - 1), "to-layer": str(order)}
            Xml.SubElement(edges, "edge", ends)
        Xml.ElementTree(net).write(path)


def stages(nodes: list[Any]) -> list[tuple[str, str, str]]:
    """Return what a stick runs, as (stage, op, layer); it fuses activations without naming them."""
    appended = ("BatchNormalization", "Relu")
    return [
        (f"{node.outputs[0]}@stage", node.op, node.outputs[0])
        for node in nodes
        if node.op not in appended
    ]


class InferRequest:
    def __init__(self, network: IENetwork, config: Mapping[str, str]) -> None:
        self._nodes = network.nodes
        self._profiles = config["PERF_COUNT"] == "YES"
        (info,) = network.input_info.values()
        self.input_blobs = {"x": Blob(TensorDesc(info.precision, network.dims))}

    def infer(self) -> None:
        assert not (self.input_blobs["x"].buffer == 77).all(), "its input was never filled"
        if _machine().get("gone"):
            raise RuntimeError("[ GENERAL_ERROR ] Failed to queue inference: NC_ERROR")

    def get_perf_counts(self) -> dict[str, dict[str, Any]]:
        assert self._profiles
        found = {
            name: {"status": "EXECUTED", "real_time": _KERNEL_US, "layer_type": op}
            for name, op, _ in stages(self._nodes)
        }
        found["Receive-Tensor"] = {"status": "EXECUTED", "real_time": 7, "layer_type": "Receive"}
        found["unused"] = {"status": "OPTIMIZED_OUT", "real_time": 0, "layer_type": "Copy"}
        return found


class ExecutableNetwork:
    def __init__(self, network: IENetwork, config: Mapping[str, str]) -> None:
        self._nodes = network.nodes
        self._degrees = 40.0
        self.input_info = network.input_info
        self.requests = [InferRequest(network, config)]

    def get_metric(self, name: str) -> float:
        assert name == "DEVICE_THERMAL"
        self._degrees += 1.5
        return self._degrees

    def get_exec_graph_info(self) -> ExecGraph:
        return ExecGraph(self._nodes)


class IECore:
    @property
    def available_devices(self) -> list[str]:
        sticks = _machine()["sticks"]
        if len(sticks) == 1:
            return ["CPU", "MYRIAD"]
        return ["CPU", *(f"MYRIAD.{stick}" for stick in sticks)]

    def get_metric(self, device: str, name: str) -> list[str]:
        assert (device, name) == ("MYRIAD", "AVAILABLE_DEVICES")
        found: list[str] = _machine()["sticks"]
        return found

    def read_network(self, path: str) -> IENetwork:
        return IENetwork(Path(path))

    def load_network(
        self, network: IENetwork, device: str, config: Mapping[str, str], num_requests: int
    ) -> ExecutableNetwork:
        kind, _, stick = device.partition(".")
        assert num_requests == 1
        assert all(isinstance(value, str) for value in config.values())
        unknown = set(config) - _KEYS[kind]
        if unknown:
            raise RuntimeError(f"[NOT_FOUND] Unsupported property {sorted(unknown)}")
        if kind == "MYRIAD":
            assert not stick or stick in _machine()["sticks"]
            if _machine().get("busy"):
                raise RuntimeError("Can not init Myriad device: NC_ERROR")
            assert all(info.precision != "I64" for info in network.input_info.values())
            for node in network.nodes:
                if node.op in _machine().get("unsupported", ()):
                    raise RuntimeError(f"Failed to compile layer {node.name}: unsupported layer")
        with (_HERE / "loads.jsonl").open("a") as log:
            print(json.dumps({"device": device, "config": dict(config)}), file=log)
        return ExecutableNetwork(network, config)
