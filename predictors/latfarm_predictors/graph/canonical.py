"""One form of each op: attributes with their defaults filled in, ready to be hashed and compared.

Exporters write the same op in many ways: defaults left out or spelled out, negative axes, 0.01 as
the nearest float32, `auto_pad` or explicit pads. The builder and the frontends pass every node
through `canonical_attrs`, so that kernels that do the same have the same kernel id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import AttrValue, TensorType
from latfarm_predictors.graph.op_sets import POOLS, REDUCTIONS, WINDOWED

# The default values of attributes in ONNX opset 13, by op.
_DEFAULTS: dict[str, dict[str, AttrValue]] = {
    "Conv": {"group": 1},
    "ConvTranspose": {"group": 1},
    "MaxPool": {"ceil_mode": 0},
    "AveragePool": {"ceil_mode": 0, "count_include_pad": 0},
    "LpPool": {"p": 2},
    "Softmax": {"axis": -1},
    "LogSoftmax": {"axis": -1},
    "LRN": {"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "Celu": {"alpha": 1.0},
    "Selu": {"alpha": 1.673263, "gamma": 1.050701},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
    "Flatten": {"axis": 1},
    "Split": {"axis": 0},
    "Gather": {"axis": 0},
    "ArgMax": {"axis": 0, "keepdims": 1, "select_last_index": 0},
    "ArgMin": {"axis": 0, "keepdims": 1, "select_last_index": 0},
    "DepthToSpace": {"mode": "DCR"},
    "Pad": {"mode": "constant"},
    "Mod": {"fmod": 0},
    "CumSum": {"exclusive": 0, "reverse": 0},
    "LpNormalization": {"axis": -1, "p": 2},
    "Resize": {
        "mode": "nearest",
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_floor",
    },
    **{op: {"keepdims": 1} for op in sorted(REDUCTIONS)},
}

_NOTHING: dict[str, AttrValue] = {}
# Ops that are not in _DEFAULTS and whose attributes are filled in from their operands.
_COMPLETED = WINDOWED | {"Transpose"}

# These attributes change the numbers that come out, but not the work, or they are resolved into
# others (auto_pad, output_shape). They are left out of graphs.
_NEUTRAL = frozenset(
    {
        "epsilon",
        "momentum",
        "training_mode",
        "spatial",
        "is_test",
        "consumed_inputs",
        "seed",
        "storage_order",
        "allowzero",
        "noop_with_empty_axes",
        "stash_type",
        "saturate",
        "antialias",
        "keep_aspect_ratio_policy",
        "cubic_coeff_a",
        "exclude_outside",
        "extrapolation_value",
        "num_outputs",
        "output_shape",
        "auto_pad",
    }
)


def tidy_float(value: float) -> float:
    """`value` rounded to seven digits, the precision of float32.

    0.01 read from a file, which holds float32, then equals 0.01 written in Python.

    Raises:
        GraphError: the value is infinite or not a number.
    """
    if not math.isfinite(value):
        raise GraphError(f"{value} is not a finite number")
    if -1e6 < value < 1e6 and value == int(value):  # a whole number of few digits needs no rounding
        return float(int(value))
    return float(f"{value:.7g}")


def _tidy(value: AttrValue) -> AttrValue:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return tidy_float(value)
    if isinstance(value, tuple):
        for item in value:
            if type(item) is not int and isinstance(item, float):
                return tuple(tidy_float(float(item)) for item in value)
    return value


def positive_axis(axis: int, rank: int, op: str, *, end: bool = False) -> int:
    """`axis` counted from the front; with `end`, the position behind the last axis is allowed too.

    Raises:
        GraphError: there is no such axis.
    """
    found = axis + rank if axis < 0 else axis
    if not 0 <= found < rank + end:
        raise GraphError(f"{op}: axis {axis} is out of range for {rank} dimensions")
    return found


def as_ints(value: AttrValue, op: str, name: str, count: int | None = None) -> tuple[int, ...]:
    """An attribute that is a list of integers, of the given length.

    Raises:
        GraphError: the attribute is something else.
    """
    if not isinstance(value, tuple):
        raise GraphError(f"{op}: attribute {name} must be a list of integers, not {value!r}")
    plain = True
    for item in value:
        if type(item) is not int:  # bool is a subclass of int, but is written differently
            plain = False
            if not isinstance(item, int):
                raise GraphError(
                    f"{op}: attribute {name} must be a list of integers, not {value!r}"
                )
    if count is not None and len(value) != count:
        raise GraphError(f"{op}: attribute {name} needs {count} integers, not {len(value)}")
    return cast("tuple[int, ...]", value) if plain else tuple(int(item) for item in value)


def as_int(value: AttrValue, op: str, name: str) -> int:
    """An attribute that is one integer.

    Raises:
        GraphError: the attribute is something else.
    """
    if not isinstance(value, int):
        raise GraphError(f"{op}: attribute {name} must be an integer, not {value!r}")
    return value


def same_pads(
    size: int, kernel: int, stride: int, dilation: int, *, lower: bool = False
) -> tuple[int, int]:
    """Padding before and after one axis so that the output has ceil(size / stride) elements.

    ONNX's SAME_UPPER puts the odd element at the end, SAME_LOWER at the beginning.
    """
    out = -(-size // stride)
    total = max((out - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    small = total // 2
    return (total - small, small) if lower else (small, total - small)


def canonical_slice(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Starts, ends, axes and steps of a Slice in one form: axes and bounds counted from the front.

    With a negative step the bounds stay as they are: -1 then means "before the first element".

    Raises:
        GraphError: lengths differ, an axis is out of range, a step is 0.
    """
    places = tuple(range(len(starts))) if axes is None else tuple(axes)
    strides = (1,) * len(starts) if steps is None else tuple(steps)
    if not len(starts) == len(ends) == len(places) == len(strides):
        raise GraphError("Slice: starts, ends, axes and steps differ in length")
    if 0 in strides:
        raise GraphError("Slice: a step of 0")
    found: list[tuple[int, int, int, int]] = []
    for start, end, axis, step in zip(starts, ends, places, strides, strict=True):
        at = positive_axis(axis, len(shape), "Slice")
        if step > 0:
            start, end, step = slice(start, end, step).indices(shape[at])
        found.append((start, end, at, step))
    found.sort(key=lambda part: part[2])
    columns = [tuple(part[column] for part in found) for column in range(4)]
    return columns[0], columns[1], columns[2], columns[3]


