"""The normal form of a graph: equal for all exports of one network, whatever tool made them.

NNLQP (section 5) hashes a network to find out whether it was measured before. Tools write the same
network in many ways. `normal_form` rewrites a graph with small rules in one pass from the inputs to
the outputs; each rule replaces ops by others that are the same work. The rules are the functions in
the tables `SPELLINGS` and `PATTERNS` of the modules of this folder. docs/hashing.md lists them, and
what is part of a hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from latfarm_predictors.graph.equivalences import activations, arithmetic, linear, windows
from latfarm_predictors.graph.equivalences import layout as equivalences_layout
from latfarm_predictors.graph.equivalences import moves as equivalences_moves
from latfarm_predictors.graph.equivalences.axes import inverse, is_layout, moves
from latfarm_predictors.graph.equivalences.draft import DraftCall, GraphDraft, Lazy, Rule
from latfarm_predictors.graph.equivalences.layout import BROADCAST, UNARY, through
from latfarm_predictors.graph.equivalences.moves import constants_alone
from latfarm_predictors.graph.graph import Graph, Node, TensorType, Weight
from latfarm_predictors.graph.hash import canonical_hash

# It stands for the type of an absent result.
_UNTYPED = TensorType("float32", ())
# The largest number of ops between an input and the Transpose that changes its layout.
_PREPARATION = 8


def _joined(*tables: Mapping[str, Sequence[Rule]]) -> Mapping[str, tuple[Rule, ...]]:
    joined: dict[str, tuple[Rule, ...]] = {}
    for table in tables:
        for op, rules in table.items():
            joined[op] = (*joined.get(op, ()), *rules)
    return joined


SPELLINGS = _joined(
    equivalences_moves.SPELLINGS,
    equivalences_layout.SPELLINGS,
    arithmetic.SPELLINGS,
    activations.SPELLINGS,
    linear.SPELLINGS,
)
"""Op -> the rules that look only at types and constants."""
PATTERNS = _joined(
    activations.PATTERNS,
    arithmetic.PATTERNS,
    linear.PATTERNS,
    windows.PATTERNS,
)
"""Op -> the rules that also look at the ops before it."""


def rules() -> tuple[Rule, ...]:
    """All rules without duplicates, sorted by name."""
    found = {r for table in (SPELLINGS, PATTERNS) for each in table.values() for r in each}
    found |= {through, constants_alone}
    return tuple(sorted(found, key=lambda rule: rule.__name__))


@dataclass(frozen=True, slots=True)
class _Parts:
    """A rewritten graph as the hash reads it; unlike a Graph, it is not checked."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    weights: Mapping[str, Weight]
    types: Mapping[str, TensorType]


def network_hash_of(graph: Graph) -> str:
    """The hash of a network whatever tool exported it, as 32 hex digits. Kept on the graph.

    It is the canonical hash of the network's `normal_form`.
    """
    return graph.once(_network_hash)


def _network_hash(graph: Graph) -> str:
    return canonical_hash(_rewritten(graph))


def normal_form(graph: Graph) -> Graph:
    """Return the network in the one spelling that all exports of it share.

    The number of multiply-adds stays the same. The normal form of a normal form is itself. A graph
    with an op that lacks operands or attributes is returned unchanged. Normal forms are only
    compared; what is built and measured is the graph as it was read.
    """
    parts = _rewritten(graph)
    if parts is graph:
        return graph
    read = {tensor for node in parts.nodes for tensor in node.inputs}
    made = {tensor for node in parts.nodes for tensor in node.outputs}
    weights = {t: w for t, w in parts.weights.items() if t in read or t in parts.outputs}
    types = {t: k for t, k in parts.types.items() if t in made or t in parts.inputs}
    return Graph(graph.name, parts.inputs, parts.outputs, parts.nodes, weights, types)


def _rewritten(graph: Graph) -> Graph | _Parts:
    try:
        return _best_pass(graph)
    except (LookupError, TypeError, ValueError, ArithmeticError):
        # An op lacks operands or attributes, so no rule can be trusted: the graph stays as it is.
        return graph


def _best_pass(graph: Graph) -> _Parts:
    turned = _turned_inputs(graph)
    plain = _pass(graph, {})
    if not turned:
        return plain
    # Inputs get the other layout only if this makes Transposes disappear.
    other = _pass(graph, turned)
    return other if other.nodes and _transposes(other) < _transposes(plain) else plain


def _transposes(parts: _Parts) -> int:
    return sum(node.op == "Transpose" for node in parts.nodes)


