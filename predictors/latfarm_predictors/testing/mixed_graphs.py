"""Random graphs with all ops that equivalences rewrite, and changes that do or do not matter."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import strategies as st

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import AttrValue, Graph, Node, TensorType, Weight

_LARGEST = 2000
_UNARY = ("Relu", "Sigmoid", "Tanh", "Erf", "Identity", "Dropout", "Softsign", "LeakyRelu")
_NUMBERS = (0.0, 1.0, 0.5, 2.0, 3.0, 6.0, -1.0)
_SHAPES = ((2, 4, 6, 6), (1, 6, 8), (4, 12), (1, 3, 4, 4), (2, 2, 3, 2, 4))

Step = Callable[[GraphBuilder, random.Random, str, str], str]


@st.composite
def mixed_graphs(draw: st.DrawFn, max_ops: int = 12, *, weights: bool = True) -> Graph:
    """A graph of elementwise ops, views, Transposes, cuts, pads, pools, products and batch norms.

    Its inputs and outputs are vectors, which have no layout that a rule could drop. Without
    `weights`, the values of all constants are known, so that two forms of a graph can be executed
    and compared.
    """
    rng = random.Random(draw(st.integers(0, 2**32)))
    return mixed_graph(rng, draw(st.integers(1, max_ops)), weights=weights)


def mixed_graph(rng: random.Random, ops: int, *, weights: bool = True) -> Graph:
    """One of `mixed_graphs` with about this number of ops."""
    steps = (*_PURE, *_WEIGHTED) if weights else _PURE
    b = GraphBuilder("mixed")
    live: list[str] = []
    for _ in range(rng.choice((1, 1, 2))):
        shape = rng.choice(_SHAPES)
        flat = b.input((TensorType("float32", shape).elements,))
        live.append(b.reshape(flat, shape))
    for _ in range(ops):
        x, y = rng.choice(live[-4:]), rng.choice(live)
        made = rng.choice(steps)(b, rng, x, y)
        if b.type_of(made).elements <= _LARGEST:
            live.append(made)
    ends = [live[-1], *rng.sample(live[:-1], min(len(live) - 1, rng.choice((0, 0, 1))))]
    outputs = [b.tanh(b.reshape(end, (b.type_of(end).elements,))) for end in ends]
    whole = b.build(outputs)
    needed = set(outputs)
    for node in reversed(whole.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
    nodes = tuple(node for node in whole.nodes if not needed.isdisjoint(node.outputs))
    return replace(whole, nodes=nodes, inputs=tuple(t for t in whole.inputs if t in needed))


def _number(b: GraphBuilder, rng: random.Random) -> str:
    shape = rng.choice(((), (), (1,), (1, 1)))
    return b.weight(shape, values=(rng.choice(_NUMBERS),))


def _unary(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    return b.op(rng.choice(_UNARY), [x])


def _arithmetic(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    op = rng.choice(("Add", "Sub", "Mul", "Max", "Min"))
    operands = [x, _number(b, rng)]
    return b.op(op, operands if rng.random() < 0.7 else operands[::-1])


def _divided(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    return b.div(x, b.weight((), values=(rng.choice((2.0, 6.0, 1.0, -4.0)),)))


def _clip(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    bounds = rng.choice(((0.0, 6.0), (0.0, None), (None, 1.0), (-1.0, 1.0), (0.0, 1.0)))
    names = ["" if v is None else b.weight((), values=(v,)) for v in bounds]
    return b.op("Clip", [x, *names] if names[1] else [x, names[0]])


def _hard_sigmoid(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    def known(value: float) -> str:
        return b.weight((), values=(value,))

    gate = b.clip(b.add(x, known(3.0)), 0.0, 6.0)
    form = rng.randrange(4)
    if form == 0:
        return b.div(gate, known(6.0))
    if form == 1:
        return b.div(b.mul(x, gate), known(6.0))
    if form == 2:
        return b.mul(b.mul(x, known(1 / 6)), gate)
    return b.clip(b.add(b.mul(x, known(0.2)), known(0.5)), 0.0, 1.0)


def _two(b: GraphBuilder, rng: random.Random, x: str, y: str) -> str:
    kind = b.type_of(x)
    if not kind.shape:
        return b.relu(x)
    if b.type_of(y) != kind:
        y = b.reshape(y, kind.shape) if b.type_of(y).elements == kind.elements else b.relu(x)
    op = rng.choice(("Add", "Sub", "Mul", "Max", "Min", "Sum", "Concat"))
    if op == "Concat":
        return b.concat([x, y], rng.randrange(len(kind.shape))) if kind.shape else x
    return b.op(op, [x, y] if rng.random() < 0.5 else [y, x])


def _gated(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    rank = len(b.type_of(x).shape)
    if not rank:
        return x
    axes = sorted(rng.sample(range(rank), rng.randrange(1, rank + 1)))
    return b.mul(x, b.sigmoid(b.reduce_mean(x, axes)))


def _view(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    shape = list(b.type_of(x).shape)
    form = rng.randrange(4)
    if form == 0 and len(shape) > 1:
        at = rng.randrange(len(shape) - 1)
        return b.reshape(x, [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]])
    if form == 1 and len(shape) < 5:
        at = rng.randrange(len(shape) + 1)
        return b.op("Unsqueeze", [x, b.weight((1,), "int64", (at,))])
    if form == 2 and shape:
        at = rng.randrange(len(shape))
        factor = rng.choice([n for n in range(1, shape[at] + 1) if shape[at] % n == 0])
        return b.reshape(x, [*shape[:at], factor, shape[at] // factor, *shape[at + 1 :]])
    return b.flatten(x, rng.randrange(len(shape) + 1)) if shape else x


def _transpose(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    axes = list(range(len(b.type_of(x).shape)))
    if not axes:
        return x
    if len(axes) > 2 and rng.random() < 0.6:
        perm = rng.choice(([0, *axes[2:], 1], [0, axes[-1], *axes[1:-1]]))
    else:
        perm = rng.sample(axes, len(axes))
    return b.transpose(x, perm)


def _cut(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    shape = b.type_of(x).shape
    if not shape:
        return x
    axis = rng.randrange(len(shape))
    size = shape[axis]
    form = rng.randrange(4)
    if form == 0:
        return b.op("Gather", [x, b.weight((), "int64", (rng.randrange(size),))], {"axis": axis})
    if form == 1 and size > 1:
        first = rng.randrange(1, size)
        return b.split(x, [first, size - first], axis)[rng.randrange(2)]
    if form == 2:
        return b.slice(x, [-1], [-size - 1], [axis], [-1])
    start = rng.randrange(size)
    return b.slice(x, [start], [rng.randrange(start + 1, size + 2)], [axis])


def _pad(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    rank = len(b.type_of(x).shape)
    if not rank:
        return x
    pads = [rng.choice((0, 0, 0, 1)) for _ in range(2 * rank)]
    values = b.weight((2 * rank,), "int64", pads)
    return b.op("Pad", [x, values, b.weight((), values=(rng.choice((0.0, 0.0, 1.0)),))])


def _reduce(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    rank = len(b.type_of(x).shape)
    if not rank:
        return x
    axes = sorted(rng.sample(range(rank), rng.randrange(1, rank + 1)))
    keep = rng.randrange(2)
    if rng.random() < 0.3:
        known = b.weight((len(axes),), "int64", axes)
        return b.op("ReduceSum", [x, known], {"keepdims": keep})
    op = rng.choice(("ReduceMean", "ReduceMax", "ReduceMin"))
    return b.op(op, [x], {"axes": tuple(axes), "keepdims": keep})


def _softmax(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    rank = len(b.type_of(x).shape)
    return b.softmax(x, rng.randrange(rank)) if rank else x


def _pool(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    shape = b.type_of(x).shape
    if len(shape) != 4 or min(shape[2:]) < 2:
        return b.global_avg_pool(x) if len(shape) == 4 else b.relu(x)
    if rng.random() < 0.3:
        x = b.pad(x, [1, 1, 1, 1], rng.choice((0.0, -3.402823e38)))
        shape = b.type_of(x).shape
    kernel = rng.choice(((2, 2), shape[2:]))
    attrs: dict[str, AttrValue] = {"kernel_shape": kernel, "strides": (2, 2)}
    if kernel == (2, 2):
        attrs |= {"pads": (rng.randrange(2),) * 4, "ceil_mode": 0}
    op = rng.choice(("MaxPool", "AveragePool"))
    if op == "AveragePool":
        attrs["count_include_pad"] = rng.randrange(2)
    return b.op(op, [x], attrs)


def _resize(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    rank = len(b.type_of(x).shape)
    if rank != 4:
        return b.tanh(x)
    scale = rng.choice((1.0, 2.0))
    factors = b.weight((4,), values=(1.0, 1.0, scale, scale))
    rule, nearest = rng.choice((("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")))
    attrs: dict[str, AttrValue] = {"mode": "nearest", "nearest_mode": nearest}
    return b.op("Resize", [x, "", factors], attrs | {"coordinate_transformation_mode": rule})


def _product(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    shape = b.type_of(x).shape
    if len(shape) != 2 or shape[0] > 40:
        return b.sigmoid(x)
    attrs: dict[str, AttrValue] = {"transB": 1, "alpha": rng.choice((1.0, 0.5)), "beta": 2.0}
    operands = [x, b.tanh(x)]
    if rng.random() < 0.5:
        operands.append(b.reduce_mean(x, [1]))
    return b.op("Gemm", operands, attrs)


def _channels(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    shape = b.type_of(x).shape
    if len(shape) < 2:
        return b.relu(x)
    form = rng.randrange(3)
    if form == 0:
        return b.batch_norm(x)
    kept = shape[1:2] + (1,) * (len(shape) - 2)
    y = b.mul(x, b.weight(kept))
    return b.add(y, b.weight((1, *kept))) if form == 1 else y


def _conv(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    shape = b.type_of(x).shape
    if len(shape) not in (3, 4, 5):
        return b.sigmoid(x)
    if rng.random() < 0.2 and len(shape) == 4:
        return b.conv_transpose(x, rng.choice((2, 4)), 2, 2, bias=rng.random() < 0.5)
    y = b.conv(x, rng.choice((2, 4)), rng.choice((1, 3)), bias=rng.random() < 0.5)
    return b.batch_norm(y) if rng.random() < 0.5 else y


def _dense(b: GraphBuilder, rng: random.Random, x: str, _: str) -> str:
    shape = b.type_of(x).shape
    if not shape:
        return x
    if len(shape) == 2 and rng.random() < 0.5:
        return b.fc(x, rng.choice((3, 5)), bias=rng.random() < 0.5)
    columns = rng.choice((3, 5))
    y = b.matmul(x, b.weight((shape[-1], columns)))
    return b.add(y, b.weight((columns,))) if rng.random() < 0.5 else y


_PURE: tuple[Step, ...] = (
    *(_unary, _arithmetic, _divided, _clip, _hard_sigmoid, _two, _two, _gated, _view, _view),
    *(_transpose, _transpose, _transpose, _cut, _pad, _reduce, _softmax, _pool, _resize, _product),
)
_WEIGHTED: tuple[Step, ...] = (_channels, _channels, _conv, _conv, _dense, _dense)


def identity_padded(graph: Graph, seed: int) -> Graph:
    """The same network with ops that do nothing inserted at some edges."""
    rng = random.Random(seed)
    nodes: list[Node] = []
    weights, types = dict(graph.weights), dict(graph.types)
    for node in graph.nodes:
        inputs = list(node.inputs)
        for position, tensor in enumerate(inputs):
            if not tensor or tensor in graph.weights or rng.random() < 0.6:
                continue
            name = f"nothing {seed} {len(nodes)} {position}"
            kind = types[tensor]
            operands, attrs = _nothing(rng, kind, weights, name)
            op = attrs.pop("op")
            nodes.append(Node(name, str(op), (tensor, *operands), (name,), attrs))
            types[name] = kind
            inputs[position] = name
        nodes.append(replace(node, inputs=tuple(inputs)))
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), weights, types)


def _nothing(
    rng: random.Random, kind: TensorType, weights: dict[str, Weight], name: str
) -> tuple[tuple[str, ...], dict[str, AttrValue]]:
    """The other operands and the attributes of an op that does nothing to a tensor of this type."""
    rank = len(kind.shape)
    known: dict[str, tuple[TensorType, tuple[int, ...] | tuple[float, ...]]] = {
        "Reshape": (TensorType("int64", (rank,)), kind.shape),
        "Pad": (TensorType("int64", (2 * rank,)), (0,) * (2 * rank)),
    }
    if kind.dtype.startswith("float"):
        known |= {"Mul": (TensorType(kind.dtype, ()), (1.0,))}
        known |= {"Sub": (TensorType(kind.dtype, ()), (0.0,))}
    plain: dict[str, dict[str, AttrValue]] = {
        "Identity": {},
        "Dropout": {},
        "Transpose": {"perm": tuple(range(rank))},
    }
    if rank:
        plain["Concat"] = {"axis": 0}
    op = rng.choice([*known, *plain])
    if op in plain:
        return (), {**plain[op], "op": op}
    weight_type, values = known[op]
    weights[f"{name} constant"] = Weight(weight_type, values)
    return (f"{name} constant",), {"op": op}


def mutations(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Graphs that differ from `graph` in one thing that matters, each with the name of that thing.

    Shapes are not inferred again: these graphs are only for hashing.
    """
    for name, kind in graph.types.items():
        if name in graph.inputs:
            grown = TensorType(kind.dtype, (kind.shape[0] + 1, *kind.shape[1:]))
            yield f"batch of {name}", replace(graph, types={**graph.types, name: grown})
            other = TensorType("float16", kind.shape)
            yield f"dtype of {name}", replace(graph, types={**graph.types, name: other})
    for index, node in enumerate(graph.nodes):
        for attr, value in node.attrs.items():
            changed = replace(node, attrs={**node.attrs, attr: _another(value)})
            yield f"{attr} of {node.op}", _with_node(graph, index, changed)
        # Operands made by equal ops are left out: swapping them may change nothing.
        makers = {_made_by(graph, tensor) for tensor in node.inputs}
        if node.op in ("Sub", "Div", "Concat", "MatMul") and len(makers) > 1:
            swapped = replace(node, inputs=node.inputs[::-1])
            yield f"operands of {node.op}", _with_node(graph, index, swapped)
        if node.op in ("Relu", "Sigmoid", "Tanh"):
            yield f"op {node.op}", _with_node(graph, index, replace(node, op="Exp"))


def _made_by(graph: Graph, tensor: str) -> str:
    """The op that makes a tensor, behind ops that do nothing; "" for inputs and weights."""
    node = graph.producers.get(tensor)
    while node is not None and node.op in ("Dropout", "Identity"):
        node = graph.producers.get(node.inputs[0])
    return "" if node is None else node.op


def _another(value: AttrValue) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(int(item) + 1 for item in value)
    return value + "x" if isinstance(value, str) else value + 1


def _with_node(graph: Graph, index: int, node: Node) -> Graph:
    return replace(graph, nodes=(*graph.nodes[:index], node, *graph.nodes[index + 1 :]))
