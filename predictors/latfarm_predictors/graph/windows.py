"""Sliding windows of convolutions and pools: canonical attributes and sizes of results.

Networks differ in their channels much more than in the sizes of maps, kernels and strides, so the
results for a window and a size are cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.canonical import canonical_attrs, same_pads
from latfarm_predictors.graph.graph import AttrValue, TensorType
from latfarm_predictors.graph.shapes import infer

Size = int | Sequence[int]
"""One number for all spatial axes, or one for each."""
Pads = Literal["same", "valid"] | int | Sequence[int]
"""Padding: "same" (the result has the size of the input divided by the stride), "valid" (none), one
number for all sides, or in the order of ONNX one for each side: all begins, then all ends."""


def spread(value: Size, count: int) -> tuple[int, ...]:
    """One integer for each of `count` axes: a single number is repeated.

    Raises:
        GraphError: there are more or fewer numbers than axes, or one is no integer.
    """
    if isinstance(value, int):
        return (int(value),) * count
    found = tuple(value)
    if len(found) != count:
        raise GraphError(f"{list(found)} should have {count} numbers")
    for size in found:
        if type(size) is not int:  # the cache below would take 3.0 for 3
            raise GraphError(f"{list(found)} should be whole numbers")
    return found


def spatial_axes(shape: Sequence[int]) -> int:
    """Number of axes that a window slides over.

    Raises:
        GraphError: the tensor has no spatial axes: it is not (N, C, ...).
    """
    if len(shape) < 3:
        raise GraphError(f"no spatial axes to slide over in shape {list(shape)}")
    return len(shape) - 2


def padding(
    pads: Pads,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[int, ...]:
    """The attribute pads of ONNX: the beginnings of all axes, then the ends of all axes."""
    if pads == "same":
        sides = [same_pads(*one) for one in zip(spatial, kernel, strides, dilations, strict=True)]
        return tuple(a for a, _ in sides) + tuple(b for _, b in sides)
    if pads == "valid":
        return (0,) * (2 * len(spatial))
    return spread(pads, 2 * len(spatial))


def slide(
    op: str, shape: tuple[int, ...], kernel: Size, stride: Size, pads: Pads, dilation: Size = 1
) -> tuple[Mapping[str, AttrValue], tuple[int, ...]]:
    """Canonical attributes of `op` on a tensor of `shape`, and the spatial sizes of its result.

    The mapping is shared between calls: copy it before you change it.

    Raises:
        GraphError: the window does not fit the map, or its numbers are not valid.
    """
    rank = spatial_axes(shape)
    return _slide(
        op,
        shape[2:],
        spread(kernel, rank),
        spread(stride, rank),
        pads if isinstance(pads, str) else spread(pads, 2 * rank),
        spread(dilation, rank),
    )


@lru_cache(maxsize=4096)
def _slide(
    op: str,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: Literal["same", "valid"] | tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[Mapping[str, AttrValue], tuple[int, ...]]:
    if min(kernel + strides + dilations) < 1:
        raise GraphError(f"{op}: kernel, stride and dilation must be at least 1")
    types = [TensorType("float32", (1, 1, *size)) for size in (spatial, kernel)]
    if op != "Conv":
        types.pop()
    filled = padding(pads, spatial, kernel, strides, dilations)
    wanted: dict[str, AttrValue] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": filled,
        "dilations": dilations,
    }
    attrs = canonical_attrs(op, wanted, types)
    made = infer(op, types, [None] * len(types), attrs)[0]
    return attrs, made.shape[2:]
