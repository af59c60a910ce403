"""Composites: groups of ops of opset 13 that are one op, as LayerNorm is nine and Gelu five.

Exporters write a layer norm, a Gelu or an attention as several ops, and runtimes put them together
again: onnxruntime runs a decomposed layer norm as one kernel, OpenVINO a whole attention. A
composite is found by ops and wiring alone, so that networks that differ in sizes only have the same
ones. None of its inner tensors is read outside, so it is convex.

A scale or a bias behind a norm is no part of it: runtimes differ there, and fusion rules say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.op_sets import RESHAPES

LAYER_NORM, RMS_NORM, GELU, ATTENTION = "LayerNorm", "RMSNorm", "Gelu", "Attention"
"""Names of the composites in kernel types and in fusion rules."""
COMPOSITES = (ATTENTION, GELU, LAYER_NORM, RMS_NORM)
"""All names of composites, sorted."""
UNITS = (GELU, LAYER_NORM, RMS_NORM)
"""Composites that networks are always cut out as by a new characterisation.

Nothing is lost where a runtime runs them as several kernels: the time of all together is measured.
An attention is cut out as one kernel only where a profile shows it as one, because the times of its
parts tell more."""

_MARKS = frozenset({"ReduceMean", "Erf", "Tanh", "Softmax"})
"""A graph without any of these ops has no composite."""
_SCALES = frozenset({"Mul", "Div"})
_MOST_SCALES = 8
"""The largest number of scalings, masks and views between the products of an attention."""


@dataclass(frozen=True, slots=True)
class Composite:
    """Some nodes of a graph that are one op together.

    Attributes:
        name: one of `COMPOSITES`.
        nodes: indices of its nodes, ascending; the first one reads what the composite reads.
        source: the activation that it reads first.
        result: the tensor that it makes.
        around: indices of transposes that nothing else needs, before and behind an attention: a
            runtime that runs the attention as one kernel reads and writes through them.
        inner: of a layer norm, what is left of it where the mean is taken off in another kernel: a
            root mean square norm. A kernel's own graph shows nothing else.
    """

    name: str
    nodes: tuple[int, ...]
    source: str
    result: str
    around: tuple[int, ...] = ()
    inner: Composite | None = None

    @property
    def joined(self) -> tuple[int, ...]:
        """Indices of all nodes of the kernel that runs the composite, ascending."""
        return tuple(sorted((*self.nodes, *self.around)))


def composites_of(graph: Graph) -> tuple[Composite, ...]:
    """The composites of a graph in the order of their first nodes. Kept on the graph."""
    return graph.once(_composites)


def _composites(graph: Graph) -> tuple[Composite, ...]:
    if _MARKS.isdisjoint([node.op for node in graph.nodes]):
        return ()
    search = _Search(graph)
    found: dict[int, Composite] = {}
    for index, node in enumerate(graph.nodes):
        composite = search.at(index) if node.op in _ANCHORS else None
        if composite is not None and found.keys().isdisjoint(composite.nodes):
            found.update(dict.fromkeys(composite.nodes, composite))
    return tuple(sorted(dict.fromkeys(found.values()), key=lambda each: each.nodes[0]))


def within(composites: Iterable[Composite], members: Iterable[int]) -> list[Composite]:
    """The composites that lie wholly within some nodes, as the nodes' own graph would show them."""
    own = frozenset(members)
    found = [each if own.issuperset(each.nodes) else each.inner for each in composites]
    return [each for each in found if each is not None and own.issuperset(each.nodes)]


_ANCHORS = frozenset({"Sqrt", "Erf", "Tanh", "Softmax"})
"""From a node of one of these ops, the rest of a composite is searched."""


