"""How TensorRT's double fuses a network into the layers of an engine.

It fuses convolutions with the nodes that follow them, and regions such as a softmax. Names, types,
metadata and tensors of layers are written as the engine inspector of that version writes them.
"""

from __future__ import annotations

from typing import Any, Sequence

_POINTWISE = ("Relu", "Sigmoid", "Add", "Mul", "Clip", "Tanh")
_REGION = ("Softmax", "MatMul", "LayerNormalization", "Erf")
_DROPPED = ("Identity", "Dropout")
_SINGLE = {
    *("BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "Gemm", "Concat"),
    *("Reshape", "Flatten", "Transpose", "Cast", "Expand", "Gather"),
    *("QuantizeLinear", "DequantizeLinear"),
}
_ON_DLA = ("Conv", "BatchNormalization", "Relu", "Add", "MaxPool")
_AFTER_CONV = ("BatchNormalization", "Add", "Relu", "QuantizeLinear")
SUPPORTED = {"Conv", *_POINTWISE, *_REGION, *_DROPPED, *_SINGLE}
"""Ops that the double's parser imports."""


def fused(
    nodes: Sequence[Any],
    shapes: dict[str, tuple[int, ...]],
    constants: set[str],
    inputs: Sequence[str],
    *,
    version: tuple[int, ...],
    on_dla: bool,
    fallback: bool,
) -> tuple[list[dict[str, Any]], dict[str, list[str]]] | None:
    """Return the layers in order of execution, each with its time in "us", and where they run.

    The result is None if a layer cannot run on the DLA and may not fall back to the GPU.
    """
    fusion = _Fusion(nodes, shapes, constants, inputs, version)
    groups = fusion.groups()
    layers: list[dict[str, Any]] = []
    placed: dict[str, list[str]] = {"Dla": [], "Gpu": []}
    fit = [on_dla and all(node.op_type in _ON_DLA for node in group) for group in groups]
    if on_dla and not fallback and not all(fit):
        return None
    begin = 0
    while begin < len(groups):
        end = begin + 1
        while end < len(groups) and fit[end] and fit[begin]:
            end += 1
        if fit[begin]:
            layers += fusion.dla([node for group in groups[begin:end] for node in group])
            placed["Dla"].append(layers[-2]["Name"])
        else:
            layers += fusion.kernels(groups[begin])
            kind = "MYELIN: " if layers[-1]["LayerType"] in ("Myelin", "kgen") else ""
            placed["Gpu"].append(kind + layers[-1]["Name"])
        begin = end
    return _reformatted(layers), placed


class _Fusion:
    def __init__(
        self,
        nodes: Sequence[Any],
        shapes: dict[str, tuple[int, ...]],
        constants: set[str],
        inputs: Sequence[str],
        version: tuple[int, ...],
    ) -> None:
        self._nodes = [node for node in nodes if not constants.issuperset(node.input)]
        self._shapes, self._constants, self._version = shapes, constants, version
        self._there = {*constants, *inputs}

    def groups(self) -> list[list[Any]]:
        """Return the nodes of each kernel; nodes that cost nothing are in no kernel."""
        done: set[int] = set()
        found: list[list[Any]] = []
        for index, node in enumerate(self._nodes):
            if index in done:
                continue
            group = [index] if node.op_type in _DROPPED else self._grown(index)
            done.update(group)
            self._there.update(name for i in group for name in self._nodes[i].output)
            if node.op_type not in _DROPPED:
                found.append([self._nodes[i] for i in group])
        return found

    def _grown(self, first: int) -> list[int]:
        group = [first]
        op = self._nodes[first].op_type
        after: tuple[str, ...] = ()
        if op == "Conv":
            after = _AFTER_CONV
        elif op == "DequantizeLinear":
            after = ("Conv", *_AFTER_CONV)
        elif op in _REGION:
            after = _REGION
        while True:
            last = self._nodes[group[-1]].output[0]
            readers = [i for i, node in enumerate(self._nodes) if last in node.input]
            if len(readers) != 1 or self._nodes[readers[0]].op_type not in after:
                return group
            there = self._there | {name for i in group for name in self._nodes[i].output}
            if not there.issuperset(self._nodes[readers[0]].input):
                return group  # another tensor that the reader needs does not exist yet
            group.append(readers[0])

    def kernels(self, group: list[Any]) -> list[dict[str, Any]]:
        """Return the layers of one group on the GPU."""
        names = [_name(node) for node in group]
        ops = [node.op_type for node in group]
        metadata = "\x1f".join(f"[ONNX Layer: {name}]" for name in names)
        if ops[0] in _REGION:
            if self._version < (10,):
                whole = f"{{ForeignNode[{names[0]}...{names[-1]}]}}"
                return [self._layer(whole, "Myelin", group)]
            # Myelin cuts a region in its own way, with tensors of its own between the parts.
            first = self._layer("__myl_Max_myl0_0", "kgen", group, metadata)
            last = self._layer("__myl_Div_myl0_1", "kgen", group, metadata)
            first["Outputs"] = last["Inputs"] = [{"Name": "__mye17"}]
            return [first, last]
        if ops[0] in _POINTWISE:
            return [self._layer(f"PWN({names[0]})", "PointWiseV2", group, metadata)]
        if "Conv" in ops:
            # Neither the name nor the metadata name the quantisation of activations.
            kept = [name for name, op in zip(names, ops) if "Linear" not in op]
            metadata = "\x1e".join(f"[ONNX Layer: {name}]" for name in kept)
            return [self._layer(" + ".join(kept), "CaskConvolution", group, metadata)]
        kind = "Reformat" if ops[0] == "QuantizeLinear" else ops[0]
        return [self._layer(names[0], kind, group, metadata)]

    def dla(self, group: list[Any]) -> list[dict[str, Any]]:
        """Return the rows of one group on the DLA: copying in, the work, and copying out."""
        made = {name for node in group for name in node.output}
        reads = next(n for node in group for n in node.input if n not in made | self._constants)
        whole = f"{{ForeignNode[{_name(group[0])}...{_name(group[-1])}]}}"
        makes = str(group[-1].output[0])
        rows = [f"{reads} to nvm", whole, f"{makes} from nvm"]
        layers = [self._layer(row, "DLA" if row == whole else "", group) for row in rows]
        tensors = [reads, f"{reads} in nvm", f"{makes} in nvm", makes]
        for layer, source, target in zip(layers, tensors, tensors[1:]):
            layer["Inputs"], layer["Outputs"] = [{"Name": source}], [{"Name": target}]
        return layers

    def _layer(self, name: str, kind: str, group: list[Any], metadata: str = "") -> dict[str, Any]:
        inner = {tensor for node in group for tensor in node.output}
        reads = [t for node in group for t in node.input if t and t not in inner | self._constants]
        shape = self._shapes[group[-1].output[0]]
        count = 1
        for size in shape:
            count *= size
        entry: dict[str, Any] = {
            "Name": name,
            "LayerType": kind,
            "Inputs": [{"Name": tensor} for tensor in dict.fromkeys(reads)],
            "Outputs": [{"Name": group[-1].output[0], "Dimensions": list(shape)}],
            "TacticName": "double",
            "us": 5.0 + count / 1e4,
        }
        if self._version >= (8, 6):
            entry["Metadata"] = metadata
        return entry


def _name(node: Any) -> str:
    return str(node.name or f"node_of_{node.output[0]}")


def _reformatted(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Insert a copy into another layout before the first convolution."""
    for index, layer in enumerate(layers):
        if layer["LayerType"] == "CaskConvolution":
            copied = f"Reformatted Input Tensor 0 to {layer['Name']}"
            name = f"Reformatting CopyNode for Input Tensor 0 to {layer['Name']}"
            copy = {**layer, "Name": name, "LayerType": "Reformat", "Metadata": "", "us": 3.0}
            copy["Inputs"], copy["Outputs"] = layer["Inputs"][:1], [{"Name": copied}]
            layer["Inputs"] = [{"Name": copied}, *layer["Inputs"][1:]]
            return [*layers[:index], copy, *layers[index:]]
    return layers
