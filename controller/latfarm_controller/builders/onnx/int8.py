"""Builds int8 ONNX models: integers between QuantizeLinear and DequantizeLinear nodes (QDQ).

The models have the form that onnxruntime fuses on every CPU for which it has integer kernels. This
form was found by inspecting models that onnxruntime had optimised. Activations are uint8 with a
zero point; weights are int8, symmetric, with one scale per output channel; biases are int32. (On
x86, onnxruntime rewrites int8 activations to uint8, but not those with several readers or constant
operands, which would stay float.) Weights use all 8 bits. Processors without VNNI instructions may
then saturate if two neighbouring products are both near the maximum, but this does not happen with
noise.

Batch norms are folded into the layer before them. Relu and Clip follow the node that produces their
input without a conversion in between, so that both become one kernel. Ops without an integer kernel
compute with floats, between DequantizeLinear and QuantizeLinear; so do Add and Mul between two such
ops (in GELU, layer norm and hard swish). The inputs and outputs of the model are float32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from latfarm_predictors.frontends.onnx_quantization import is_quantised
from latfarm_predictors.graph.batch_norm import fold_batch_norms, fold_values
from latfarm_predictors.graph.graph import Graph, Node
from numpy.typing import NDArray

from latfarm_controller.builders.noise import Array
from latfarm_controller.builders.onnx.file import OnnxDraft
from latfarm_controller.builders.onnx.int8_plan import (
    CLIPPING,
    LEVELS,
    SAME_SCALE,
    WEIGHTED,
    Int8Plan,
    Ranges,
    UnsignedScale,
    scale_for,
)

LARGEST_WEIGHT = 127
"""The largest integer of a weight; the smallest is -127."""
_LARGEST_BIAS = 2.0**30  # the integers of biases are clipped to +- this value


def quantised(graph: Graph, draft: OnnxDraft, ranges: Ranges) -> OnnxDraft:
    """Return the int8 form of the float32 draft of a graph.

    A graph that has QuantizeLinear or DequantizeLinear nodes is already quantised; its draft is
    returned unchanged.

    Args:
        graph: the graph from which the draft was made.
        draft: the float32 model.
        ranges: the smallest and largest value of activations by name; ranges that are not given are
            estimated.
    """
    if is_quantised(graph):
        return draft
    return _Quantiser(graph, draft, ranges).run()


class _Quantiser:
    def __init__(self, graph: Graph, draft: OnnxDraft, ranges: Ranges) -> None:
        self.graph, folds = fold_batch_norms(graph)
        self.made = draft.successor()
        self.weights = draft.weights
        needed = {t for f in folds.folds for n in (f.linear, f.batch_norm) for t in n.inputs[1:]}
        given = {t: self.weights.array(t) for t in needed if t in graph.weights}
        self.folded = fold_values(given, folds)
        self.arrays = dict(self.folded)
        self.plan = Int8Plan(self.graph, self.array, ranges)
        self.forms: dict[str, str] = {}  # activation -> its dequantised form
        self.parts: dict[tuple[str, object], str] = {}  # (weight, axis or scale) -> its form
        self.zeros: dict[int, str] = {}

    def run(self) -> OnnxDraft:
        for tensor in self.graph.inputs:
            if self.plan.is_activation(tensor) and self.plan.is_read(tensor):
                self._quantise(tensor, tensor, self.made.fresh(f"{tensor}_near"))
        for node in self.graph.nodes:
            self._convert(node)
        for tensor in self.graph.outputs:
            if tensor in self.graph.weights:
                self._constant(tensor)
        return self.made

    def array(self, tensor: str) -> Array:
        """Return the values of a weight, after batch norms were folded into it if there are any."""
        if tensor not in self.arrays:
            self.arrays[tensor] = self.weights.array(tensor)
        return self.arrays[tensor]

    def _convert(self, node: Node) -> None:
        if node.name in self.plan.integer and node.op in WEIGHTED:
            operands = self._weighted(node)
        else:
            operands = [self._operand(node, tensor) for tensor in node.inputs]
        results = [
            self.made.fresh(f"{tensor}_real") if self.plan.is_made(node, tensor) else tensor
            for tensor in node.outputs
        ]
        self.made.nodes.append(replace(node, inputs=tuple(operands), outputs=tuple(results)))
        for tensor, result in zip(node.outputs, results, strict=True):
            if result != tensor:
                self._quantise(tensor, result, tensor)
            elif self.plan.is_activation(tensor) and self.plan.is_read(tensor):
                self._quantise(tensor, tensor, self.made.fresh(f"{tensor}_near"))

    def _operand(self, node: Node, tensor: str) -> str:
        """Return the tensor that a node reads; integer nodes read the dequantised form."""
        is_integer = node.name in self.plan.integer
        if self.plan.is_activation(tensor):
            return self.forms.get(tensor, tensor) if is_integer or self.plan.wrapped else tensor
        if not self.plan.is_weight(tensor):
            return tensor
        is_operand = is_integer and node.op not in CLIPPING and tensor not in node.inputs[2:]
        if is_operand or (is_integer and node.op == "Concat"):
            return self._asymmetric(tensor, node)
        return self._constant(tensor)

    def _quantise(self, tensor: str, result: str, form: str) -> None:
        """Quantise the tensor `result`, and dequantise the integers into the tensor `form`."""
        self.forms[tensor] = form
        parts = self._scale_parts(tensor, self.plan.scales[tensor])
        whole = self.made.node("QuantizeLinear", (result, *parts), self.made.fresh(f"{tensor}_q"))
        self.made.node("DequantizeLinear", (whole, *parts), form)

    def _scale_parts(self, tensor: str, scale: UnsignedScale) -> tuple[str, str]:
        name = self._add(f"{tensor}_scale", np.array(scale.value, np.float32))
        if scale.zero not in self.zeros:
            self.zeros[scale.zero] = self._add(f"zero_{scale.zero}", np.array(scale.zero, np.uint8))
        return name, self.zeros[scale.zero]

    def _add(self, stem: str, data: Array) -> str:
        name = self.made.fresh(stem)
        self.made.constants[name] = data
        return name

    def _constant(self, tensor: str) -> str:
        """Add a weight to the model without quantising it."""
        self.made.constants.setdefault(tensor, self.folded.get(tensor))
        return tensor

    def _asymmetric(self, tensor: str, node: Node) -> str:
        """Return the dequantised form of a constant that is stored like an activation, as uint8."""
        data = self.array(tensor)
        if data.dtype != np.float32:
            return self._constant(tensor)
        scale = scale_for(float(data.min()), float(data.max()))
        if node.op in SAME_SCALE:
            scale = self.plan.scales[node.outputs[0]]
        key = (tensor, scale)
        if key not in self.parts:
            whole = np.clip(np.rint(data / np.float32(scale.value)) + scale.zero, 0, LEVELS)
            stored = self._add(f"{tensor}_q", whole.astype(np.uint8))
            parts = self._scale_parts(tensor, scale)
            self.parts[key] = self.made.node(
                "DequantizeLinear", (stored, *parts), self.made.fresh(f"{tensor}_near")
            )
        return self.parts[key]

    def _weighted(self, node: Node) -> list[str]:
        """Return the operands of a node with weights: activation, int8 weight and int32 bias."""
        source, tensor = node.inputs[:2]
        operands = [self._operand(node, source)]
        if not self.plan.is_weight(tensor):
            return [*operands, *(self._operand(node, t) for t in node.inputs[1:])]
        axis = _output_axis(node, self.array(tensor).ndim)
        whole, scales = symmetric(self.array(tensor), axis)
        key = (tensor, axis)
        if key not in self.parts:
            self.parts[key] = self._scaled(tensor, whole, scales, axis)
        operands.append(self.parts[key])
        if len(node.inputs) > 2 and node.inputs[2]:
            data = self.array(source) if self.plan.is_weight(source) else None
            step = (
                scale_for(float(data.min()), float(data.max()))
                if data is not None
                else self.plan.scales[source]
            ).value
            products = (scales.astype(np.float64) * step).astype(np.float32)
            bias = np.rint(self.array(node.inputs[2]).reshape(-1) / products.astype(np.float64))
            integers = np.clip(bias, -_LARGEST_BIAS, _LARGEST_BIAS).astype(np.int32)
            operands.append(self._scaled(node.inputs[2], integers, products, 0))
        return operands

    def _scaled(
        self, tensor: str, whole: Array, scales: NDArray[np.float32], axis: int | None
    ) -> str:
        """Return the dequantised form of constant integers whose zero point is 0."""
        parts = [
            self._add(f"{tensor}_q", whole),
            self._add(f"{tensor}_scale", scales if axis is not None else scales.reshape(())),
        ]
        if whole.dtype == np.int8:  # without a zero point, QGemm is not fused
            zeros = np.zeros(scales.shape if axis is not None else (), np.int8)
            parts.append(self._add(f"{tensor}_zero", zeros))
        name = self.made.fresh(f"{tensor}_near")
        attrs = {} if axis is None else {"axis": axis}
        return self.made.node("DequantizeLinear", tuple(parts), name, attrs)


def _output_axis(node: Node, rank: int) -> int | None:
    """Return the axis of a weight that has one scale per index; None if there is one scale."""
    if node.op == "Conv":
        return 0
    if node.op == "ConvTranspose":
        return 1 if node.attrs.get("group", 1) == 1 else None
    if node.op == "Gemm":
        return 0 if node.attrs.get("transB", 0) else 1
    return 1 if rank == 2 else None


def symmetric(data: Array, axis: int | None) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise weights to -127..127, with one scale, or with one scale per index of `axis`."""
    others = tuple(a for a in range(data.ndim) if a != axis) if axis is not None else None
    peaks = np.maximum(np.abs(data).max(axis=others, keepdims=True), np.float32(1e-9))
    scales = (peaks / np.float32(LARGEST_WEIGHT)).astype(np.float32)
    scaled = data / scales
    np.rint(scaled, out=scaled)
    return scaled.astype(np.int8), scales.reshape(-1)
