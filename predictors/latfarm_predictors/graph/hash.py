"""The canonical hash of a graph: equal for graphs that differ only in names and order.

It extends the hash of NNLQP (section 5), H_v = h(attributes, successors): each node is hashed with
what it is computed from as well as with what reads it, so that a shared node, input or matrix
differs from its duplicate. Positions of operands, types and the batch are part of the hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Protocol

from latfarm_predictors.graph.graph import AttrValue, Graph, Node, TensorType, Weight
from latfarm_predictors.graph.op_sets import COMMUTATIVE

MARK_BYTES = 16
"""Length in bytes of every intermediate digest and of the hash: 128 bits."""

_digest: Callable[[bytes], blake2b] = partial(blake2b, digest_size=MARK_BYTES)
# The bytes of small numbers: positions of operands and results, and lengths of lists.
_PLACES = tuple(index.to_bytes(4, "big") for index in range(256))
_ABSENT = bytes(MARK_BYTES)
_ABSENT_OPERAND = _ABSENT + _PLACES[0]
_GIVEN_OUT = b"given out".ljust(MARK_BYTES) + _PLACES[0]


class GraphParts(Protocol):
    """What the hash reads: a Graph has it, and so has a rewritten graph (`equivalences`)."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the tensors that come from outside."""
        ...

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the tensors that are results of the network."""
        ...

    @property
    def nodes(self) -> Sequence[Node]:
        """Ops in topological order."""
        ...

    @property
    def weights(self) -> Mapping[str, Weight]:
        """Constants by name; those that no node reads do not count."""
        ...

    @property
    def types(self) -> Mapping[str, TensorType]:
        """Types of inputs and results."""
        ...


def hash_of(graph: Graph) -> str:
    """The canonical 128-bit hash of a graph as 32 hex digits. Kept on the graph.

    It names the form that is built and measured: kernels, requests and stored measurements go by
    it. Names, the order of nodes, inputs, outputs and weights, and the noise in weights are left
    out: they change no latency. Constants with values, element types, shapes (so the batch),
    attributes and the order of operands (but for `COMMUTATIVE` ops) are part of it.
    """
    return graph.once(_exact_hash)


def _exact_hash(graph: Graph) -> str:
    return canonical_hash(graph)


def canonical_hash(graph: GraphParts) -> str:
    """The hash of a graph, or of parts of one, as 32 hex digits; it is computed at every call.

    All digests have one length, and each list of digests is preceded by its length, so that
    different lists never become the same bytes.
    """
    weights, types = graph.weights, graph.types
    # First from inputs to outputs: the digest of what each tensor is computed from, followed by
    # its position among the results of its node.
    down: dict[str, bytes] = {"": _ABSENT_OPERAND}
    for tensor in graph.inputs:
        down[tensor] = _digest(b"input" + _type_mark(types[tensor])).digest() + _PLACES[0]
    bases: list[bytes] = []
    for node in graph.nodes:
        operands = []
        for tensor in node.inputs:
            mark = down.get(tensor)
            if mark is None:
                mark = down[tensor] = _weight_mark(weights[tensor])
            operands.append(mark)
        if node.op in COMMUTATIVE:
            operands.sort()
        made = [_type_mark(types[tensor]) if tensor else _ABSENT for tensor in node.outputs]
        base = _digest(b"".join((_own_mark(node), *operands, *made))).digest()
        bases.append(base)
        for index, tensor in enumerate(node.outputs):
            if tensor:
                down[tensor] = base + _place(index)
    # Then from outputs to inputs: which nodes read each tensor, and at which position. The digest
    # of a node holds both directions.
    up: dict[str, list[bytes]] = {}
    for tensor in graph.outputs:
        up.setdefault(tensor, []).append(_GIVEN_OUT)
    found: list[bytes] = []
    for node in reversed(graph.nodes):
        readers = [_joined(up.get(tensor, ()) if tensor else ()) for tensor in node.outputs]
        mark = _digest(b"".join((bases.pop(), *readers))).digest()
        found.append(mark)
        fixed = node.op not in COMMUTATIVE
        for index, tensor in enumerate(node.inputs):
            if not tensor:
                continue
            reader = mark + _place(index) if fixed else mark + _PLACES[0]
            others = up.get(tensor)
            if others is None:
                up[tensor] = [reader]
            else:
                others.append(reader)
    # Each input counts once. Of the weights, matrices and convolution kernels that several nodes
    # read count, because two layers that share a weight differ from two layers with their own.
    # Vectors and scalars do not count: some exporters merge equal ones. Unread inputs do not count.
    roots = [tensor for tensor in graph.inputs if tensor in up]
    for tensor, others in up.items():
        if len(others) > 1 and tensor in weights and _is_matrix(weights[tensor].type.shape):
            roots.append(tensor)
    ends = [_digest(down[tensor] + _joined(up[tensor])).digest() for tensor in roots]
    return _digest(_joined(ends) + _joined(found)).hexdigest()


def _own_mark(node: Node) -> bytes:
    """Digest of a node by itself: op, attributes, number of operands and of results."""
    sizes = (len(node.inputs), len(node.outputs))
    try:
        return _described(node.op, *sizes, tuple(node.attrs.items()))
    except TypeError:  # an attribute is not hashable, so the cache cannot hold it
        return _described.__wrapped__(node.op, *sizes, tuple(node.attrs.items()))


@lru_cache(maxsize=8192)
def _described(
    op: str, inputs: int, outputs: int, attrs: tuple[tuple[str, AttrValue], ...]
) -> bytes:
    texts = [f"{name!r}={_text(value)}" for name, value in sorted(attrs)]
    return _digest(f"{op!r}{inputs},{outputs};{','.join(texts)}".encode()).digest()


def _text(value: object) -> str:
    """The text of a value; equal values have equal texts, also 1 and 1.0."""
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(int(value)) if isinstance(value, bool) else repr(value)


@lru_cache(maxsize=8192)
def _type_mark(kind: TensorType) -> bytes:
    return _digest(f"{kind.dtype}{kind.shape}".encode()).digest()


def _weight_mark(weight: Weight) -> bytes:
    """Digest of a weight: of its type and, where the graph knows them, its values."""
    if weight.values is None:
        return _noise_mark(weight.type)
    values = f"values {_text(weight.values)}".encode()
    return _digest(_type_mark(weight.type) + values).digest() + _PLACES[0]


@lru_cache(maxsize=8192)
def _noise_mark(kind: TensorType) -> bytes:
    return _digest(_type_mark(kind) + b"noise").digest() + _PLACES[0]


def _joined(marks: Sequence[bytes]) -> bytes:
    """The bytes of a list of digests whose order does not matter."""
    if len(marks) > 1:
        return _place(len(marks)) + b"".join(sorted(marks))
    return _PLACES[1] + marks[0] if marks else _PLACES[0]


def _place(index: int) -> bytes:
    return _PLACES[index] if index < len(_PLACES) else index.to_bytes(4, "big")


def _is_matrix(shape: Sequence[int]) -> bool:
    """Whether more than one axis has more than one element."""
    return sum(size > 1 for size in shape) > 1
