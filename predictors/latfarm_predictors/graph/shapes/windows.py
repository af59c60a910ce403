"""Shape inference of ops that slide a window over a map, and of global pools."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import TensorType
from latfarm_predictors.graph.shapes.call import Rule, ShapeCall


def _conv(call: ShapeCall) -> tuple[TensorType, ...]:
    x, w = call.type(0), call.type(1)
    group = call.attr_int("group")
    kernel = call.attr_ints("kernel_shape")
    if len(w.shape) != len(x.shape):
        raise GraphError(f"{call.op}: weight {list(w.shape)} does not fit input {list(x.shape)}")
    if w.shape[2:] != kernel:
        raise GraphError(f"{call.op}: weight {list(w.shape)} is not a {list(kernel)} kernel")
    if group < 1 or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise GraphError(
            f"{call.op}: weight {list(w.shape)} in {group} groups does not fit"
            f" {x.shape[1]} channels"
        )
    if call.has(2) and call.type(2).shape != (w.shape[0],):
        raise GraphError(f"{call.op}: the bias must have {w.shape[0]} elements")
    return (TensorType(x.dtype, (x.shape[0], w.shape[0], *_window(call, ceil=False))),)


def _conv_transpose(call: ShapeCall) -> tuple[TensorType, ...]:
    x, w = call.type(0), call.type(1)
    group, pads = call.attr_int("group"), call.attr_ints("pads")
    if len(w.shape) != len(x.shape) or w.shape[0] != x.shape[1] or group < 1:
        raise GraphError(f"{call.op}: weight {list(w.shape)} does not fit input {list(x.shape)}")
    if x.shape[1] % group:
        raise GraphError(f"{call.op}: {x.shape[1]} channels do not divide into {group} groups")
    count = len(x.shape) - 2
    out = [
        s * (n - 1) + e + (k - 1) * d + 1 - pads[axis] - pads[axis + count]
        for axis, (n, k, s, d, e) in enumerate(
            zip(
                x.shape[2:],
                call.attr_ints("kernel_shape"),
                call.attr_ints("strides"),
                call.attr_ints("dilations"),
                call.attr_ints("output_padding"),
                strict=True,
            )
        )
    ]
    return (TensorType(x.dtype, (x.shape[0], w.shape[1] * group, *out)),)


def _pool(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    ceil = bool(call.attrs.get("ceil_mode", 0))
    made = TensorType(x.dtype, x.shape[:2] + _window(call, ceil=ceil))
    return (made, TensorType("int64", made.shape)) if call.op == "MaxPool" else (made,)


def _global_pool(call: ShapeCall) -> tuple[TensorType, ...]:
    x = call.type(0)
    if len(x.shape) < 3:
        raise GraphError(f"{call.op}: the input needs at least 3 dimensions (N, C, ...)")
    return (TensorType(x.dtype, x.shape[:2] + (1,) * (len(x.shape) - 2)),)


def _window(call: ShapeCall, *, ceil: bool) -> tuple[int, ...]:
    """Spatial sizes of the result of a sliding window."""
    spatial = call.type(0).shape[2:]
    pads, count = call.attr_ints("pads"), len(spatial)
    kernel, strides = call.attr_ints("kernel_shape"), call.attr_ints("strides")
    dilations = call.attr_ints("dilations") if "dilations" in call.attrs else (1,) * count
    return _slid(call.op, spatial, kernel, strides, dilations, pads, ceil)


@lru_cache(
    maxsize=4096
)  # few different ones: networks differ in channels much more than in maps and windows
def _slid(
    op: str,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[int, ...],
    ceil: bool,
) -> tuple[int, ...]:
    out: list[int] = []
    ends = zip(pads[: len(spatial)], pads[len(spatial) :], strict=True)
    for n, k, s, d, (before, after) in zip(spatial, kernel, strides, dilations, ends, strict=True):
        room = n + before + after - ((k - 1) * d + 1)
        if room < 0:
            raise GraphError(f"{op}: kernel {k} is larger than its padded input {n}")
        size = (-(-room // s) if ceil else room // s) + 1
        # A window may not start in the padding behind the end (as in ONNX and PyTorch).
        if ceil and (size - 1) * s >= n + before:
            size -= 1
        out.append(size)
    return tuple(out)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
}