def canonical_attrs(
    op: str, attrs: Mapping[str, AttrValue], types: Sequence[TensorType | None]
) -> dict[str, AttrValue]:
    """The attributes of an op in their one form: complete, and without those that do not count.

    Args:
        op: ONNX opset-13 name.
        attrs: as given; `auto_pad` is resolved into pads.
        types: types of the operands, None where an optional one is absent.

    Raises:
        GraphError: an attribute has the wrong type, length or range.
    """
    defaults = _DEFAULTS.get(op, _NOTHING)
    if not attrs and not defaults and op not in _COMPLETED:
        return {}
    found = dict(defaults)
    for name, value in attrs.items():
        if name in _NEUTRAL:
            if name == "epsilon" and op == "InstanceNormalization":
                # The epsilon of a batch norm can be moved into its variance; here there is none.
                epsilon = _tidy(value)
                if epsilon != 1e-5:
                    found[name] = epsilon
            continue
        if isinstance(value, int) and isinstance(defaults.get(name), float):
            found[name] = float(value)
        else:
            found[name] = value if type(value) is int else _tidy(value)
    first = types[0] if types else None
    rank = len(first.shape) if first is not None else 0
    if op in WINDOWED and first is not None:
        _fill_window(op, found, attrs, types)
    elif op == "Flatten":
        found["axis"] = positive_axis(as_int(found["axis"], op, "axis"), rank, op, end=True)
    elif op == "Transpose":
        perm = found.setdefault("perm", tuple(reversed(range(rank))))
        found["perm"] = tuple(positive_axis(a, rank, op) for a in as_ints(perm, op, "perm", rank))
    elif op in REDUCTIONS and op != "ReduceSum":
        axes = as_ints(found.get("axes", tuple(range(rank))), op, "axes")
        found["axes"] = tuple(sorted(positive_axis(a, rank, op) for a in axes or range(rank)))
    elif op == "Resize":
        if found["mode"] != "nearest":
            del found["nearest_mode"]
    elif op in ("QuantizeLinear", "DequantizeLinear"):
        scale = types[1] if len(types) > 1 else None
        if scale is None or not scale.shape:  # one scale for all has no axis
            found.pop("axis", None)
        else:
            axis = as_int(found.get("axis", 1), op, "axis")
            found["axis"] = positive_axis(axis, rank, op)
    elif "axis" in found:
        found["axis"] = positive_axis(as_int(found["axis"], op, "axis"), rank, op)
    return found