def _turned_inputs(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Inputs that elementwise ops alone separate from a Transpose to the other layout.

    Returns:
        The permutation of that Transpose, by the name of the input.
    """
    found: dict[str, tuple[int, ...]] = {}
    for node in graph.nodes:
        if node.op != "Transpose":
            continue
        perm = node.attrs.get("perm")
        tensor = node.inputs[0]
        for _ in range(_PREPARATION):
            maker = graph.producers.get(tensor)
            if maker is None or maker.op not in _PASSED:
                break
            data = graph.data_inputs(maker)
            if not data:
                break
            tensor = data[0]
        axes = tuple(int(axis) for axis in perm) if isinstance(perm, tuple) else ()
        if tensor in graph.inputs and is_layout(axes):
            found.setdefault(tensor, axes)
    return found


_PASSED = UNARY | BROADCAST | {"Identity", "Dropout", "Pad"}


def _pass(graph: Graph, turned: Mapping[str, tuple[int, ...]]) -> _Parts:
    """Rewrite every op that the outputs need, in order, with the rules.

    Args:
        graph: what to rewrite.
        turned: inputs whose axes are to be in another order, with the permutation of each.
    """
    draft = GraphDraft(graph, SPELLINGS, through, PATTERNS)
    readers, lazy = draft.readers, draft.lazy
    kept = _read_nodes(graph.nodes, graph.outputs)
    for tensor in graph.outputs:
        readers[tensor] = 1
    for node in kept:
        for tensor in dict.fromkeys(node.inputs):
            if tensor in readers:
                readers[tensor] += 1
            else:
                readers[tensor] = 1
    inputs = list(graph.inputs)
    for tensor, perm in turned.items():
        kind = graph.types[tensor]
        base = draft.fresh(tensor)
        draft.types[base] = TensorType(kind.dtype, tuple(kind.shape[axis] for axis in perm))
        lazy[tensor] = Lazy(base, kind.shape, inverse(perm))
        readers[base] = readers.pop(tensor, 0)
        inputs[inputs.index(tensor)] = base
    instead: dict[str, str] = {}
    for node in kept:
        _remake(draft, node, instead)
    outputs = _outputs(draft, graph, inputs, instead)
    nodes = _read_nodes(tuple(draft.made.values()), outputs)
    return _Parts(tuple(inputs), outputs, tuple(nodes), draft.weights, draft.types)


def _read_nodes(nodes: Sequence[Node], outputs: Sequence[str]) -> Sequence[Node]:
    """The nodes that the outputs need."""
    wanted = set(outputs).union(*[node.inputs for node in nodes])
    if not any(wanted.isdisjoint(node.outputs) for node in nodes):
        return nodes  # every node has a reader, so every node leads to an output
    wanted = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    kept.reverse()
    return kept


def _remake(draft: GraphDraft, node: Node, instead: dict[str, str]) -> None:
    """Rewrite one op of the graph.

    Args:
        draft: the graph being rewritten.
        node: the op.
        instead: for each tensor that was replaced, the name of what replaces it; is extended.
    """
    readers, lazy = draft.readers, draft.lazy
    inputs = node.inputs
    waking = _WAKING.get(node.op)
    if waking is not None and not lazy and instead.keys().isdisjoint(inputs):
        maker, known = draft.makers.get(inputs[0]), inputs[0] in draft.weights
        if not known and inputs[-1] and (maker is None or maker.op not in waking):
            draft.keep(node)
            return
    if instead and not instead.keys().isdisjoint(inputs):
        inputs = tuple([instead.get(tensor, tensor) for tensor in inputs])
    if inputs and not inputs[-1]:
        inputs = _trimmed(inputs)
    for tensor in dict.fromkeys(node.inputs):
        now = instead.get(tensor, tensor)
        readers[draft.root(now) if lazy else now] -= 1
    outs = node.outputs
    if len(outs) > 1:
        outs = _trimmed([tensor if readers.get(tensor) else "" for tensor in outs])
        if "" in outs:
            outs = node.outputs[: len(outs)]
    types = [draft.types[tensor] if tensor else _UNTYPED for tensor in outs]
    call = DraftCall(node.op, inputs, types, node.attrs, outs, node.name, node)
    made = constants_alone(draft, call) if inputs and inputs[0] in draft.weights else None
    if made is None:
        made = draft.add(call)
    if made == outs:
        return
    for old, new in zip(outs, made, strict=True):
        if old == new:
            continue
        instead[old] = new
        base = draft.root(new)
        readers[base] = readers.get(base, 0) + readers.pop(old, 0)


# The most frequent ops. Their rules apply only if one of these ops makes their first operand.
_WAKING: Mapping[str, frozenset[str]] = {
    "Conv": frozenset({"Pad"}),
    "Relu": frozenset({"Clip", "Relu"}),
    "Sigmoid": frozenset(),
}


def _trimmed(names: Sequence[str]) -> tuple[str, ...]:
    """The names without the absent (empty) ones at the end."""
    count = len(names)
    while count and not names[count - 1]:
        count -= 1
    return tuple(names[:count])


def _turns(later: Lazy) -> bool:
    """Whether it is a change between channels-first and channels-last that moves data."""
    perm = later.perm
    return perm is not None and is_layout(perm) and moves(perm, later.shape)


def _outputs(
    draft: GraphDraft, graph: Graph, inputs: Sequence[str], instead: Mapping[str, str]
) -> tuple[str, ...]:
    """The outputs of the rewritten graph; a Transpose to the other layout at the end is dropped."""
    found: list[str] = []
    for tensor in graph.outputs:
        now = instead.get(tensor, tensor)
        later = draft.lazy.get(now)
        if later is None:
            found.append(now)
        elif _turns(later) and later.base not in inputs:
            found.append(later.base)
        else:
            found.append(draft.concrete(now))
    return tuple(dict.fromkeys(found))
