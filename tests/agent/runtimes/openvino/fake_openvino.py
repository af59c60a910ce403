"""A strict double of a current openvino on a board with GPUs and an NPU.

It has the calls that the runtime makes and the properties that the plugins have, and refuses all
others. The file `machine.json` beside it says how it behaves: {"strays": the device that really
runs the model, "silent": devices that do not report their graph}. It writes how each model was
compiled to `compiled.jsonl`.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, Mapping

import numpy as np

__version__ = "2026.4.1-21234-abcdef"
_HERE = Path(__file__).parent
_COMMON = {"PERF_COUNT", "INFERENCE_PRECISION_HINT", "CACHE_DIR"}
_KNOWN = {
    "CPU": {"INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING", "NUM_STREAMS"},
    "GPU": {"NUM_STREAMS", "GPU_QUEUE_THROTTLE"},
    "NPU": {"PERFORMANCE_HINT"},
}
_PRECISIONS = {"CPU": ("f32", "bf16"), "GPU": ("f32", "f16"), "NPU": ("f16",)}


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_HERE / "machine.json").read_text())
    return found


class Tensor:
    def __init__(self, array: Any) -> None:
        assert isinstance(array, np.ndarray)
        self.array = array


class _Shape(tuple):  # type: ignore[type-arg]
    is_dynamic = False


class _Type:
    def to_dtype(self) -> Any:
        return np.dtype("f4")


class _Port:
    any_name = "x"
    shape = partial_shape = _Shape((1, 8, 16, 16))
    element_type = _Type()


class _Value:
    def __init__(self, node: _Op) -> None:
        self._node = node

    def get_node(self) -> _Op:
        return self._node


class _Op:
    def __init__(self, name: str, kind: str, layers: str, sources: list[_Op]) -> None:
        self._name, self._kind, self._layers, self._sources = name, kind, layers, sources

    def get_friendly_name(self) -> str:
        return self._name

    def get_type_name(self) -> str:
        return "ExecutionNode"

    def get_rt_info(self) -> Mapping[str, str]:
        return {
            "layerType": self._kind,
            "primitiveType": "ocl",
            "originalLayersNames": self._layers,
        }

    def input_values(self) -> list[_Value]:
        return [_Value(source) for source in self._sources]


class _Graph:
    """The graph that a device runs: each convolution and what follows it are one kernel."""

    def __init__(self, nodes: list[Any]) -> None:
        self.ops = [_Op("x", "Parameter", "x", [])]
        group: list[Any] = []
        for node in [*nodes, None]:
            if node is None or (node.op == "Conv" and group):
                layers = ",".join(n.name for n in group)
                self.ops.append(_Op(group[-1].name, group[0].op, layers, [self.ops[-1]]))
                group = []
            group.append(node)

    def get_ordered_ops(self) -> list[_Op]:
        return self.ops


class _Entry:
    status = "Status.EXECUTED"
    real_time = timedelta(microseconds=80)

    def __init__(self, name: str) -> None:
        self.node_name = name


class _Request:
    def __init__(self, model: _Compiled) -> None:
        self._model = model
        self._filled = False

    def set_input_tensor(self, index: int, tensor: Tensor) -> None:
        assert index == 0
        assert tensor.array.shape == (1, 8, 16, 16)
        self._filled = True

    def infer(self) -> None:
        assert self._filled
        sum(range(2000))

    @property
    def profiling_info(self) -> list[_Entry]:
        assert self._model.options["PERF_COUNT"]
        return [_Entry(op.get_friendly_name()) for op in self._model.graph.ops[1:]]


class _Compiled:
    def __init__(self, nodes: list[Any], device: str, options: Mapping[str, Any]) -> None:
        self.graph, self.device, self.options = _Graph(nodes), device, options
        self.inputs = [_Port()]

    def create_infer_request(self) -> _Request:
        return _Request(self)

    def get_property(self, name: str) -> list[str]:
        assert name == "EXECUTION_DEVICES"
        return [_machine().get("strays", self.device)]

    def get_runtime_model(self) -> _Graph:
        if self.device in _machine().get("silent", ()):
            raise RuntimeError("Not Implemented")
        return self.graph


class _Model:
    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self.inputs = [_Port()]


class Core:
    available_devices = ("CPU", "GPU.0", "GPU.1", "NPU", "GNA")

    def get_property(self, device: str, name: str) -> Any:
        if name == "SUPPORTED_PROPERTIES":
            return ["FULL_DEVICE_NAME", *(["NPU_DRIVER_VERSION"] if device == "NPU" else [])]
        assert name == "FULL_DEVICE_NAME" or (device, name) == ("NPU", "NPU_DRIVER_VERSION")
        return f"{name} of {device}"

    def read_model(self, path: str) -> _Model:
        from latfarm_agent.runtimes.onnx.wire import read_nodes

        return _Model(read_nodes(Path(path)))

    def compile_model(self, model: _Model, device: str, options: Mapping[str, Any]) -> _Compiled:
        kind = device.split(".")[0]
        unknown = set(options) - _COMMON - _KNOWN[kind]
        if unknown:
            raise RuntimeError(f"NotFound: Unsupported property {sorted(unknown)} by {kind}")
        assert options["INFERENCE_PRECISION_HINT"] in _PRECISIONS[kind]
        with (_HERE / "compiled.jsonl").open("a") as log:
            print(json.dumps({"device": device, "options": dict(options)}), file=log)
        return _Compiled(model.nodes, device, options)