def _fill_window(
    op: str,
    found: dict[str, AttrValue],
    attrs: Mapping[str, AttrValue],
    types: Sequence[TensorType | None],
) -> None:
    """Fill in kernel_shape, strides, pads and dilations of a convolution or a pool."""
    first = types[0]
    if first is None or len(first.shape) < 3:
        raise GraphError(f"{op}: the input needs at least 3 dimensions (N, C, ...)")
    spatial = first.shape[2:]
    count = len(spatial)
    weight = types[1] if len(types) > 1 else None
    if op not in POOLS and weight is not None and len(weight.shape) == count + 2:
        found.setdefault("kernel_shape", weight.shape[2:])
    if "kernel_shape" not in found:
        raise GraphError(f"{op}: attribute kernel_shape is missing")
    ones = (1,) * count
    kernel = found["kernel_shape"] = as_ints(found["kernel_shape"], op, "kernel_shape", count)
    strides = found["strides"] = as_ints(found.get("strides", ones), op, "strides", count)
    dilations = found["dilations"] = as_ints(found.get("dilations", ones), op, "dilations", count)
    if min(kernel + strides + dilations) < 1:
        raise GraphError(f"{op}: kernel_shape, strides and dilations must be at least 1")
    if op in ("AveragePool", "LpPool"):  # these have no dilations in opset 13
        if max(dilations) > 1:
            raise GraphError(f"{op}: dilations came after opset 13")
        del found["dilations"]
        if op == "LpPool" and found.pop("ceil_mode", 0):
            raise GraphError(f"{op}: ceil_mode came after opset 13")
    extra = (0,) * count
    if op == "ConvTranspose":
        extra = as_ints(found.get("output_padding", extra), op, "output_padding", count)
        found["output_padding"] = extra
    auto = attrs.get("auto_pad", "NOTSET")
    if auto == "VALID":
        found["pads"] = (0,) * (2 * count)
    elif op == "ConvTranspose" and (
        "output_shape" in attrs or auto in ("SAME_UPPER", "SAME_LOWER")
    ):
        found["pads"] = _transposed_pads(found, attrs, spatial, lower=auto != "SAME_UPPER")
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        sides = [
            same_pads(n, k, s, d, lower=auto == "SAME_LOWER")
            for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True)
        ]
        found["pads"] = tuple(a for a, _ in sides) + tuple(b for _, b in sides)
    elif auto != "NOTSET":
        raise GraphError(f"{op}: unknown auto_pad {auto!r}")
    found["pads"] = as_ints(found.get("pads", (0,) * (2 * count)), op, "pads", 2 * count)


def _transposed_pads(
    found: dict[str, AttrValue],
    attrs: Mapping[str, AttrValue],
    spatial: Sequence[int],
    *,
    lower: bool,
) -> tuple[int, ...]:
    """The pads of a ConvTranspose for the wanted output size; sets `found["output_padding"]` too.

    The formula is that of the ONNX operator reference.
    """
    op, count = "ConvTranspose", len(spatial)
    kernel = as_ints(found["kernel_shape"], op, "kernel_shape")
    strides = as_ints(found["strides"], op, "strides")
    dilations = as_ints(found["dilations"], op, "dilations")
    extra = as_ints(found["output_padding"], op, "output_padding")
    wanted = as_ints(
        attrs.get("output_shape", tuple(n * s for n, s in zip(spatial, strides, strict=True))),
        op,
        "output_shape",
    )[-count:]
    if len(wanted) != count:
        raise GraphError(f"{op}: attribute output_shape needs {count} integers")
    before, after, grown = [], [], []
    for n, k, s, d, e, out in zip(spatial, kernel, strides, dilations, extra, wanted, strict=True):
        total = s * (n - 1) + e + (k - 1) * d + 1 - out
        if total < 0:  # the window never reaches that far: what is missing becomes output padding
            e, total = e - total, 0
        grown.append(e)
        small = total // 2
        before.append(total - small if lower else small)
        after.append(small if lower else total - small)
    found["output_padding"] = tuple(grown)
    return tuple(before + after)
