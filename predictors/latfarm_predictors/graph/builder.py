"""GraphBuilder: write a graph op by op; names and shapes are filled in.

```
b = GraphBuilder("tiny")
x = b.input((1, 3, 224, 224))
x = b.relu(b.batch_norm(b.conv(x, 32, 3, stride=2)))
graph = b.build([b.fc(b.flatten(b.global_avg_pool(x)), 10)])
```

Tensors are names. Data is NCHW and float32 unless said otherwise. Ops, attributes and constant
operands follow ONNX opset 13. Every method adds one op, or the few ops that exporters write for it,
and returns the name of the result; it raises GraphError when the operands do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph import expansions
from latfarm_predictors.graph.canonical import canonical_slice
from latfarm_predictors.graph.graph import AttrValue, TensorType, Weight
from latfarm_predictors.graph.node_builder import NodeBuilder
from latfarm_predictors.graph.shapes.moves import resolve_reshape
from latfarm_predictors.graph.windows import Pads, Size, padding, slide, spatial_axes, spread

__all__ = ["GraphBuilder", "Pads", "Size"]


class GraphBuilder(NodeBuilder):
    """Builds one graph with a method for each usual op; not thread-safe."""

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
        """A convolution in 1, 2 or 3 dimensions with a weight of [out, in / groups, *kernel]."""
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
        return self.append("Conv", tuple(operands), {**attrs, "group": int(groups)}, made)

    def depthwise(
        self, x: str, kernel: Size, stride: Size = 1, pads: Pads = "same", bias: bool = False
    ) -> str:
        """A depthwise convolution: one group for each channel."""
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
        """A transposed convolution with a weight of [in, out / groups, *kernel].

        With the pads "same" the result is as large as the input times the stride.
        """
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
        """A fully connected layer on a matrix [rows, in]: Gemm with a weight of [out, in]."""
        operands = [x, self._like(x, (out_features, self.type_of(x).shape[-1]))]
        if bias:
            operands.append(self._like(x, (out_features,)))
        return self.op("Gemm", operands, {"transB": 1})

    def matmul(self, x: str, y: str) -> str:
        """Matrix product over the last two axes."""
        return self.op("MatMul", [x, y])

    # Normalisation and activations

    def batch_norm(self, x: str) -> str:
        """Batch normalisation over axis 1, as at inference."""
        kind = self.type_of(x)
        if len(kind.shape) < 2:
            raise GraphError(f"{self._name}: {x!r} has no channels: shape {list(kind.shape)}")
        weight, first = Weight(TensorType(kind.dtype, kind.shape[1:2])), len(self._weights)
        names = [f"weight_{index}" for index in range(first, first + 4)]
        for name in names:
            self._weights[name] = weight
        return self.append("BatchNormalization", (x, *names), {}, kind)

    def layer_norm(self, x: str) -> str:
        """Layer normalisation over the last axis, written in nine ops of opset 13."""
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
        return self.append("Relu", (x,), {}, self.type_of(x))

    def relu6(self, x: str) -> str:
        """min(max(x, 0), 6): a Clip."""
        return self.clip(x, 0.0, 6.0)

    def clip(self, x: str, lo: float, hi: float) -> str:
        """Clip with constant bounds."""
        return self.op("Clip", [x, self.scalar_like(x, lo), self.scalar_like(x, hi)])

    def sigmoid(self, x: str) -> str:
        """Logistic function."""
        return self.append("Sigmoid", (x,), {}, self.type_of(x))

    def tanh(self, x: str) -> str:
        """Hyperbolic tangent."""
        return self.append("Tanh", (x,), {}, self.type_of(x))

    def hard_sigmoid(self, x: str) -> str:
        """clip(x / 6 + 1/2, 0, 1), as in MobileNetV3."""
        return self.op("HardSigmoid", [x], {"alpha": 1 / 6, "beta": 0.5})

    def hard_swish(self, x: str) -> str:
        """X * hard_sigmoid(x), written in two ops: HardSwish came with opset 14."""
        return expansions.hard_swish(self, x)

    def gelu(self, x: str) -> str:
        """X * (erf(x / sqrt 2) + 1) / 2, written in the five ops that exporters write."""
        return expansions.gelu(self, x)

    def leaky_relu(self, x: str, alpha: float = 0.01) -> str:
        """X above zero, alpha * x below."""
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
        """Average pooling whose mean leaves padding out.

        The stride is the kernel unless given.
        """
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
        """Concatenation along one axis."""
        return self.op("Concat", list(xs), {"axis": axis})

    def flatten(self, x: str, axis: int = 1) -> str:
        """A view as a matrix: the axes before `axis` become rows, the others columns."""
        return self.op("Flatten", [x], {"axis": axis})

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """A view of another shape; 0 keeps a size, and one -1 takes what is left."""
        found = resolve_reshape(self.type_of(x), shape)
        return self.op("Reshape", [x, self._int_weight(found)])

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """Permute the axes."""
        return self.op("Transpose", [x], {"perm": tuple(perm)})

    def split(self, x: str, sizes: Sequence[int], axis: int = 1) -> tuple[str, ...]:
        """The pieces of these sizes along one axis."""
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
        """A part of a tensor; an end beyond the size means the size."""
        parts = canonical_slice(self.type_of(x).shape, starts, ends, axes, steps)
        return self.op("Slice", [x, *(self._int_weight(part) for part in parts)])

    def resize(self, x: str, scale: float | Sequence[float], mode: str = "nearest") -> str:
        """The spatial axes scaled, with `mode` "nearest" or "linear"."""
        rank = len(self.type_of(x).shape) - 2
        factors = (scale,) * rank if isinstance(scale, int | float) else tuple(scale)
        scales = self.weight((rank + 2,), values=(1.0, 1.0, *factors))
        attrs: dict[str, AttrValue] = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
        if mode == "nearest":
            attrs["nearest_mode"] = "floor"
        return self.op("Resize", [x, "", scales], attrs)

    def pad(self, x: str, pads: Sequence[int], value: float = 0.0, mode: str = "constant") -> str:
        """Padding of the spatial axes, or of all axes.

        Args:
            x: what is padded.
            pads: of the spatial axes (top, left, bottom, right) or, in the order of ONNX, of all.
            value: what a "constant" padding is filled with.
            mode: "constant", "edge" or "reflect", as in ONNX.
        """
        rank = len(self.type_of(x).shape)
        full = tuple(pads)
        if len(full) == 2 * (rank - 2):
            half = rank - 2
            full = (0, 0, *full[:half], 0, 0, *full[half:])
        operands = [x, self._int_weight(full)]
        if mode == "constant":
            operands.append(self.scalar_like(x, value))
        return self.op("Pad", operands, {"mode": mode})

    def _elementwise(self, op_type: str, x: str, y: str) -> str:
        kind = self.type_of(x)
        if kind.shape == self.type_of(y).shape:
            return self.append(op_type, (x, y), {}, kind)
        return self.op(op_type, [x, y])

    def _pool(self, op_type: str, x: str, kernel: Size, stride: Size | None, pads: Pads) -> str:
        kind = self.type_of(x)
        try:
            attrs, spatial = slide(
                op_type, kind.shape, kernel, kernel if stride is None else stride, pads
            )
        except GraphError as error:
            name = f"{op_type.lower()}_{len(self._nodes)}"
            raise GraphError(f"{self._name}: {name}: {error}") from error
        return self.append(
            op_type, (x,), dict(attrs), TensorType(kind.dtype, kind.shape[:2] + spatial)
        )

    def _like(self, x: str, shape: Sequence[int]) -> str:
        return self.weight(shape, self.type_of(x).dtype)

    def _int_weight(self, values: Sequence[int]) -> str:
        return self.weight((len(values),), "int64", tuple(values))
