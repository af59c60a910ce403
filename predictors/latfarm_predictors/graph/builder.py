"""GraphBuilder: write a Graph op by op, with names and shapes filled in.

```
b = GraphBuilder("tiny")
x = b.input((1, 3, 224, 224))
x = b.relu(b.batch_norm(b.conv(x, 32, 3, stride=2)))
graph = b.build([b.fc(b.flatten(b.global_avg_pool(x)), 10)])
```

Tensors are names; data is NCHW and float32 unless said otherwise. Ops, attributes and constant
operands follow ONNX opset 13. Every method raises GraphError when operands do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, overload

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph import expansions
from latfarm_predictors.graph.canonical import canonical_attrs, canonical_slice, tidy_float
from latfarm_predictors.graph.graph import DTYPE_BYTES, AttrValue, Graph, Node, TensorType, Weight
from latfarm_predictors.graph.shapes import infer
from latfarm_predictors.graph.shapes.call import Values
from latfarm_predictors.graph.shapes.moves import resolve_reshape
from latfarm_predictors.graph.windows import Pads, Size, padding, slide, spatial_axes, spread

__all__ = ["GraphBuilder", "Pads", "Size"]


class GraphBuilder:
    """Builds one Graph; not thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._weights: dict[str, Weight] = {}
        self._types: dict[str, TensorType] = {}

    def input(self, shape: Sequence[int], dtype: str = "float32") -> str:
        """A network input of a static shape."""
        name = f"input_{len(self._inputs)}" if self._inputs else "input"
        self._types[name] = _checked(dtype, shape)
        self._inputs.append(name)
        return name

    def weight(
        self, shape: Sequence[int], dtype: str = "float32", values: Sequence[float] | None = None
    ) -> str:
        """A constant of a type; `values` (row-major) only where they change the work."""
        name = f"weight_{len(self._weights)}"
        kind = _checked(dtype, shape)
        if values is None:
            self._weights[name] = Weight(kind)
            return name
        if len(values) != kind.elements:
            raise GraphError(f"{self._name}: {len(values)} values for shape {list(shape)}")
        kept: Values
        if dtype.startswith("float"):
            kept = tuple([tidy_float(float(v)) for v in values])
        else:
            kept = tuple([int(v) for v in values])
        self._weights[name] = Weight(kind, kept)
        return name

    def scalar_like(self, x: str, value: float) -> str:
        """A constant scalar of the dtype of `x`."""
        return self.weight((), self.type_of(x).dtype, (value,))

    def type_of(self, x: str) -> TensorType:
        """Type of a tensor made so far."""
        found = self._types.get(x)
        if found is not None:
            return found
        if x in self._weights:
            return self._weights[x].type
        raise GraphError(f"{self._name}: no tensor {x!r}")

    @overload
    def op(
        self,
        op_type: str,
        inputs: Sequence[str],
        attrs: Mapping[str, AttrValue] | None = None,
        outputs: Literal[1] = 1,
    ) -> str: ...

    @overload
    def op(
        self,
        op_type: str,
        inputs: Sequence[str],
        attrs: Mapping[str, AttrValue] | None = None,
        outputs: int = 1,
    ) -> tuple[str, ...]: ...

    def op(
        self,
        op_type: str,
        inputs: Sequence[str],
        attrs: Mapping[str, AttrValue] | None = None,
        outputs: int = 1,
    ) -> str | tuple[str, ...]:
        """Any op that has shape inference; "" stands for an absent optional operand.

        Returns:
            the output's name, or a tuple of names when `outputs` is more than 1.
        """
        types: list[TensorType | None] = []
        values: list[Values | None] = []
        for tensor in inputs:
            kind, known = self._types.get(tensor), None
            if kind is None and tensor:
                weight = self._weights.get(tensor)
                if weight is None:
                    raise GraphError(f"{self._name}: no tensor {tensor!r}")
                kind, known = weight.type, weight.values
            types.append(kind)
            values.append(known)
        name = f"{op_type.lower()}_{len(self._nodes)}"
        try:
            full = canonical_attrs(op_type, attrs or {}, types)
            made = infer(op_type, types, values, full, outputs)
        except GraphError as error:
            raise GraphError(f"{self._name}: {name}: {error}") from error
        if outputs == 1:
            return self._append(op_type, tuple(inputs), full, made[0])
        names = tuple(f"{name}_{i}" for i in range(outputs))
        self._types.update(zip(names, made, strict=True))
        self._nodes.append(Node(name, op_type, tuple(inputs), names, full))
        return names

    def build(self, outputs: Sequence[str]) -> Graph:
        """The Graph so far, with these outputs."""
        return Graph(
            self._name,
            tuple(self._inputs),
            tuple(outputs),
            tuple(self._nodes),
            dict(self._weights),
            dict(self._types),
        )

    # Convolutions and matrices

    def conv(
        self,
        x: str,
        out_channels: int,
        kernel: Size,
        stride: Size = 1,
        pads: Pads = "same",
        groups: int = 1,
        dilation: Size = 1,
        bias: bool = False,
    ) -> str:
        """Convolution in 1, 2 or 3 dimensions, weight [out, in / groups, *kernel]."""
        kind = self.type_of(x)
        try:
            attrs, spatial = slide("Conv", kind.shape, kernel, stride, pads, dilation)
        except GraphError as error:
            raise GraphError(f"{self._name}: conv_{len(self._nodes)}: {error}") from error
        channels = kind.shape[1]
        if groups < 1 or channels % groups or out_channels % groups:
            raise GraphError(
                f"{self._name}: {channels} and {out_channels} channels do not divide"
                f" into {groups} groups"
            )
        window: tuple[int, ...] = attrs["kernel_shape"]  # type: ignore[assignment]
        operands = [x, self.weight((out_channels, channels // groups, *window), kind.dtype)]
        if bias:
            operands.append(self.weight((out_channels,), kind.dtype))
        made = TensorType(kind.dtype, (kind.shape[0], out_channels, *spatial))
        return self._append("Conv", tuple(operands), {**attrs, "group": int(groups)}, made)

    def depthwise(
        self, x: str, kernel: Size, stride: Size = 1, pads: Pads = "same", bias: bool = False
    ) -> str:
        """Convolution with one group per channel."""
        channels = self.type_of(x).shape[1]
        return self.conv(x, channels, kernel, stride, pads, groups=channels, bias=bias)

    def conv_transpose(
        self,
        x: str,
        out_channels: int,
        kernel: Size,
        stride: Size = 1,
        pads: Pads = "same",
        groups: int = 1,
        bias: bool = False,
        output_padding: Size = 0,
    ) -> str:
        """Transposed convolution, weight [in, out / groups, *kernel]; "same" gives in * stride."""
        kind = self.type_of(x)
        rank = spatial_axes(kind.shape)
        sizes, strides = spread(kernel, rank), spread(stride, rank)
        if pads == "same":
            gaps = [k - s for k, s in zip(sizes, strides, strict=True)]
            extra = tuple(max(-gap, 0) for gap in gaps)
            filled = tuple(max(g, 0) // 2 for g in gaps) + tuple(
                max(g, 0) - max(g, 0) // 2 for g in gaps
            )
        else:
            extra = spread(output_padding, rank)
            filled = padding(pads, kind.shape[2:], sizes, strides, (1,) * rank)
        attrs: dict[str, AttrValue] = {"kernel_shape": sizes, "strides": strides, "pads": filled}
        if groups < 1 or out_channels % groups:
            raise GraphError(f"{self._name}: {out_channels} channels in {groups} groups")
        shape = (kind.shape[1], out_channels // groups, *sizes)
        operands = [x, self._like(x, shape)]
        if bias:
            operands.append(self._like(x, (out_channels,)))
        return self.op(
            "ConvTranspose", operands, {**attrs, "group": groups, "output_padding": extra}
        )

    def fc(self, x: str, out_features: int, bias: bool = True) -> str:
        """Fully connected layer of a matrix [rows, in]: Gemm with weight [out, in]."""
        operands = [x, self._like(x, (out_features, self.type_of(x).shape[-1]))]
        if bias:
            operands.append(self._like(x, (out_features,)))
        return self.op("Gemm", operands, {"transB": 1})

    def matmul(self, x: str, y: str) -> str:
        """Matrix product over the last two axes."""
        return self.op("MatMul", [x, y])

    # Normalisation and activations

    def batch_norm(self, x: str) -> str:
        """Inference batch normalisation over axis 1."""
        kind = self.type_of(x)
        if len(kind.shape) < 2:
            raise GraphError(f"{self._name}: {x!r} has no channels: shape {list(kind.shape)}")
        weight, first = Weight(TensorType(kind.dtype, kind.shape[1:2])), len(self._weights)
        names = [f"weight_{index}" for index in range(first, first + 4)]
        for name in names:
            self._weights[name] = weight
        return self._append("BatchNormalization", (x, *names), {}, kind)

    def layer_norm(self, x: str) -> str:
        """Layer normalisation over the last axis, in the nine ops of opset 13."""
        rank = len(self.type_of(x).shape)
        size = self.type_of(x).shape[-1:]
        return expansions.layer_norm(self, x, rank - 1, self._like(x, size), self._like(x, size))

    def lrn(
        self, x: str, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
    ) -> str:
        """Local response normalisation over `size` channels."""
        return self.op("LRN", [x], {"size": size, "alpha": alpha, "beta": beta, "bias": bias})

    def relu(self, x: str) -> str:
        """max(x, 0)."""
        return self._append("Relu", (x,), {}, self.type_of(x))

    def relu6(self, x: str) -> str:
        """Clip to 0..6."""
        return self.clip(x, 0.0, 6.0)

    def clip(self, x: str, lo: float, hi: float) -> str:
        """Clip with constant bounds."""
        return self.op("Clip", [x, self.scalar_like(x, lo), self.scalar_like(x, hi)])

    def sigmoid(self, x: str) -> str:
        """Logistic function."""
        return self._append("Sigmoid", (x,), {}, self.type_of(x))

    def tanh(self, x: str) -> str:
        """Hyperbolic tangent."""
        return self._append("Tanh", (x,), {}, self.type_of(x))

    def hard_sigmoid(self, x: str) -> str:
        """clip(x / 6 + 1/2, 0, 1), MobileNetV3's."""
        return self.op("HardSigmoid", [x], {"alpha": 1 / 6, "beta": 0.5})

    def hard_swish(self, x: str) -> str:
        """Times hard_sigmoid(x): two ops, since HardSwish came with opset 14."""
        return expansions.hard_swish(self, x)

    def gelu(self, x: str) -> str:
        """Erf form, x * (erf(x / sqrt 2) + 1) / 2, in the five ops that exporters write."""
        return expansions.gelu(self, x)

    def leaky_relu(self, x: str, alpha: float = 0.01) -> str:
        """Slope `alpha` below zero."""
        return self.op("LeakyRelu", [x], {"alpha": float(alpha)})

    def softmax(self, x: str, axis: int = -1) -> str:
        """Softmax along one axis."""
        return self.op("Softmax", [x], {"axis": axis})

    # Pooling and reduction

    def max_pool(
        self, x: str, kernel: Size, stride: Size | None = None, pads: Pads = "valid"
    ) -> str:
        """Max pooling; the stride is the kernel unless given."""
        return self._pool("MaxPool", x, kernel, stride, pads)

    def avg_pool(
        self, x: str, kernel: Size, stride: Size | None = None, pads: Pads = "valid"
    ) -> str:
        """Average pooling that leaves padding out of the mean."""
        return self._pool("AveragePool", x, kernel, stride, pads)

    def global_avg_pool(self, x: str) -> str:
        """Mean over all spatial axes, kept with size 1."""
        return self.op("GlobalAveragePool", [x])

    def reduce_mean(self, x: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """Mean over `axes`."""
        return self.op("ReduceMean", [x], {"axes": tuple(axes), "keepdims": int(keepdims)})

    # Elementwise

    def add(self, x: str, y: str) -> str:
        """Broadcasting x + y."""
        return self._elementwise("Add", x, y)

    def sub(self, x: str, y: str) -> str:
        """Broadcasting x - y."""
        return self._elementwise("Sub", x, y)

    def mul(self, x: str, y: str) -> str:
        """Broadcasting x * y."""
        return self._elementwise("Mul", x, y)

    def div(self, x: str, y: str) -> str:
        """Broadcasting x / y."""
        return self._elementwise("Div", x, y)

    # Moving data

    def concat(self, xs: Sequence[str], axis: int = 1) -> str:
        """Join along one axis."""
        return self.op("Concat", list(xs), {"axis": axis})

    def flatten(self, x: str, axis: int = 1) -> str:
        """To a matrix, cut before `axis`."""
        return self.op("Flatten", [x], {"axis": axis})

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Reshape; 0 keeps a size and one -1 takes the rest."""
        found = resolve_reshape(self.type_of(x), shape)
        return self.op("Reshape", [x, self._int_weight(found)])

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """Permute the axes."""
        return self.op("Transpose", [x], {"perm": tuple(perm)})

    def split(self, x: str, sizes: Sequence[int], axis: int = 1) -> tuple[str, ...]:
        """Cut into pieces of these sizes."""
        operands, attrs = [x, self._int_weight(sizes)], {"axis": axis}
        if len(sizes) == 1:
            return (self.op("Split", operands, attrs),)
        return self.op("Split", operands, attrs, len(sizes))

    def slice(
        self,
        x: str,
        starts: Sequence[int],
        ends: Sequence[int],
        axes: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> str:
        """A part of a tensor; ends beyond the size mean the size."""
        parts = canonical_slice(self.type_of(x).shape, starts, ends, axes, steps)
        return self.op("Slice", [x, *(self._int_weight(part) for part in parts)])

    def resize(self, x: str, scale: float | Sequence[float], mode: str = "nearest") -> str:
        """Scale the spatial axes, "nearest" or "linear"."""
        rank = len(self.type_of(x).shape) - 2
        factors = (scale,) * rank if isinstance(scale, int | float) else tuple(scale)
        scales = self.weight((rank + 2,), values=(1.0, 1.0, *factors))
        attrs: dict[str, AttrValue] = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
        if mode == "nearest":
            attrs["nearest_mode"] = "floor"
        return self.op("Resize", [x, "", scales], attrs)

    def pad(self, x: str, pads: Sequence[int], value: float = 0.0, mode: str = "constant") -> str:
        """Pad; `pads` for the spatial axes (top, left, bottom, right) or, ONNX style, for all."""
        rank = len(self.type_of(x).shape)
        full = tuple(pads)
        if len(full) == 2 * (rank - 2):
            half = rank - 2
            full = (0, 0, *full[:half], 0, 0, *full[half:])
        operands = [x, self._int_weight(full)]
        if mode == "constant":
            operands.append(self.scalar_like(x, value))
        return self.op("Pad", operands, {"mode": mode})

    # Inside

    def _append(
        self,
        op_type: str,
        inputs: tuple[str, ...],
        attrs: Mapping[str, AttrValue],
        made: TensorType,
    ) -> str:
        """A node whose attributes are canonical and whose one result is known."""
        name = f"{op_type.lower()}_{len(self._nodes)}"
        self._types[name] = made
        self._nodes.append(Node(name, op_type, inputs, (name,), attrs))
        return name

    def _elementwise(self, op_type: str, x: str, y: str) -> str:
        kind = self.type_of(x)
        if kind.shape == self.type_of(y).shape:
            return self._append(op_type, (x, y), {}, kind)
        return self.op(op_type, [x, y])

    def _pool(self, op_type: str, x: str, kernel: Size, stride: Size | None, pads: Pads) -> str:
        kind = self.type_of(x)
        try:
            attrs, spatial = slide(
                op_type, kind.shape, kernel, kernel if stride is None else stride, pads
            )
        except GraphError as error:
            told = f"{op_type.lower()}_{len(self._nodes)}"
            raise GraphError(f"{self._name}: {told}: {error}") from error
        return self._append(
            op_type, (x,), dict(attrs), TensorType(kind.dtype, kind.shape[:2] + spatial)
        )

    def _like(self, x: str, shape: Sequence[int]) -> str:
        return self.weight(shape, self.type_of(x).dtype)

    def _int_weight(self, values: Sequence[int]) -> str:
        return self.weight((len(values),), "int64", tuple(values))


def _checked(dtype: str, shape: Sequence[int]) -> TensorType:
    if dtype not in DTYPE_BYTES:
        raise GraphError(f"unknown element type {dtype!r}")
    for size in shape:
        if not isinstance(size, int) or size < 1:
            raise GraphError(f"shape {list(shape)} must be of integers of at least 1")
    return TensorType(dtype, tuple(shape))