class _Search:
    """Matches composites in a graph. All methods give None where something does not fit."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._outputs = frozenset(graph.outputs)

    def at(self, index: int) -> Composite | None:
        """The composite whose anchor is this node."""
        op = self._graph.nodes[index].op
        if op == "Sqrt":
            found = self._norm(index)
        elif op == "Softmax":
            found = self._attention(index)
        else:
            found = self._gelu(index)
        for each in (found, None if found is None else found.inner):
            if each is not None and self._is_closed(each):
                return each
        return None

    def _norm(self, root: int) -> Composite | None:
        """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon), or the same without the mean."""
        shifted = self._scalar_op(self._graph.nodes[root].inputs[0], "Add")
        if shifted is None:
            return None
        mean = self._maker(shifted[1], "ReduceMean")
        square = None if mean is None else self._maker(self._input(mean), "Pow", "Mul")
        if mean is None or square is None:
            return None
        centred = self._input(square)
        operands = self._graph.nodes[square].inputs
        if self._graph.nodes[square].op == "Mul" and set(operands) != {centred}:
            return None
        last = self._normalised(root, centred)
        if last is None:
            return None
        nodes = [shifted[0], mean, square, root, *last]
        result = self._graph.nodes[last[-1]].outputs[0]
        source = self._centred(centred)
        inner = _made(RMS_NORM, nodes, centred, result)
        if source is None:
            return inner
        whole = _made(LAYER_NORM, [*nodes, *source[1]], source[0], result)
        return replace(whole, inner=inner)

    def _normalised(self, root: int, centred: str) -> list[int] | None:
        """The nodes that divide the centred tensor by the root."""
        tensor = self._graph.nodes[root].outputs[0]
        reader = self._reader(tensor)
        if reader is None:
            return None
        node = self._graph.nodes[reader]
        if node.op == "Div" and node.inputs == (centred, tensor):
            return [reader]
        inverse = node.op == "Reciprocal" or (
            node.op == "Div" and node.inputs[1] == tensor and node.inputs[0] in self._graph.weights
        )
        product = self._reader(node.outputs[0]) if inverse else None
        if product is None or self._graph.nodes[product].op != "Mul":
            return None
        return [reader, product] if centred in self._graph.nodes[product].inputs else None

    def _centred(self, tensor: str) -> tuple[str, list[int]] | None:
        """What a tensor is the difference from the mean of, and the nodes that compute this."""
        difference = self._maker(tensor, "Sub")
        if difference is None:
            return None
        x, mean = self._graph.nodes[difference].inputs
        at = self._maker(mean, "ReduceMean")
        return (x, [difference, at]) if at is not None and self._input(at) == x else None

    def _gelu(self, anchor: int) -> Composite | None:
        """X * (erf(x / sqrt 2) + 1) / 2 and its approximation by tanh, in any order of products."""
        graph = self._graph
        inner = self._erf_operand(anchor) if graph.nodes[anchor].op == "Erf" else None
        inner = self._tanh_operand(anchor) if graph.nodes[anchor].op == "Tanh" else inner
        if inner is None:
            return None
        x, nodes = inner
        grown = self._reader(graph.nodes[anchor].outputs[0])
        if grown is None or graph.nodes[grown].op != "Add" or not self._has_weight(grown):
            return None
        nodes = [*nodes, anchor, grown]
        tensor = graph.nodes[grown].outputs[0]
        multiplied = halved = False
        while not (multiplied and halved):
            reader = self._reader(tensor)
            if reader is None or graph.nodes[reader].op not in _SCALES:
                return None
            if graph.nodes[reader].op == "Div" and graph.nodes[reader].inputs[0] != tensor:
                return None
            other = next((t for t in graph.nodes[reader].inputs if t != tensor), tensor)
            half = self._scalar_op(other, "Mul")
            if other in graph.weights and not halved:
                halved = True
            elif other == x and not multiplied:
                multiplied = True
            elif half is not None and half[1] == x and not (halved or multiplied):
                multiplied = halved = True
                nodes.append(half[0])
            else:
                return None
            nodes.append(reader)
            tensor = graph.nodes[reader].outputs[0]
        return _made(GELU, nodes, x, tensor)

    def _erf_operand(self, anchor: int) -> tuple[str, list[int]] | None:
        scaled = self._scalar_op(self._input(anchor), "Div", "Mul")
        return None if scaled is None else (scaled[1], [scaled[0]])

    def _tanh_operand(self, anchor: int) -> tuple[str, list[int]] | None:
        """The tensor x and the nodes of sqrt(2 / pi) * (x + 0.044715 x^3)."""
        graph = self._graph
        scaled = self._scalar_op(self._input(anchor), "Mul")
        total = None if scaled is None else self._maker(scaled[1], "Add")
        if scaled is None or total is None or self._has_weight(total):
            return None
        for x, cubic in (graph.nodes[total].inputs, graph.nodes[total].inputs[::-1]):
            cube = self._scalar_op(cubic, "Mul")
            power = None if cube is None else self._power_of(cube[1], x)
            if cube is not None and power is not None:
                return x, [scaled[0], total, cube[0], *power]
        return None

    def _power_of(self, tensor: str, x: str) -> list[int] | None:
        """The nodes that raise `x` to a power: a Pow, or products of x with itself."""
        at = self._maker(tensor, "Pow", "Mul")
        if at is None:
            return None
        node = self._graph.nodes[at]
        if node.op == "Pow":
            return [at] if node.inputs[0] == x and node.inputs[1] in self._graph.weights else None
        if set(node.inputs) == {x}:
            return [at]
        others = [t for t in node.inputs if t != x]
        inner = self._power_of(others[0], x) if len(others) == 1 else None
        return None if inner is None else [at, *inner]

    def _attention(self, softmax: int) -> Composite | None:
        """softmax(query @ key * scale + mask) @ value, with scale and mask as far as there are."""
        graph = self._graph
        tensor, nodes = self._input(softmax), [softmax]
        scores: int | None = None
        for _ in range(_MOST_SCALES):
            maker = graph.positions.get(tensor)
            if maker is None:
                return None
            op = graph.nodes[maker].op
            nodes.append(maker)
            if op == "MatMul":
                scores = maker
                break
            if op in RESHAPES:
                tensor = self._input(maker)
            elif op in _SCALES or op in ("Add", "Where"):
                tensor = self._towards_product(maker) or ""
            else:
                return None
        product = self._reader(graph.nodes[softmax].outputs[0])
        if scores is None or product is None or graph.nodes[product].op != "MatMul":
            return None
        if graph.nodes[product].inputs[0] != graph.nodes[softmax].outputs[0]:
            return None
        if self._has_weight(scores) or self._has_weight(product):
            return None
        query, key = graph.nodes[scores].inputs
        around = [self._lone_transpose(t) for t in (query, key, graph.nodes[product].inputs[1])]
        result = graph.nodes[product].outputs[0]
        behind = self._reader(result)
        if behind is not None and graph.nodes[behind].op == "Transpose":
            around.append(behind)
        turns = tuple(dict.fromkeys(at for at in around if at is not None))
        return _made(ATTENTION, [*nodes, product], query, result, turns)

    def _towards_product(self, index: int) -> str | None:
        """The operand of a scaling or a mask through which a product of two activations comes."""
        graph = self._graph
        for tensor in graph.nodes[index].inputs:
            at = graph.positions.get(tensor)
            if at is None:
                continue
            if graph.nodes[at].op == "MatMul" and not self._has_weight(at):
                return tensor
        data = [t for t in graph.data_inputs(graph.nodes[index]) if t in graph.positions]
        return data[0] if data else None

    def _lone_transpose(self, tensor: str) -> int | None:
        at = self._maker(tensor, "Transpose")
        return at if at is not None and self._reader(tensor) is not None else None

    def _is_closed(self, found: Composite) -> bool:
        """Whether nothing outside reads an inner tensor."""
        own = frozenset(found.nodes)
        for index in own:
            for tensor in self._graph.nodes[index].outputs:
                if tensor == found.result:
                    continue
                readers = self._graph.readers.get(tensor, ())
                if tensor in self._outputs or not own.issuperset(readers):
                    return False
        return True

    def _scalar_op(self, tensor: str, *ops: str) -> tuple[int, str] | None:
        """The node that makes a tensor from an activation and a constant, and that activation."""
        at = self._maker(tensor, *ops)
        if at is None or not self._has_weight(at):
            return None
        data = self._graph.data_inputs(self._graph.nodes[at])
        return (at, data[0]) if len(data) == 1 else None

    def _maker(self, tensor: str, *ops: str) -> int | None:
        at = self._graph.positions.get(tensor)
        return at if at is not None and self._graph.nodes[at].op in ops else None

    def _reader(self, tensor: str) -> int | None:
        """The only node that reads a tensor, if the network does not give it out."""
        readers = self._graph.readers.get(tensor, ())
        return readers[0] if len(readers) == 1 and tensor not in self._outputs else None

    def _input(self, index: int) -> str:
        return self._graph.nodes[index].inputs[0]

    def _has_weight(self, index: int) -> bool:
        return any(t in self._graph.weights for t in self._graph.nodes[index].inputs)


def _made(
    name: str, nodes: Sequence[int], source: str, result: str, around: tuple[int, ...] = ()
) -> Composite:
    return Composite(name, tuple(sorted(set(nodes))), source, result, around)


def type_of(members: Sequence[int], ops: Sequence[str], inside: Sequence[Composite]) -> str:
    """The ops of a kernel joined by "+"; a composite has its name in place of its first op.

    Args:
        members: indices of the kernel's nodes, ascending.
        ops: the op of each of them.
        inside: the composites within the kernel.
    """
    first = {each.nodes[0]: each.name for each in inside}
    rest = {index for each in inside for index in each.nodes[1:]}
    named = zip(members, ops, strict=True)
    return "+".join([first.get(index, op) for index, op in named if index not in rest])
