"""Types and constants of a graph being rewritten."""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_predictors.graph.canonical import tidy_float
from latfarm_predictors.graph.graph import Graph, TensorType, Weight


class Tensors:
    """Types of tensors and the constants, to which rules add."""

    def __init__(self, graph: Graph) -> None:
        self.types: dict[str, TensorType] = dict(graph.types)
        self.weights: dict[str, Weight] = dict(graph.weights)
        self._count = 0
        self._constants: dict[object, str] = {}
        self._origins: dict[str, str] = {}

    def type_of(self, tensor: str) -> TensorType:
        """Type of any tensor, lazy ones and weights included."""
        found = self.types.get(tensor)
        return self.weights[tensor].type if found is None else found

    def scalar(self, tensor: str) -> float | None:
        """The one value of a known constant, else None."""
        weight = self.weights.get(tensor)
        if weight is None or weight.values is None or len(weight.values) != 1:
            return None
        return float(weight.values[0])

    def values(self, tensor: str) -> tuple[int, ...] | None:
        """The whole numbers in a known constant, else None."""
        weight = self.weights.get(tensor)
        if weight is None or weight.values is None:
            return None
        return tuple(int(value) for value in weight.values)

    def number(self, value: float, dtype: str) -> str:
        """A known scalar."""
        whole = not dtype.startswith("float")
        kept = int(value) if whole else tidy_float(float(value))
        return self._constant((kept, dtype), Weight(TensorType(dtype, ()), (kept,)))

    def ints(self, values: Sequence[int]) -> str:
        """A known list of integers."""
        kept = tuple(values)
        return self._constant(kept, Weight(TensorType("int64", (len(kept),)), kept))

    def floats(self, values: Sequence[float]) -> str:
        """A known list of numbers."""
        kept = tuple(tidy_float(float(value)) for value in values)
        kind = TensorType("float32", (len(kept),))
        return self._constant((kept, "float32"), Weight(kind, kept))

    def like(self, weight: str, shape: Sequence[int]) -> str:
        """The same constant in another shape or order of its elements; one whose values are noise.

        What shared the constant before shares it afterwards.
        """
        kind = TensorType(self.weights[weight].type.dtype, tuple(shape))
        if self.weights[weight].type == kind:
            return weight
        origin = self._origins.get(weight, weight)
        name = self._constant((origin, kind), Weight(kind))
        self._origins[name] = origin
        return name

    def noise(self, kind: TensorType) -> str:
        """A new constant of which the type alone is known."""
        name = self.fresh("weight")
        self.weights[name] = Weight(kind)
        return name

    def fresh(self, stem: str) -> str:
        """A name that no tensor has."""
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
