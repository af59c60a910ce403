"""A graph being rewritten: every node that is added passes the rules first.

A rule looks at one op that is about to be added, whose operands are already in normal form. It
returns None if it does not apply; otherwise it adds something else in place of the op and returns
the names of the results. Reshapes and Transposes are not added at once: they are remembered
(`Lazy`) and move towards the outputs until an op needs the tensor itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from latfarm_predictors.graph.equivalences.axes import as_turn, moves, plain_turn
from latfarm_predictors.graph.equivalences.tensors import Tensors
from latfarm_predictors.graph.graph import AttrValue, Graph, Node, TensorType

NO_ATTRS: Mapping[str, AttrValue] = {}
MAX_DEPTH = 16
"""The largest number of Reshapes and Transposes in a row that are remembered but not added."""

Made = tuple[str, ...]
"""Names of the results of an op that was added."""


@dataclass(slots=True)
class DraftCall:
    """One op that is about to be added to a GraphDraft.

    Attributes:
        op: ONNX name.
        inputs: names of its operands.
        types: types of its results.
        attrs: its attributes.
        outs: names that the results shall have; empty where any name will do.
        name: of the node; empty where any name will do.
        node: the same op in the graph that is rewritten; it is taken as it is if nothing changes.
    """

    op: str
    inputs: Sequence[str]
    types: Sequence[TensorType]
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    outs: Sequence[str] = ()
    name: str = ""
    node: Node | None = None

    @property
    def type(self) -> TensorType:
        """Type of the first result."""
        return self.types[0]


class Lazy(NamedTuple):
    """A tensor whose Reshape or Transpose is remembered but not added yet.

    A Reshape that only moves axes of size 1 has a `perm` too: it passes the ops that a Transpose
    passes.

    Attributes:
        base: the tensor that is reshaped or transposed; it may be lazy itself.
        shape: of the result.
        perm: permutation of a Transpose; None for a Reshape.
    """

    base: str
    shape: tuple[int, ...]
    perm: tuple[int, ...] | None = None


Rule = Callable[["GraphDraft", DraftCall], Made | None]
"""Rewrites an op that is about to be added; None if it does not apply."""


class GraphDraft(Tensors):
    """The nodes of a graph while it is rewritten.

    `readers` counts, for each tensor, the nodes that still have to read it.

    Args:
        graph: whose types and weights the draft starts with.
        spellings: by op, rules that look only at types and constants; they are tried first.
        through: a rule for ops with lazy operands, which moves these behind the op.
        patterns: by op, rules that look at the nodes that make the operands; they are tried last.
    """

    def __init__(
        self,
        graph: Graph,
        spellings: Mapping[str, Sequence[Rule]],
        through: Rule,
        patterns: Mapping[str, Sequence[Rule]],
    ) -> None:
        super().__init__(graph)
        self.lazy: dict[str, Lazy] = {}
        self.readers: dict[str, int] = {}
        self.made: dict[str, Node] = {}  # by first result, in order
        self.makers: dict[str, Node] = {}  # by any result
        self._spellings = spellings
        self._through = through
        self._patterns = patterns
        self._concrete: dict[Lazy, str] = {}
        self._depth: dict[str, int] = {}
        self._names: dict[Lazy, str] = {}

    def free(self, tensor: str, *ops: str) -> Node | None:
        """The node that makes `tensor`, if it is one of `ops` and only the op at hand reads it."""
        maker = self.makers.get(tensor)
        if maker is None or maker.op not in ops or self.readers.get(tensor, 0):
            return None
        return maker

    def inner(self, tensor: str, *ops: str) -> Node | None:
        """The node that makes `tensor`, if its op is one of `ops` and it has one reader so far.

        It is asked for an operand of a node that `free` has found: that node is the reader.
        """
        maker = self.makers.get(tensor)
        if maker is None or maker.op not in ops or self.readers.get(tensor, 0) != 1:
            return None
        return maker

    def make(
        self,
        op: str,
        inputs: Sequence[str],
        kind: TensorType,
        attrs: Mapping[str, AttrValue] = NO_ATTRS,
        outs: Sequence[str] = (),
        name: str = "",
    ) -> str:
        """Add an op of one result in its normal form; returns the name of the result."""
        return self.add(DraftCall(op, inputs, (kind,), attrs, outs, name))[0]

    def add(self, call: DraftCall) -> Made:
        """Add an op in its normal form; returns the names of its results."""
        for rule in self._spellings.get(call.op, ()):
            found = rule(self, call)
            if found is not None:
                return found
        if self.lazy and not self.lazy.keys().isdisjoint(call.inputs):
            found = self._through(self, call)
            if found is not None:
                return found
            call.inputs = tuple(self.concrete(tensor) for tensor in call.inputs)
        for rule in self._patterns.get(call.op, ()):
            found = rule(self, call)
            if found is not None:
                return found
        node = call.node
        if node is None or node.inputs != call.inputs or len(node.outputs) != len(call.outs):
            names = tuple(call.outs) or tuple(self.fresh(call.op) for _ in call.types)
            node = Node(call.name or names[0], call.op, tuple(call.inputs), names, call.attrs)
            self.types.update(zip(names, call.types, strict=True))
        return self.append(node)

    def keep(self, node: Node) -> None:
        """Add a node of the graph unchanged; its operands are already counted as read."""
        self.made[_key(node)] = node
        self.makers.update(dict.fromkeys(node.outputs, node))

    def append(self, node: Node) -> Made:
        """Add a node unchanged; the types of its results are known already."""
        self.made[_key(node)] = node
        makers, readers = self.makers, self.readers
        for tensor in node.outputs:
            makers[tensor] = node
        for tensor in dict.fromkeys(node.inputs):
            if tensor in readers:
                readers[tensor] += 1
            else:
                readers[tensor] = 1
        return node.outputs

    def take(self, node: Node) -> Node:
        """Remove a node whose results nobody reads any more, and return it."""
        del self.made[_key(node)]
        for tensor in node.outputs:
            self.makers.pop(tensor, None)
        for tensor in dict.fromkeys(node.inputs):
            self.readers[tensor] -= 1
        return node

    def own_matrix(self, node: Node) -> None:
        """Give a linear layer a matrix that no other layer reads: its values will change."""
        x, shared, *rest = node.inputs
        if self.readers[shared] < 2:
            return
        self.readers[shared] -= 1
        own = self.noise(self.type_of(shared))
        self.readers[own] = 1
        changed = Node(node.name, node.op, (x, own, *rest), node.outputs, node.attrs)
        self.made[_key(node)] = changed
        self.makers.update(dict.fromkeys(node.outputs, changed))

    def concrete(self, tensor: str) -> str:
        """The name of a tensor that a node makes; the ops of a lazy tensor are added, once."""
        lazy = self.lazy.get(tensor)
        if lazy is None:
            return tensor
        found = self._concrete.get(lazy)
        if found is not None:
            return found
        base = self.concrete(lazy.base)
        if lazy.perm is None or not moves(lazy.perm, lazy.shape):
            # To a scalar, a Reshape would need a constant without elements.
            op = "Reshape" if lazy.shape else "Squeeze"
            out = self.fresh(op)
            inputs = (base, self.ints(lazy.shape)) if lazy.shape else (base,)
            node = Node(out, op, inputs, (out,))
        else:
            out = self.fresh("Transpose")
            node = Node(out, "Transpose", (base,), (out,), {"perm": lazy.perm})
        self.types[out] = self.types[tensor]
        self.append(node)
        self._concrete[lazy] = out
        return out

    def root(self, tensor: str) -> str:
        """The tensor itself, or the one from which a lazy tensor will be made."""
        lazy = self.lazy.get(tensor)
        while lazy is not None:
            tensor = lazy.base
            lazy = self.lazy.get(tensor)
        return tensor

    def view(self, x: str, shape: tuple[int, ...]) -> str:
        """`x` reshaped, lazily."""
        lazy = self.lazy.get(x)
        while lazy is not None and (lazy.perm is None or not moves(lazy.perm, lazy.shape)):
            x = lazy.base
            lazy = self.lazy.get(x)
        given = self.type_of(x).shape
        if given == shape:
            return x
        turn = as_turn(given, shape)
        if turn is not None and lazy is not None:
            return self.transposed(x, turn)
        return self._later(Lazy(x, shape, turn))

    def transposed(self, x: str, perm: tuple[int, ...]) -> str:
        """`x` transposed, lazily."""
        lazy = self.lazy.get(x)
        while lazy is not None and lazy.perm is not None:
            x, perm = lazy.base, tuple([lazy.perm[axis] for axis in perm])
            lazy = self.lazy.get(x)
        given = self.type_of(x).shape
        perm = plain_turn(perm, given)
        shape = tuple([given[axis] for axis in perm])
        return self._later(Lazy(x, shape, perm)) if moves(perm, shape) else self.view(x, shape)

    def _later(self, lazy: Lazy) -> str:
        depth = self._depth.get(lazy.base, 0) + 1
        if depth > MAX_DEPTH:
            lazy, depth = lazy._replace(base=self.concrete(lazy.base)), 1
        known = self._names.get(lazy)
        if known is not None:
            return known
        name = self._names[lazy] = self.fresh("later")
        self.lazy[name] = lazy
        self._depth[name] = depth
        self.types[name] = TensorType(self.type_of(lazy.base).dtype, lazy.shape)
        return name


def _key(node: Node) -> str:
    """The name of the first result that is not absent."""
    return node.outputs[0] or next(tensor for tensor in node.outputs if tensor)
