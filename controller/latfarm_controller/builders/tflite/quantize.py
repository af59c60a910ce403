"""Converts a float32 TFLite model to a full-integer int8 model, and chooses its scales.

Latency does not depend on the scales as long as values neither saturate nor become zero, but nobody
would trust a model whose results are wrong. Therefore the ranges of the activations are measured
(`tflite/ranges.py`) or, for a kernel of a few operators, estimated (`tflite/moments.py`). Weights
are quantised symmetrically with one scale per output channel, and biases are int32. As in other
converters, operators without an int8 kernel stay in float32, between a DEQUANTIZE and a QUANTIZE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from latfarm_controller.builders.tflite.file import Array, BuiltOperator, TfliteModel, TfliteTensor
from latfarm_controller.builders.tflite.moments import Moments, moments_of, moments_of_data
from latfarm_controller.builders.tflite.ranges import INPUT, Range
from latfarm_controller.builders.tflite.scales import QuantizationScale, scale_for, symmetric

# Moments that are assumed for the model's float inputs.
_INPUT = Moments(0.0, 1.5, *INPUT)

# Operators that have a weight and a bias as operands.
WEIGHTED = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})
# Operators whose int8 kernel needs the same scale for operands and results.
SAME_SCALE = frozenset(
    {
        *("MAX_POOL_2D", "AVERAGE_POOL_2D", "RESHAPE", "TRANSPOSE", "PAD", "PADV2", "MIRROR_PAD"),
        *("SLICE", "STRIDED_SLICE", "SPLIT", "SPLIT_V", "CONCATENATION", "MAXIMUM", "MINIMUM"),
        *("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH"),
        *("REDUCE_MAX", "REDUCE_MIN", "GATHER", "TILE", "BROADCAST_TO", "SELECT_V2"),
    }
)
# Operators that compute in int8 in the new model; all others stay in float32.
INTEGER = (
    WEIGHTED
    | SAME_SCALE
    | {
        *("ADD", "SUB", "MUL", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LEAKY_RELU"),
        *("PRELU", "LOGISTIC", "TANH", "HARD_SWISH", "ELU", "GELU", "SOFTMAX", "LOG_SOFTMAX"),
        *("MEAN", "SUM", "BATCH_MATMUL", "EXP", "LOG", "ABS", "RSQRT", "ARG_MAX", "ARG_MIN"),
        *("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"),
    }
)
# Operators that clamp their operand to a range. The operand's scale need not represent values
# outside this range.
_CUTTING = frozenset({"RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"})
# The result of a softmax is almost zero for values that are smaller than the others by this much.
_MASKED = 16.0
# Scale and zero point of the result, for operators whose int8 kernel prescribes them.
_FIXED = {
    "LOGISTIC": (1 / 256, -128),
    "SOFTMAX": (1 / 256, -128),
    "LOG_SOFTMAX": (16 / 256, 127),
    "TANH": (1 / 128, 0),
}


def quantize(model: TfliteModel, ranges: Sequence[Range | None] | None = None) -> TfliteModel:
    """Return the int8 model of a float32 model; its float inputs and outputs become int8 too.

    Args:
        model: the model to convert; its real-valued activations are float32.
        ranges: the measured range of each tensor of the model, by its index; None for tensors that
            were not measured. Without this argument, all ranges are estimated.
    """
    return _Quantizer(model, ranges).run()


class _Quantizer:
    def __init__(self, model: TfliteModel, ranges: Sequence[Range | None] | None) -> None:
        self.source = model
        self.ranges = ranges
        self.made = TfliteModel(model.name)
        self.moments: list[Moments | None] = [None] * len(model.tensors)
        self.scales: list[QuantizationScale | None] = [None] * len(model.tensors)
        self.places: dict[int, int] = {}  # index in the source -> index in the new model
        self.floats: dict[int, int] = {}  # index in the source -> index of its float32 version
        self.parents = list(range(len(model.tensors)))
        # Float tensors that are computed from integers only, such as masks. Masks are exactly 0 or
        # 1, and must not be rounded, because they are multiplied by -10,000.
        self.exact: set[int] = set()

    def run(self) -> TfliteModel:
        source = self.source
        self._estimate()
        self._choose_scales()
        for index in source.inputs:
            self.made.inputs.append(self._place(index))
        for operator in source.operators:
            if not any(self._is_real(i) for i in (*operator.inputs, *operator.outputs) if i >= 0):
                self._same(operator)
            elif self._is_exact(operator):
                self.exact.update(operator.outputs)
                self._float(operator)
            elif operator.code in INTEGER:
                self._integer(operator)
            else:
                self._float(operator)
        self.made.outputs = [self._place(index) for index in source.outputs]
        return self.made

    def _is_real(self, index: int) -> bool:
        return self.source.tensors[index].dtype == "float32"

    def _is_exact(self, operator: BuiltOperator) -> bool:
        real = [index for index in operator.inputs if self._is_activation(index)]
        if not real:
            return operator.code == "CAST"
        return self.exact.issuperset(real)

    # Scales

    def _estimate(self) -> None:
        """Determine the moments of every activation, in the order of execution.

        Measured ranges are used if there are any; otherwise the moments are estimated.
        """
        tensors = self.source.tensors
        for index in self.source.inputs:
            self.moments[index] = _INPUT if self._is_real(index) else None
        for operator in self.source.operators:
            weighs = operator.code in WEIGHTED and self._weight(operator) is not None
            for index in () if weighs else operator.inputs:
                self._know_constant(index)
            found = moments_of(operator, tensors, self.moments) if self.ranges is None else None
            for index in operator.outputs:
                if not self._is_real(index):
                    continue
                span = None if self.ranges is None else self.ranges[index]
                if span is not None:
                    self.moments[index] = Moments(0.0, 1.0, *span)
                elif found is not None:
                    self.moments[index] = found
                elif operator.code in SAME_SCALE:
                    self.moments[index] = self._moved(operator)
        self._cut()
        self._unmask()

    def _weight(self, operator: BuiltOperator) -> Array | None:
        return self.source.tensors[operator.inputs[1]].data

    def _know_constant(self, index: int) -> None:
        if index < 0 or self.moments[index] is not None or not self._is_real(index):
            return
        data = self.source.tensors[index].data
        if data is not None and (self.ranges is not None or data.size < 2**20):
            self.moments[index] = moments_of_data(data)

    def _moved(self, operator: BuiltOperator) -> Moments | None:
        """Return the moments of the data that an operator moves; None if they are unknown.

        The fill value of a PADV2 is ignored, because it can be the lowest float32 number.
        """
        found: Moments | None = None
        moved = operator.inputs[:1] if operator.code == "PADV2" else operator.inputs
        for index in moved:
            known = self.moments[index] if index >= 0 else None
            if known is not None:
                found = known if found is None else found.union(known)
        return found

    def _cut(self) -> None:
        """Give the operand of a clamp, such as RELU, the range of the clamp's result.

        Values outside this range saturate, which is what the clamp does to them anyway. An operand
        with other readers keeps its own range.
        """
        readers: dict[int, list[BuiltOperator]] = {}
        for operator in self.source.operators:
            for index in operator.inputs:
                readers.setdefault(index, []).append(operator)
        for index, found in readers.items():
            if (
                len(found) == 1
                and found[0].code in _CUTTING
                and self._is_activation(index)
                and index not in self.source.inputs
                and index not in self.source.outputs
            ):
                self.moments[index] = self.moments[found[0].outputs[0]]

    def _unmask(self) -> None:
        """Limit the ranges of masked softmax operands.

        A mask adds large negative numbers to the operand, or selects them. They are left out of the
        range, so that the scale remains fine enough for the other values.
        """
        makers = {i: operator for operator in self.source.operators for i in operator.outputs}
        for operator in self.source.operators:
            index = operator.inputs[0] if operator.code == "SOFTMAX" else -1
            maker = makers.get(index)
            if maker is None or maker.code not in ("ADD", "SELECT_V2"):
                continue
            lows = [m.low for i in maker.inputs if i >= 0 and (m := self.moments[i]) is not None]
            found = self.moments[index]
            if lows and found is not None:
                low = max(found.low, min(max(lows), found.high) - _MASKED)
                self.moments[index] = replace(found, low=low)

    def _choose_scales(self) -> None:
        """Choose one scale for each group of tensors that must have the same scale.

        If an operator such as a concatenation has several operands, they get the scale of its
        result. Operands whose scale is prescribed keep it and are converted (see `_operands`).
        """
        fixed: dict[int, QuantizationScale] = {}
        for operator in self.source.operators:
            if operator.code in _FIXED:
                fixed[self._root(operator.outputs[0])] = QuantizationScale(*_FIXED[operator.code])
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

    def _scale(self, index: int) -> QuantizationScale:
        found = self.scales[index]
        return QuantizationScale(1.0, 0) if found is None else found

    # Tensors and operators of the new model

    def _add(self, tensor: TfliteTensor) -> int:
        self.made.tensors.append(tensor)
        return len(self.made.tensors) - 1

    def _place(self, index: int) -> int:
        """Return the index in the new model of a tensor of the source; add it if necessary.

        Float activations become int8, and other tensors keep their type. The result of a float
        operator is quantised when the first int8 operator needs it.
        """
        if index < 0:
            return -1
        if index not in self.places:
            tensor = self.source.tensors[index]
            if self._is_activation(index):
                made = _quantised(tensor, self._scale(index))
            else:
                made = replace(tensor)
            self.places[index] = self._add(made)
            if index in self.floats:
                self.made.operator("QUANTIZE", [self.floats[index]], [self.places[index]])
        return self.places[index]

    def _constant(self, tensor: TfliteTensor, scale: QuantizationScale) -> int:
        """Add a quantised constant to the new model and return its index."""
        assert tensor.data is not None
        made = _quantised(tensor, scale)
        made.data = scale.integers(tensor.data)
        return self._add(made)

    def _integer(self, operator: BuiltOperator) -> None:
        if operator.code in WEIGHTED and self._weight(operator) is not None:
            operands = self._weighted(operator)
        else:
            operands = self._operands(operator)
        made = [self._place(index) for index in operator.outputs]
        self.made.operators.append(replace(operator, inputs=operands, outputs=made))

    def _same(self, operator: BuiltOperator) -> None:
        """Copy an operator that has no float operands or results, such as one on indices."""
        operands = [self._place(index) for index in operator.inputs]
        made = [self._place(index) for index in operator.outputs]
        self.made.operators.append(replace(operator, inputs=operands, outputs=made))

    def _operands(self, operator: BuiltOperator) -> list[int]:
        """Return the indices of an operator's operands, quantised to int8.

        Operands of a `SAME_SCALE` operator that have another scale than its result are converted
        with a QUANTIZE.
        """
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

    def _weighted(self, operator: BuiltOperator) -> list[int]:
        """Return the indices of the operands of a layer with weights, in the operator's order.

        The weight is quantised to int8 and the bias to int32.
        """
        transposed = operator.code == "TRANSPOSE_CONV"
        data, bias = (2, 3) if transposed else (0, 2)
        weight_tensor = self.source.tensors[operator.inputs[1]]
        assert weight_tensor.data is not None
        axis = 3 if operator.code == "DEPTHWISE_CONV_2D" else 0
        weight, scales = symmetric(weight_tensor.data, axis)
        quantised = TfliteTensor(weight_tensor.name, weight.shape, "int8", weight, scales, 0, axis)
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
            bias: self._add(
                TfliteTensor(bias_tensor.name, integers.shape, "int32", integers, products)
            ),
        }
        return [
            made[at] if at in made else self._place(index)
            for at, index in enumerate(operator.inputs)
        ]

    def _float(self, operator: BuiltOperator) -> None:
        """Add an operator that stays in float32, and dequantise its operands."""
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
        self.made.operators.append(replace(operator, inputs=operands, outputs=results))

    def _dequantised(self, index: int) -> int:
        if index not in self.floats:
            tensor = self.source.tensors[index]
            self.floats[index] = self._add(replace(tensor, name=f"{tensor.name}_real"))
            self.made.operator("DEQUANTIZE", [self._place(index)], [self.floats[index]])
        return self.floats[index]


def _quantised(tensor: TfliteTensor, scale: QuantizationScale) -> TfliteTensor:
    scales = np.array([scale.value], np.float32)
    return TfliteTensor(tensor.name, tensor.shape, "int8", None, scales, scale.zero)
