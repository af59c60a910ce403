"""A strict double of onnxruntime for providers that no test host has.

A worker imports it as `onnxruntime`. It has the calls that the runtime makes and refuses others,
and it refuses options that the real providers do not have. The file `machine.json` beside it says
what the board has: {"providers": those built in, "broken": those that do not load, "raising": those
that raise an error, "backendless": those that load and take no node, "left": ops that stay on the
CPU, "device_times": whether traces hold times of the GPU, "plugins": library path -> provider}. It
writes what each session was given to `sessions.jsonl`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np

__version__ = "1.31.1"
_HERE = Path(__file__).parent
_CPU = "CPUExecutionProvider"
_PLACES = "session.record_ep_graph_assignment_info"
_NO_FALLBACK = "session.disable_cpu_ep_fallback"
_OPTIONS = {
    _CPU: set(),
    "CUDAExecutionProvider": {"device_id", "use_tf32"},
    "TensorrtExecutionProvider": {
        "device_id",
        "trt_engine_cache_enable",
        "trt_engine_cache_path",
        "trt_timing_cache_enable",
        "trt_timing_cache_path",
        "trt_fp16_enable",
        "trt_int8_enable",
    },
    "QNNExecutionProvider": {"backend_path", "htp_performance_mode"},
    "XnnpackExecutionProvider": {"intra_op_num_threads"},
}
_COMPILING = ("TensorrtExecutionProvider", "QNNExecutionProvider")
_registered: dict[str, str] = {}


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_HERE / "machine.json").read_text())
    return found


def get_available_providers() -> list[str]:
    return [*_machine()["providers"], _CPU]


def register_execution_provider_library(name: str, path: str) -> None:
    if name in _registered:
        raise RuntimeError(f"{name} is registered already")
    if path not in _machine()["plugins"]:
        raise RuntimeError(f"cannot load {path}")
    _registered[name] = path


class _Device:
    def __init__(self, ep_name: str) -> None:
        self.ep_name = ep_name


def get_ep_devices() -> list[_Device]:
    plugins = _machine().get("plugins", {})
    return [_Device(_CPU), *(_Device(plugins[path]) for path in _registered.values())]


class ExecutionMode:
    ORT_SEQUENTIAL = 0


class GraphOptimizationLevel:
    ORT_ENABLE_ALL = 99


class SessionOptions:
    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.execution_mode: int | None = None
        self.graph_optimization_level: int | None = None
        self.log_severity_level = 2
        self.enable_profiling = False
        self.profile_file_prefix = ""
        self.optimized_model_filepath = ""
        self.entries: dict[str, str] = {}
        self.devices: list[tuple[str, dict[str, str]]] = []

    def add_session_config_entry(self, name: str, value: str) -> None:
        assert name in (_PLACES, _NO_FALLBACK)
        self.entries[name] = value

    def add_provider_for_devices(self, devices: Sequence[_Device], options: Any) -> None:
        assert len(devices) == 1
        self.devices.append((devices[0].ep_name, dict(options)))


class _Node:
    def __init__(self, name: str, op_type: str) -> None:
        self.name, self.op_type, self.domain = name, op_type, ""


class _Piece:
    def __init__(self, ep_name: str, nodes: list[_Node]) -> None:
        self.ep_name = ep_name
        self._nodes = nodes

    def get_nodes(self) -> list[_Node]:
        return self._nodes


class _Value:
    type = "tensor(float)"

    def __init__(self, name: str) -> None:
        self.name = name
        self.shape = [1, 8, 16, 16]


class OrtValue:
    def __init__(self, array: Any, memory: str, device: int) -> None:
        self.array, self.place = array, (memory, device)

    @staticmethod
    def ortvalue_from_numpy(array: Any, memory: str, device: int) -> OrtValue:
        assert isinstance(array, np.ndarray)
        return OrtValue(array, memory, device)


class _Binding:
    def __init__(self) -> None:
        self.inputs: dict[str, OrtValue] = {}
        self.outputs: dict[str, tuple[str, int]] = {}
        self.waiting = False

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self.inputs[name] = value

    def bind_output(self, name: str, memory: str, device: int) -> None:
        self.outputs[name] = (memory, device)

    def synchronize_outputs(self) -> None:
        assert self.waiting
        self.waiting = False


class InferenceSession:
    def __init__(
        self,
        model: str | bytes,
        options: SessionOptions,
        providers: Sequence[Any] | None = None,
        enable_fallback: int = 1,
    ) -> None:
        from latfarm_agent.runtimes.onnx.wire import read_nodes

        machine = _machine()
        self._options = options
        self._machine = machine
        self._nodes = [_Node("", "Det")]
        if isinstance(model, str):
            self._nodes = [_Node(node.name, node.op) for node in read_nodes(Path(model))]
        asked = [(p, {}) if isinstance(p, str) else p for p in providers or ()]
        for name, given in [*asked, *options.devices]:
            assert all(isinstance(value, str) for value in given.values())
            unknown = set(given) - _OPTIONS[name]
            if unknown:
                raise ValueError(f"{name} has no option {sorted(unknown)}")
            if name in machine.get("raising", ()):
                raise RuntimeError(f"{name}: libcudnn.so.9: cannot open shared object file")
        if asked and enable_fallback:
            raise AssertionError("it would silently go on without the provider")
        explicit = [name for name, _ in [*options.devices, *asked]]
        if _NO_FALLBACK in options.entries and _CPU in explicit:
            raise ValueError("conflicting session configuration")
        self._providers = [name for name in explicit if name not in machine.get("broken", ())]
        if _CPU not in self._providers:
            self._providers.append(_CPU)
        self._place()
        if options.optimized_model_filepath:
            if any(p.ep_name in _COMPILING and p.get_nodes() for p in self._pieces):
                raise ValueError("Unable to serialize model as it contains compiled nodes.")
            Path(options.optimized_model_filepath).write_bytes(Path(str(model)).read_bytes())
        self._binding: _Binding | None = None
        self._runs = 0
        with (_HERE / "sessions.jsonl").open("a") as log:
            told = {"asked": asked, "devices": options.devices, "entries": options.entries}
            print(json.dumps(dict(told, probe=not isinstance(model, str))), file=log)

    def _place(self) -> None:
        left = self._machine.get("left", ())
        first = self._providers[0]
        if first in self._machine.get("backendless", ()):
            first = _CPU
        if first not in _COMPILING:
            self._pieces = [
                _Piece(_CPU if node.op_type in left else first, [node]) for node in self._nodes
            ]
        else:
            self._pieces = []
            mine: list[_Node] = []
            rest: list[_Piece] = []
            for node in [*self._nodes, None]:
                if node is not None and node.op_type not in [*left, "Det"]:
                    mine.append(node)
                    continue
                if mine:
                    self._pieces.append(_Piece(first, mine))
                if node is not None:
                    rest.append(_Piece(_CPU, [node]))
                mine = []
            self._pieces += rest
        on_cpu = any(piece.ep_name == _CPU for piece in self._pieces)
        if _NO_FALLBACK in self._options.entries and on_cpu:
            raise RuntimeError(
                "This session contains graph nodes that are assigned to the default"
                " CPU EP, but fallback to the CPU EP has been explicitly disabled"
                " by the user."
            )

    def get_providers(self) -> list[str]:
        return self._providers

    def get_provider_graph_assignment_info(self) -> list[_Piece]:
        assert self._options.entries[_PLACES] == "1"
        return self._pieces

    def get_inputs(self) -> list[_Value]:
        return [_Value("x")]

    def get_outputs(self) -> list[_Value]:
        return [_Value("y")]

    def io_binding(self) -> _Binding:
        self._binding = _Binding()
        return self._binding

    def run_with_iobinding(self, binding: _Binding) -> None:
        assert binding is self._binding
        places = {value.place for value in binding.inputs.values()} | set(binding.outputs.values())
        on_gpu = self._providers[0] in ("CUDAExecutionProvider", "TensorrtExecutionProvider")
        assert {memory for memory, _ in places} == {"cuda" if on_gpu else "cpu"}
        assert not binding.waiting, "the run before was never waited for"
        binding.waiting = on_gpu
        sum(range(2000))

    def run(self, names: None, feeds: Mapping[str, Any]) -> list[Any]:
        assert self._options.enable_profiling
        assert set(feeds) == {"x"}
        self._runs += 1
        return [feeds["x"]]

    def end_profiling(self) -> str:
        events: list[dict[str, Any]] = [{"cat": "Session", "name": "model_run", "dur": 9}]
        number = 6
        compiled = sorted(self._pieces, key=lambda piece: piece.ep_name)
        for _ in range(self._runs):
            count = 0
            for index, piece in enumerate(compiled):
                node = piece.get_nodes()[0]
                name, op = node.name, node.op_type
                if piece.ep_name in _COMPILING:
                    op = f"{piece.ep_name}_8380939617461647715_{number + count}"
                    name = f"{piece.ep_name}_{op}_{count}"
                    count += 1
                args = {"op_name": op, "provider": piece.ep_name, "node_index": str(index)}
                event = {"cat": "Node", "name": f"{name}_kernel_time", "dur": 3, "args": args}
                events.append(event)
                if self._machine.get("device_times") and piece.ep_name.startswith("CUDA"):
                    kernel = {"cat": "Kernel", "name": "sgemm", "dur": 20, "args": {"op_name": op}}
                    events += [kernel, dict(kernel, name="add", dur=5)]
        path = Path(self._options.profile_file_prefix + "_trace.json")
        path.write_text(json.dumps(events))
        return str(path)
