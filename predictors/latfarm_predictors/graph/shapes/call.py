"""What shape inference knows of one op, and how its rules ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.canonical import as_int, as_ints
from latfarm_predictors.graph.graph import AttrValue, TensorType

Values = tuple[int, ...] | tuple[float, ...]


@dataclass(
    slots=True
)  # not frozen: one is made for every node, and a frozen one takes four times as long
class ShapeCall:
    """One op whose results get their types.

    Attributes:
        op: ONNX name.
        types: of the operands; None for an absent operand.
        values: of the operands where they are known constants, else None.
        attrs: canonical attributes.
        outputs: number of results.
    """

    op: str
    types: Sequence[TensorType | None]
    values: Sequence[Values | None]
    attrs: Mapping[str, AttrValue]
    outputs: int

    def type(self, index: int) -> TensorType:
        """Type of a required operand."""
        found = self.types[index] if index < len(self.types) else None
        if found is None:
            raise GraphError(f"{self.op}: operand {index} is missing")
        return found

    def has(self, index: int) -> bool:
        """Whether an optional operand is present."""
        return index < len(self.types) and self.types[index] is not None

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """Values of an operand that must be a constant list of integers."""
        found = self.values[index] if index < len(self.values) else None
        if found is None:
            raise GraphError(f"{self.op}: {what} must be a constant")
        return tuple(int(value) for value in found)

    def attr_ints(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        found = self.attrs.get(name)
        return as_ints(self.attr(name) if found is None else found, self.op, name)

    def attr_int(self, name: str) -> int:
        """An attribute that is an integer."""
        found = self.attrs.get(name)
        return found if type(found) is int else as_int(self.attr(name), self.op, name)

    def attr(self, name: str) -> AttrValue:
        """A required attribute."""
        if name not in self.attrs:
            raise GraphError(f"{self.op}: attribute {name} is missing")
        return self.attrs[name]


Rule = Callable[[ShapeCall], tuple[TensorType, ...]]
"""Types of the results of an op; raises GraphError where its operands do not fit."""


def broadcast(op: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape to which shapes are broadcast, by the rules of numpy.

    Raises:
        GraphError: the shapes cannot be broadcast to one.
    """
    found = tuple(shapes[0])
    for shape in shapes[1:]:
        other = tuple(shape)
        if other == found:
            continue
        short = len(found) - len(other)
        if short > 0:
            other = (1,) * short + other
        elif short < 0:
            found = (1,) * -short + found
        if any(a != b and a != 1 and b != 1 for a, b in zip(found, other, strict=True)):
            texts = " and ".join(str(list(one)) for one in shapes)
            raise GraphError(f"{op}: shapes {texts} do not broadcast")
        found = tuple([b if a == 1 else a for a, b in zip(found, other, strict=True)])
    return found
