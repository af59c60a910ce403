"""Forms of views, layouts, windows and resizing, for tests of equivalences."""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_predictors.testing.spellings import (
    Spelling,
    chain,
)

LAST = (0, 2, 3, 1)
FIRST = (0, 3, 1, 2)


def turn(*perm: int) -> Spelling:
    return lambda b, x: b.transpose(x, perm)


def reshape(*shape: int) -> Spelling:
    return lambda b, x: b.reshape(x, shape)


def island(inside: Spelling) -> Spelling:
    """An op between two Transposes, as a converter from NHWC leaves it."""
    return chain(turn(*LAST), inside, turn(*FIRST))


def axes(op: str, *places: int) -> Spelling:
    return lambda b, x: b.op(op, [x, b.weight((len(places),), "int64", places)])


def mean(*places: int, keep: bool = True, op: str = "ReduceMean") -> Spelling:
    return lambda b, x: b.op(op, [x], {"axes": places, "keepdims": int(keep)})


def pool(op: str, kernel: int, stride: int, pads: Sequence[int], **attrs: int) -> Spelling:
    window = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": tuple(pads)}
    return lambda b, x: b.op(op, [x], {**window, **attrs})


def pad(*pads: int, value: float = 0.0, mode: str = "constant") -> Spelling:
    return lambda b, x: b.pad(x, pads, value, mode)


def conv(pads: int | Sequence[int]) -> Spelling:
    return lambda b, x: b.conv(x, 8, 3, 2, pads)


def resize(rule: str, mode: str = "nearest", nearest: str = "", scale: float = 2.0) -> Spelling:
    attrs = {"mode": mode, "coordinate_transformation_mode": rule}
    attrs |= {"nearest_mode": nearest} if nearest else {}
    return lambda b, x: b.op("Resize", [x, "", b.weight((4,), values=(1, 1, scale, scale))], attrs)


def resize_to(*sizes: int) -> Spelling:
    attrs = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return lambda b, x: b.op("Resize", [x, "", "", b.weight((4,), "int64", sizes)], attrs)
