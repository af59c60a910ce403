"""Full-integer int8 of a float TFLite model, with scales worked out and not measured.

There is no data to calibrate with, nor any need: latency does not depend on the scales as long as
values neither saturate nor vanish. So each activation's mean and deviation are estimated from those
of its operands, as if values were normal and independent, and its scale spans four deviations.
Weights are symmetric, one scale per output channel (per tensor for fully connected layers); biases
are int32. Operators that have no int8 kernel stay float between DEQUANTIZE and QUANTIZE, as
converters do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from latfarm_controller.builders.tflite_file import Array, Model, Operator, Tensor
from latfarm_controller.builders.tflite_moments import Moments, moments_of, moments_of_data

# Inputs are filled by boards with any int8: this spans about what a normalised image does.
INPUT = Moments(0.0, 1.5, -3.0, 3.0)

WEIGHTED = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})
# The kernel demands one scale for its operands and results.
SAME_SCALE = frozenset(
    {
        *("MAX_POOL_2D", "AVERAGE_POOL_2D", "RESHAPE", "TRANSPOSE", "PAD", "PADV2", "MIRROR_PAD"),
        *("SLICE", "STRIDED_SLICE", "SPLIT", "SPLIT_V", "CONCATENATION", "MAXIMUM", "MINIMUM"),
        *("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH"),
        *("REDUCE_MAX", "REDUCE_MIN"),
    }
)
INTEGER = (
    WEIGHTED
    | SAME_SCALE
    | {
        *("ADD", "SUB", "MUL", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LEAKY_RELU"),
        *("PRELU", "LOGISTIC", "TANH", "HARD_SWISH", "ELU", "GELU", "SOFTMAX", "MEAN", "SUM"),
        *("BATCH_MATMUL",),
    }
)
# (scale, zero point) that the kernel prescribes for the result.
_FIXED = {
    "LOGISTIC": (1 / 256, -128),
    "SOFTMAX": (1 / 256, -128),
    "TANH": (1 / 128, 0),
}


@dataclass(frozen=True)
class Scale:
    """Real value = value * (integer - zero)."""

    value: float
    zero: int

    def integers(self, data: Array) -> NDArray[np.int8]:
        """Real values as int8, saturating."""
        real = np.asarray(data, np.float64) / self.value
        whole: NDArray[np.int8] = np.clip(np.rint(real) + self.zero, -128, 127).astype(np.int8)
        return whole


def scale_for(moments: Moments) -> Scale:
    """Spans the values that the moments expect, and zero, which int8 must hit exactly."""
    low, high = min(moments.low, 0.0), max(moments.high, 0.0)
    value = max((high - low) / 255.0, 1e-9)
    return Scale(value, int(np.clip(round(-128 - low / value), -128, 127)))


def quantize(model: Model) -> Model:
    """The int8 model of a float32 model; its inputs and outputs are int8 too."""
    return _Quantizer(model).run()


class _Quantizer:
    def __init__(self, model: Model) -> None:
        self.source = model
        self.made = Model(model.name)
        self.moments: list[Moments | None] = [None] * len(model.tensors)
        self.scales: list[Scale | None] = [None] * len(model.tensors)
        self.places: dict[int, int] = {}  # tensor of the source -> tensor made
        self.floats: dict[int, int] = {}  # the same, dequantised
        self.parents = list(range(len(model.tensors)))

    def run(self) -> Model:
        source = self.source
        self._estimate()
        self._choose_scales()
        for index in source.inputs:
            self.made.inputs.append(self._place(index))
        for operator in source.operators:
            if self._is_real(operator.outputs[0]) and operator.code in INTEGER:
                self._integer(operator)
            else:
                self._float(operator)
        self.made.outputs = [self._place(index) for index in source.outputs]
        return self.made

    def _is_real(self, index: int) -> bool:
        return self.source.tensors[index].dtype == "float32"

    # Scales

    def _estimate(self) -> None:
        """Moments of every activation, in the order of execution."""
        tensors = self.source.tensors
        for index, tensor in enumerate(tensors):
            if tensor.data is not None and self._is_real(index) and tensor.data.size < 2**20:
                self.moments[index] = moments_of_data(tensor.data)
        for index in self.source.inputs:
            self.moments[index] = INPUT
        for operator in self.source.operators:
            found = moments_of(operator, tensors, self.moments)
            for index in operator.outputs:
                self.moments[index] = found

    def _choose_scales(self) -> None:
        """One scale for each group of tensors that must agree.

        A join's operands agree with its result, except those whose scale is prescribed: they are
        converted (see `_operands`).
        """
        fixed: dict[int, Scale] = {}
        for operator in self.source.operators:
            if operator.code in _FIXED:
                fixed[self._root(operator.outputs[0])] = Scale(*_FIXED[operator.code])
            if operator.code not in SAME_SCALE:
                continue
            data = [i for i in operator.inputs if self._is_activation(i)]
            if len(data) > 1:
                data = [i for i in data if self._root(i) not in fixed]
            for index in [*data, *operator.outputs]:
                first, second = self._root(operator.outputs[0]), self._root(index)
                if second in fixed:
                    fixed[first] = fixed[second]
                self.parents[second] = first
        groups: dict[int, Moments] = {}
        for index, moments in enumerate(self.moments):
            if moments is not None and self._is_activation(index):
                root = self._root(index)
                groups[root] = moments if root not in groups else groups[root].union(moments)
        for index in range(len(self.parents)):
            root = self._root(index)
            if self._is_activation(index) and root in groups:
                self.scales[index] = fixed.get(root) or scale_for(groups[root])

    def _root(self, index: int) -> int:
        while self.parents[index] != index:
            self.parents[index] = self.parents[self.parents[index]]
            index = self.parents[index]
        return index

    def _is_activation(self, index: int) -> bool:
        return index >= 0 and self.source.tensors[index].data is None and self._is_real(index)

    def _scale(self, index: int) -> Scale:
        found = self.scales[index]
        return Scale(1.0, 0) if found is None else found

    # Tensors and operators of the new model

    def _add(self, tensor: Tensor) -> int:
        self.made.tensors.append(tensor)
        return len(self.made.tensors) - 1

    def _place(self, index: int) -> int:
        """The tensor made for one of the source: int8 for activations, the same for the rest."""
        if index < 0:
            return -1
        if index not in self.places:
            tensor = self.source.tensors[index]
            if self._is_activation(index):
                made = _quantised(tensor, self._scale(index))
            else:
                made = replace(tensor)
            self.places[index] = self._add(made)
        return self.places[index]

    def _constant(self, tensor: Tensor, scale: Scale) -> int:
        """A constant operand of an elementwise operator."""
        assert tensor.data is not None
        made = _quantised(tensor, scale)
        made.data = scale.integers(tensor.data)
        return self._add(made)

    def _integer(self, operator: Operator) -> None:
        if operator.code in WEIGHTED:
            operands = self._weighted(operator)
        else:
            operands = self._operands(operator)
        made = [self._place(index) for index in operator.outputs]
        self.made.operators.append(Operator(operator.code, operands, made, dict(operator.options)))

    def _operands(self, operator: Operator) -> list[int]:
        """Operands as int8; in the result's scale where the kernel demands it."""
        wanted = self._scale(operator.outputs[0])
        operands = []
        for index in operator.inputs:
            if index < 0 or not self._is_real(index):
                operands.append(self._place(index))
                continue
            tensor = self.source.tensors[index]
            if tensor.data is not None:
                own = scale_for(moments_of_data(tensor.data))
                same = operator.code in SAME_SCALE
                operands.append(self._constant(tensor, wanted if same else own))
            elif operator.code in SAME_SCALE and self._scale(index) != wanted:
                converted = self._add(_quantised(replace(tensor, name=f"{tensor.name}_q"), wanted))
                self.made.operator("QUANTIZE", [self._place(index)], [converted])
                operands.append(converted)
            else:
                operands.append(self._place(index))
        return operands

    def _weighted(self, operator: Operator) -> list[int]:
        """Operands of a layer with weights: data, int8 weight, int32 bias, in their order."""
        transposed = operator.code == "TRANSPOSE_CONV"
        data, bias = (2, 3) if transposed else (0, 2)
        weight_tensor = self.source.tensors[operator.inputs[1]]
        assert weight_tensor.data is not None
        axis = 3 if operator.code == "DEPTHWISE_CONV_2D" else 0
        weight, scales = _symmetric(
            weight_tensor.data, None if operator.code == "FULLY_CONNECTED" else axis
        )
        quantised = Tensor(weight_tensor.name, weight.shape, "int8", weight, scales, 0, axis)
        bias_tensor = self.source.tensors[operator.inputs[bias]]
        assert bias_tensor.data is not None
        products = (scales * np.float64(self._scale(operator.inputs[data]).value)).astype(
            np.float32
        )
        whole = np.rint(bias_tensor.data / products.astype(np.float64))
        limit = float(2**30)
        integers = np.clip(whole, -limit, limit).astype(np.int32)
        made = {
            1: self._add(quantised),
            bias: self._add(Tensor(bias_tensor.name, integers.shape, "int32", integers, products)),
        }
        return [
            made[at] if at in made else self._place(index)
            for at, index in enumerate(operator.inputs)
        ]

    def _float(self, operator: Operator) -> None:
        """Keep an operator in float32, between conversions."""
        operands = [
            self._dequantised(index) if self._is_activation(index) else self._place(index)
            for index in operator.inputs
        ]
        results = []
        for index in operator.outputs:
            if not self._is_activation(index):
                results.append(self._place(index))
                continue
            tensor = self.source.tensors[index]
            real = self._add(replace(tensor, name=f"{tensor.name}_real"))
            self.floats[index] = real
            results.append(real)
        self.made.operators.append(
            Operator(operator.code, operands, results, dict(operator.options))
        )
        for index in operator.outputs:
            if index in self.floats:
                self.made.operator("QUANTIZE", [self.floats[index]], [self._place(index)])

    def _dequantised(self, index: int) -> int:
        if index not in self.floats:
            tensor = self.source.tensors[index]
            self.floats[index] = self._add(replace(tensor, name=f"{tensor.name}_real"))
            self.made.operator("DEQUANTIZE", [self._place(index)], [self.floats[index]])
        return self.floats[index]


def _quantised(tensor: Tensor, scale: Scale) -> Tensor:
    scales = np.array([scale.value], np.float32)
    return Tensor(tensor.name, tensor.shape, "int8", None, scales, scale.zero)


def _symmetric(data: Array, axis: int | None) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Weights as int8 in -127..127, with one scale, or one per index of `axis`."""
    real = np.asarray(data, np.float32)
    others = tuple(a for a in range(real.ndim) if a != axis) if axis is not None else None
    peaks = np.maximum(np.abs(real).max(axis=others, keepdims=True), 1e-9)
    scales = (peaks / np.float32(127.0)).astype(np.float32)
    scaled = real / scales
    np.rint(scaled, out=scaled)
    np.clip(scaled, -127, 127, out=scaled)
    return scaled.astype(np.int8), scales.reshape(-1)
