"""In which order a tensor of the Graph has the axes of its tensor in the file.

TFLite stores images channels-last (N, H, W, C), and a Graph has them channels-first. An order says,
for each axis of the Graph's tensor, which axis of the file's tensor it is. So a transpose in the
file only changes an order, and a node is added where an op needs its operand in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

Order = tuple[int, ...]

IMAGE: Order = (0, 3, 1, 2)
"""The order of an image: the file's (N, H, W, C) as (N, C, H, W)."""


def plain(rank: int) -> Order:
    """The order of a tensor whose axes are those of the file."""
    return tuple(range(rank))


def ordered(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """A shape of the file as the Graph's tensor has it."""
    return tuple(shape[axis] for axis in order)


def unordered(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """The file's shape of a tensor that has this shape in the Graph."""
    found = [0] * len(order)
    for axis, size in zip(order, shape, strict=True):
        found[axis] = size
    return tuple(found)


def same_sequence(first: Order, second: Order, shape: Sequence[int]) -> bool:
    """Whether two orders differ in axes of size 1 alone, so that a view leads to the other.

    Args:
        first: an order.
        second: another order of the same axes.
        shape: the file's shape.
    """
    left, right = ([axis for axis in order if shape[axis] > 1] for order in (first, second))
    return left == right


def without(order: Order, axes: Sequence[int]) -> Order:
    """The order of what is left when some axes of the file's tensor are removed."""
    left = [axis for axis in range(len(order)) if axis not in axes]
    return tuple(left.index(axis) for axis in order if axis in left)


def groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of axes that a reshape splits and merges.

    Args:
        source: the file's shape before the reshape.
        target: its shape after it, of as many elements.

    Returns:
        For each group, its axes before and after, without axes of size 1.
    """
    found: list[tuple[list[int], list[int]]] = []
    left = [axis for axis, size in enumerate(source) if size != 1]
    right = [axis for axis, size in enumerate(target) if size != 1]
    while left and right:
        before, after = [left.pop(0)], [right.pop(0)]
        products = [source[before[0]], target[after[0]]]
        while products[0] != products[1]:
            smaller = 0 if products[0] < products[1] else 1
            axes, shape, part = ((left, source, before), (right, target, after))[smaller]
            if not axes:
                break
            part.append(axes.pop(0))
            products[smaller] *= shape[part[-1]]
        found.append((before, after))
    return found


def reshaped(source: Sequence[int], target: Sequence[int], order: Order) -> tuple[Order, Order]:
    """The order that an operand of a reshape needs, and the order of the result.

    Groups of axes stay where they are. Only axes of one group must be beside each other, in the
    order of the file, because the reshape merges and splits them. An axis of size 1 of the result
    stays behind the axis that is before it in the file. Where the operand must be transposed anyway
    and the result is no image, both have the order of the file.

    Args:
        source: the file's shape before the reshape.
        target: its shape after it.
        order: the order of the operand.
    """
    parts = groups(source, target)
    place = {axis: at for at, axis in enumerate(order)}
    parts.sort(key=lambda part: min((place[axis] for axis in part[0]), default=-1))
    units = [axis for axis in order if source[axis] == 1]
    needed = [axis for before, _ in parts for axis in before]
    made: list[int] = []
    for _, after in parts:
        for axis in after:
            made.append(axis)
            while made[-1] + 1 < len(target) and target[made[-1] + 1] == 1:
                made.append(made[-1] + 1)
    first = [axis for axis in range(len(target)) if axis not in made]
    found = (*units, *needed), (*first, *made)
    if same_sequence(order, found[0], source) or found[1] == IMAGE:
        return found
    return plain(len(source)), plain(len(target))
