"""A graph being rewritten: nodes are made through rules, so that what is made is always in order.

A rule looks at one op about to be made, whose operands are already in normal form, and either
passes (None) or makes something else of it. Reshapes and Transposes are not made at once: they are
remembered (`Lazy`) and move towards the outputs until an op needs the tensor itself.
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
"""How many Reshapes and Transposes in a row are remembered before they are made."""

Made = tuple[str, ...]


@dataclass(slots=True)
class DraftCall:
    """One op about to be made.

    `types` are those of its results, `outs` the names they are to have, where they matter. `node`
    is the same op as the graph has it, to be taken as it is if nothing changes.
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
    """A tensor not made yet: `base` transposed by `perm`, or, without one, seen as `shape`.

    `base` may be lazy too. A view that only moves axes of size 1 has a `perm`: it passes what a
    Transpose passes.
    """

    base: str
    shape: tuple[int, ...]
    perm: tuple[int, ...] | None = None


Rule = Callable[["GraphDraft", DraftCall], Made | None]


class GraphDraft(Tensors):
    """Parts of a graph under way; `readers` counts the nodes still to read each tensor.

    Args:
        graph: where types and weights come from.
        spellings: by op, rules that look at types and constants alone; tried first.
        through: makes an op whose operands are lazy, or passes.
        patterns: by op, rules that look at what makes the operands; tried last.
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

    # What is known of tensors

    def free(self, tensor: str, *ops: str) -> Node | None:
        """The node of one of `ops` that makes `tensor`, if nobody reads it but the op at hand."""
        maker = self.makers.get(tensor)
        if maker is None or maker.op not in ops or self.readers.get(tensor, 0):
            return None
        return maker

    def inner(self, tensor: str, *ops: str) -> Node | None:
        """As `free`, for the operand of a node that is free itself."""
        maker = self.makers.get(tensor)
        if maker is None or maker.op not in ops or self.readers.get(tensor, 0) != 1:
            return None
        return maker

    # What makes new ones

    def make(
        self,
        op: str,
        inputs: Sequence[str],
        kind: TensorType,
        attrs: Mapping[str, AttrValue] = NO_ATTRS,
        outs: Sequence[str] = (),
        name: str = "",
    ) -> str:
        """Make an op of one result in its normal form; the tensor that holds its result."""
        return self.add(DraftCall(op, inputs, (kind,), attrs, outs, name))[0]

    def add(self, call: DraftCall) -> Made:
        """Make an op in its normal form; the tensors that hold its results."""
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
        """Take a node of the graph as it is: its operands were counted as read."""
        self.made[_key(node)] = node
        self.makers.update(dict.fromkeys(node.outputs, node))

    def append(self, node: Node) -> Made:
        """Take a node as it is; its results have their types."""
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
        """Unmake a node that nobody reads, or reads any more."""
        del self.made[_key(node)]
        for tensor in node.outputs:
            self.makers.pop(tensor, None)
        for tensor in dict.fromkeys(node.inputs):
            self.readers[tensor] -= 1
        return node

    def own_matrix(self, node: Node) -> None:
        """Give a linear layer a matrix that no other layer reads: its values are to change."""
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
        """A tensor that is really there: a lazy one is made, once."""
        lazy = self.lazy.get(tensor)
        if lazy is None:
            return tensor
        found = self._concrete.get(lazy)
        if found is not None:
            return found
        base = self.concrete(lazy.base)
        if lazy.perm is None or not moves(lazy.perm, lazy.shape):
            # A scalar's shape would be a constant without elements.
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
        """What is there of a tensor: itself, or what a lazy one will be made from."""
        lazy = self.lazy.get(tensor)
        while lazy is not None:
            tensor = lazy.base
            lazy = self.lazy.get(tensor)
        return tensor

    def view(self, x: str, shape: tuple[int, ...]) -> str:
        """`x` seen as another shape."""
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
        """`x` with its axes in another order."""
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
    """The first result that is there."""
    return node.outputs[0] or next(tensor for tensor in node.outputs if tensor)
