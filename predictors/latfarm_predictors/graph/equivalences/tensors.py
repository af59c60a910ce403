"""Types and constants of a graph being rewritten."""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_predictors.graph.canonical import tidy_float
from latfarm_predictors.graph.graph import Graph, TensorType, Weight


class Tensors:
    """Types of tensors, and constants by name. Rules look them up and add new ones."""

    def __init__(self, graph: Graph) -> None:
        self.types: dict[str, TensorType] = dict(graph.types)
        self.weights: dict[str, Weight] = dict(graph.weights)
        self._count = 0
        self._constants: dict[object, str] = {}
        self._origins: dict[str, str] = {}

    def type_of(self, tensor: str) -> TensorType:
        """Type of any tensor, lazy tensors and weights included."""
        found = self.types.get(tensor)
        return self.weights[tensor].type if found is None else found

    def scalar(self, tensor: str) -> float | None:
        """The value of a constant with one known value, else None."""
        weight = self.weights.get(tensor)
        if weight is None or weight.values is None or len(weight.values) != 1:
            return None
        return float(weight.values[0])

    def values(self, tensor: str) -> tuple[int, ...] | None:
        """The values of a constant of known integers, else None."""
        weight = self.weights.get(tensor)
        if weight is None or weight.values is None:
            return None
        return tuple(int(value) for value in weight.values)

    def number(self, value: float, dtype: str) -> str:
        """The name of a constant scalar of this value."""
        whole = not dtype.startswith("float")
        kept = int(value) if whole else tidy_float(float(value))
        return self._constant((kept, dtype), Weight(TensorType(dtype, ()), (kept,)))

    def ints(self, values: Sequence[int]) -> str:
        """The name of a constant list of these integers."""
        kept = tuple(values)
        return self._constant(kept, Weight(TensorType("int64", (len(kept),)), kept))

    def floats(self, values: Sequence[float]) -> str:
        """The name of a constant list of these numbers."""
        kept = tuple(tidy_float(float(value)) for value in values)
        kind = TensorType("float32", (len(kept),))
        return self._constant((kept, "float32"), Weight(kind, kept))

    def like(self, weight: str, shape: Sequence[int]) -> str:
        """The name of a constant of unknown values that is `weight` in another shape.

        Nodes that shared the constant before share the new one: equal arguments give one name.
        """
        kind = TensorType(self.weights[weight].type.dtype, tuple(shape))
        if self.weights[weight].type == kind:
            return weight
        origin = self._origins.get(weight, weight)
        name = self._constant((origin, kind), Weight(kind))
        self._origins[name] = origin
        return name

    def noise(self, kind: TensorType) -> str:
        """The name of a new constant of unknown values."""
        name = self.fresh("weight")
        self.weights[name] = Weight(kind)
        return name

    def fresh(self, stem: str) -> str:
        """A name that no tensor has yet."""
        while True:
            self._count += 1
            name = f"{stem.lower()}~{self._count}"
            if name not in self.types and name not in self.weights:
                return name

    def _constant(self, key: object, weight: Weight) -> str:
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = self.fresh("constant")
            self.weights[name] = weight
        return name
