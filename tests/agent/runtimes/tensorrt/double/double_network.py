"""Loggers, networks and the ONNX parser of TensorRT's double."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import double_fusion
from double_kinds import ELEMENTS, Bound, DataType, ErrorCode, Misuse, check, enumeration


class ILogger(Bound):
    """A logger to subclass; the subclass must call `__init__`."""

    Severity = enumeration("Severity", INTERNAL_ERROR=0, ERROR=1, WARNING=2, INFO=3, VERBOSE=4)

    def __init__(self) -> None:
        self._ready = True

    def log(self, severity: Any, msg: str) -> None:
        raise Misuse("ILogger.log is not overridden")


class IProfiler(Bound):
    """A profiler to subclass; the subclass must call `__init__`."""

    def __init__(self) -> None:
        self._ready = True

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise Misuse("IProfiler.report_layer_time is not overridden")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # a Python subclass has a dictionary of its own


def checked_logger(logger: Any) -> ILogger:
    if not isinstance(logger, ILogger):
        raise TypeError("incompatible constructor arguments: an ILogger is needed")
    check(getattr(logger, "_ready", False), "ILogger.__init__ was not called")
    return logger


class ITensor(Bound):
    def __init__(self, name: str, dtype: Any, shape: tuple[int, ...], *, decides: bool) -> None:
        self._name, self._dtype, self._shape, self._decides = name, dtype, shape, decides

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def is_shape_tensor(self) -> bool:
        return self._decides


class ILayer(Bound):
    def __init__(self, node: Any, outputs: list[ITensor]) -> None:
        self._node, self._outputs = node, outputs

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_output(self, index: int) -> ITensor:
        return self._outputs[index]


class INetworkDefinition(Bound):
    def __init__(self, builder: Any, strong: bool) -> None:
        self._builder, self._strong = builder, strong
        self._inputs: list[ITensor] = []
        self._outputs: list[ITensor] = []
        self._layers: list[ILayer] = []
        self._constants: set[str] = set()

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def get_input(self, index: int) -> ITensor:
        return self._inputs[index]

    def get_layer(self, index: int) -> ILayer:
        return self._layers[index]


class ParserError(Bound):
    def __init__(self, code: str, desc: str, node: int) -> None:
        self._code, self._desc, self._node = getattr(ErrorCode, code), desc, node

    def code(self) -> Any:
        return self._code

    def desc(self) -> str:
        return self._desc

    def node(self) -> int:
        return self._node


class OnnxParser(Bound):
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network, self._log = network, checked_logger(logger)
        self._errors: list[ParserError] = []
        self._parsed = False

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse(self, model: bytes, path: str | None = None) -> bool:
        import onnx
        from google.protobuf.message import DecodeError

        check(not self._parsed, "a network takes one model")
        self._parsed = True
        try:
            proto = onnx.load_model_from_string(bytes(memoryview(model)))
        except DecodeError:
            return self._refuse("MODEL_DESERIALIZE_FAILED", "Failed to parse ONNX model", -1)
        if not self._whole(proto, path):
            return False
        graph = proto.graph
        if not graph.node:
            return self._refuse("MODEL_DESERIALIZE_FAILED", "the graph has no node", -1)
        for index, node in enumerate(graph.node):
            if node.op_type not in double_fusion.SUPPORTED:
                text = f"No importer registered for op: {node.op_type}. Plugin not found"
                return self._refuse("UNSUPPORTED_NODE", text, index)
        try:
            graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True).graph
        except onnx.shape_inference.InferenceError as error:
            return self._refuse("INVALID_GRAPH", str(error), 0)
        return self._read(graph)

    def _whole(self, proto: Any, path: str | None) -> bool:
        """Read the weights that lie in other files, in the folder of `path`."""
        far = [entry for entry in proto.graph.initializer if entry.data_location == 1]
        check(path is not None or not far, "the parser would look in the working folder")
        for entry in far:
            place = {pair.key: pair.value for pair in entry.external_data}
            file = Path(path or "").parent / place["location"]
            if not file.is_file():
                text = f"Failed to open file: {file}"
                return self._refuse("MODEL_DESERIALIZE_FAILED", text, -1)
            begin, size_bytes = int(place.get("offset", 0)), int(place["length"])
            entry.raw_data = file.read_bytes()[begin : begin + size_bytes]
            if len(entry.raw_data) != size_bytes:
                text = f"{file} ends before the weights of {entry.name}"
                return self._refuse("INVALID_GRAPH", text, -1)
            entry.data_location = 0
            del entry.external_data[:]
        return True

    def _read(self, graph: Any) -> bool:
        network = self._network
        made = {entry.name for entry in graph.initializer}
        network._constants = set(made)
        kinds: dict[str, Any] = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            if kind.elem_type not in ELEMENTS:
                return self._refuse("UNSUPPORTED_NODE", f"type of {value.name}", 0)
            shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
            decides = any(
                value.name in node.input[1:2] for node in graph.node if node.op_type == "Reshape"
            )
            element = getattr(DataType, ELEMENTS[kind.elem_type])
            kinds[value.name] = ITensor(value.name, element, shape, decides=decides)
        network._inputs = [kinds[v.name] for v in graph.input if v.name not in made]
        network._outputs = [kinds[value.name] for value in graph.output]
        for node in graph.node:
            if network._constants.issuperset(node.input):
                network._constants.update(node.output)
            outputs = [kinds[name] for name in node.output if name in kinds]
            network._layers.append(ILayer(node, outputs))
        return True

    def _refuse(self, code: str, text: str, node: int) -> bool:
        self._errors.append(ParserError(code, text, node))
        self._log.log(ILogger.Severity.ERROR, f"ModelImporter: {text}")
        return False
