"""Permutations of axes as the op Transpose has them: axis `i` of the result is axis `perm[i]`."""

from __future__ import annotations

from collections.abc import Sequence

Perm = tuple[int, ...]


def inverse(perm: Sequence[int]) -> Perm:
    """The permutation that undoes `perm`."""
    return tuple(sorted(range(len(perm)), key=lambda axis: perm[axis]))


def is_layout(perm: Sequence[int]) -> bool:
    """Whether the permutation changes channels-first to channels-last or the reverse."""
    axes = tuple(range(len(perm)))
    if len(axes) < 3:
        return False
    return tuple(perm) in ((0, *axes[2:], 1), (0, axes[-1], *axes[1:-1]))


def as_turn(given: Sequence[int], shape: Sequence[int]) -> Perm | None:
    """The permutation that equals a Reshape which only moves axes of size 1.

    None if the Reshape does something else.
    """
    if len(given) != len(shape) or [n for n in given if n > 1] != [n for n in shape if n > 1]:
        return None
    ones = iter([axis for axis, size in enumerate(given) if size == 1])
    others = iter([axis for axis, size in enumerate(given) if size > 1])
    return tuple([next(ones) if size == 1 else next(others) for size in shape])


def plain_turn(perm: Sequence[int], given: Sequence[int]) -> Perm:
    """Return the permutation with the same effect on `given` that keeps axes of size 1 in order."""
    ones = iter([axis for axis, size in enumerate(given) if size == 1])
    return tuple([next(ones) if given[axis] == 1 else axis for axis in perm])


def moves(perm: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a Transpose with this result shape moves data; axes of size 1 hold none."""
    real = [axis for axis, size in zip(perm, shape, strict=True) if size > 1]
    return real != sorted(real)
