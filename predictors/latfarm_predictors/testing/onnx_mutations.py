"""Make damaged ONNX files from a seed: with changed bytes, or with contradicting content."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx

Mutation = Callable[[random.Random, Any], None]

_LIMITS = (0, 1, -1, 2, -2, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
_SIZES = (0, 1, 3, 2**20, 2**31 - 1, 2**33, 2**62, -1)
_FLOATS = (float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 3.4e38, 1e-45, 1e30)
_OPS = (
    *("Add", "Attention", "ArgMax", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat"),
    *("Constant", "ConstantOfShape", "Conv", "ConvInteger", "ConvTranspose", "CumSum"),
    *("DepthToSpace", "DequantizeLinear", "Div", "DynamicQuantizeLinear", "Einsum", "Expand"),
    *("EyeLike", "Flatten", "Gather", "GatherND", "Gemm", "GroupNormalization", "GRU", "Identity"),
    *("If", "InstanceNormalization", "LayerNormalization", "Loop", "LRN", "LSTM", "MatMul", "Max"),
    *("MaxPool", "Mod", "Mul", "NonZero", "OneHot", "Pad", "Pow", "QLinearConv", "QuantizeLinear"),
    *("Range", "ReduceMean", "ReduceProd", "ReduceSum", "Reshape", "Resize", "RMSNormalization"),
    *("RotaryEmbedding", "Scan", "ScatterND", "Shape", "Size", "Slice", "Softmax", "SpaceToDepth"),
    *("Split", "SplitToSequence", "Squeeze", "Sum", "Tile", "TopK", "Transpose", "Trilu"),
    *("Unsqueeze", "Upsample", "Where", "Nonsense", ""),
)


def mutated(seeds: Sequence[bytes], seed: int) -> bytes:
    """A damaged file, made from one of the models `seeds`; the same for the same arguments."""
    rng = random.Random(seed)
    data = rng.choice(seeds)
    if rng.random() < 0.3:
        return _bytes(rng, data)
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_STRUCTURAL)(rng, model)
    data = model.SerializeToString()
    return _bytes(rng, data) if rng.random() < 0.1 else data


def _bytes(rng: random.Random, data: bytes) -> bytes:
    kind = rng.randrange(5)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    made = bytearray(data)
    at = rng.randrange(len(made))
    if kind == 1:
        for _ in range(rng.randint(1, 8)):
            made[rng.randrange(len(made))] = rng.randrange(256)
    elif kind == 2:
        made[at : at + rng.randint(1, 64)] = b""
    elif kind == 3:
        made[at:at] = rng.randbytes(rng.randint(1, 64))
    else:
        other = rng.randrange(len(made))
        made[at:at] = made[other : other + rng.randint(1, 512)]
    return bytes(made)


def _node(rng: random.Random, model: Any) -> Any:
    nodes = model.graph.node
    return rng.choice(nodes) if nodes else nodes.add(op_type="Relu", input=["x"], output=["y"])


def _tensor_name(rng: random.Random, model: Any) -> str:
    graph = model.graph
    names: list[str] = [name for node in graph.node for name in (*node.input, *node.output)]
    names += [proto.name for proto in graph.initializer] + [value.name for value in graph.input]
    return rng.choice(names or ["nothing"])


def _attribute(rng: random.Random, model: Any) -> None:
    """Give an attribute an extreme value, another type or another name, repeat it or remove it."""
    node = _node(rng, model)
    if not node.attribute:
        node.attribute.add(name=rng.choice(("axis", "axes", "to", "perm", "group", "pads")), type=2)
    attribute = rng.choice(node.attribute)
    kind = rng.randrange(6)
    if kind == 0:
        attribute.type = rng.randrange(15)
    elif kind == 1:
        attribute.name = rng.choice(("axis", "kernel_shape", "value", "block_size", "x" * 9))
    elif kind == 2:
        node.attribute.remove(attribute)
    elif kind == 3:
        node.attribute.add().CopyFrom(attribute)
    else:
        attribute.i = rng.choice(_LIMITS)
        attribute.f = rng.choice(_FLOATS)
        for index in range(len(attribute.ints)):
            if rng.random() < 0.5:
                attribute.ints[index] = rng.choice(_LIMITS)
        if kind == 5:
            attribute.ints.extend(rng.choices(_LIMITS, k=rng.choice((1, 2, 3000))))
            attribute.floats.extend(rng.choices(_FLOATS, k=2))


def _edge(rng: random.Random, model: Any) -> None:
    """Replace an operand by another tensor, also a later one, or by none, or add operands."""
    node = _node(rng, model)
    name = rng.choice((_tensor_name(rng, model), "", "nowhere"))
    if node.input and rng.random() < 0.7:
        node.input[rng.randrange(len(node.input))] = name
    else:
        node.input.extend([name] * rng.choice((1, 2, 2000)))


def _result(rng: random.Random, model: Any) -> None:
    node = _node(rng, model)
    node.output.extend([rng.choice((_tensor_name(rng, model), "", "more"))])
    if rng.random() < 0.5:
        node.output[0] = _tensor_name(rng, model)


def _op(rng: random.Random, model: Any) -> None:
    _node(rng, model).op_type = rng.choice(_OPS)


def _domain(rng: random.Random, model: Any) -> None:
    _node(rng, model).domain = rng.choice(("com.microsoft", "ai.onnx.ml", "ai.onnx", "custom", "é"))


def _nodes(rng: random.Random, model: Any) -> None:
    """Remove a node, repeat it, or change the order of all nodes."""
    nodes = list(model.graph.node)
    kind = rng.randrange(3)
    if kind == 0 and nodes:
        nodes.pop(rng.randrange(len(nodes)))
    elif kind == 1 and nodes:
        nodes += [rng.choice(nodes)] * rng.choice((1, 500))
    else:
        rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _weight(rng: random.Random, model: Any) -> None:
    """Change dimensions, type, data, place or name of a weight."""
    graph = model.graph
    if not graph.initializer:
        graph.initializer.add(name=_tensor_name(rng, model), data_type=7, dims=[2])
    proto = rng.choice(graph.initializer)
    kind = rng.randrange(6)
    if kind == 0:
        if not proto.dims or rng.random() < 0.3:
            proto.dims.append(rng.choice(_SIZES))
        proto.dims[rng.randrange(len(proto.dims))] = rng.choice(_SIZES)
    elif kind == 1:
        proto.data_type = rng.randrange(28)
    elif kind == 2:
        proto.raw_data = rng.randbytes(rng.choice((0, 1, 8, 64, 40_000)))
    elif kind == 3:
        proto.data_location = 1
        proto.external_data.add(key="location", value="../weights.bin")
    elif kind == 4:
        proto.name = _tensor_name(rng, model)
    else:
        proto.int64_data.extend(rng.choices(_LIMITS, k=4))
        proto.float_data.extend(rng.choices(_FLOATS, k=4))


def _values(rng: random.Random, model: Any) -> None:
    """Give shapes, axes and bounds extreme values."""
    found = [p for p in model.graph.initializer if p.data_type == onnx.TensorProto.INT64]
    found += [
        a.t
        for node in model.graph.node
        for a in node.attribute
        if a.type == onnx.AttributeProto.TENSOR and a.t.data_type == onnx.TensorProto.INT64
    ]
    if not found:
        return
    proto = rng.choice(found)
    count = 1
    for size in proto.dims:
        count *= size
    if not 0 <= count <= 64:
        return
    proto.raw_data = b"".join(
        rng.choice(_LIMITS).to_bytes(8, "little", signed=True) for _ in range(count)
    )
    proto.ClearField("int64_data")


def _input(rng: random.Random, model: Any) -> None:
    """Change shape or type of an input, or add one."""
    graph = model.graph
    value = rng.choice(graph.input) if graph.input else graph.input.add(name="x")
    tensor = value.type.tensor_type
    kind = rng.randrange(5)
    if kind == 0:
        tensor.elem_type = rng.randrange(28)
    elif kind == 1:
        tensor.ClearField("shape")
    elif kind == 2:
        graph.input.add().CopyFrom(value)
    elif kind == 3 and tensor.shape.dim:
        rng.choice(tensor.shape.dim).dim_value = rng.choice(_SIZES)
    else:
        tensor.shape.dim.add(dim_value=rng.choice(_SIZES))


def _name(rng: random.Random, model: Any) -> None:
    """Make a name very long, empty or unusual."""
    name = rng.choice(("n" * 300_000, "", "a b", "é" * 50, "\n\r\0", "%s{0}"))
    node = _node(rng, model)
    kind = rng.randrange(4)
    if kind == 0:
        node.name = name
    elif kind == 1 and node.output:
        node.output[0] = name
    elif kind == 2:
        model.graph.name = name
    else:
        for other in model.graph.node:
            other.name = name


def _giant(rng: random.Random, model: Any) -> None:
    """Add constants that a reader should not allocate."""
    graph, helper = model.graph, onnx.helper
    size = rng.choice((2**20, 2**31, 2**45))
    sizes = helper.make_tensor("giant_shape", 7, [2], [size, rng.choice((1, 1024))])
    first = rng.choice(
        (
            helper.make_node("ConstantOfShape", ["giant_shape"], ["giant"]),
            helper.make_node("Expand", ["giant_one", "giant_shape"], ["giant"]),
            helper.make_node("Tile", ["giant_one", "giant_shape"], ["giant"]),
            helper.make_node("Range", ["giant_zero", "giant_end", "giant_step"], ["giant"]),
            helper.make_node("Reshape", ["giant_one", "giant_shape"], ["giant"]),
        )
    )
    graph.initializer.extend(
        [
            sizes,
            helper.make_tensor("giant_one", 1, [1, 1], [1.0]),
            helper.make_tensor("giant_zero", 7, [], [0]),
            helper.make_tensor("giant_step", 7, [], [rng.choice((0, 1, -1))]),
            helper.make_tensor("giant_end", 7, [], [size]),
        ]
    )
    then = helper.make_node(rng.choice(("NonZero", "Exp", "Add")), ["giant", "giant"], ["grown"])
    nodes = [first, then, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    if graph.node[-1].input:
        graph.node[-1].input[0] = rng.choice(("giant", "grown"))


def _product(_: random.Random, model: Any) -> None:
    """Add three small constants whose broadcast is a large one."""
    graph, helper = model.graph, onnx.helper
    for axis, name in enumerate("abc"):
        dims = [1000 if at == axis else 1 for at in range(3)]
        graph.initializer.append(helper.make_tensor(name, 7, dims, range(1000)))
    nodes = [
        helper.make_node("Add", ["a", "b"], ["ab"]),
        helper.make_node("Max", ["a", "b", "c"], ["abc"]),
        helper.make_node("Gather", ["abc", "abc"], ["far"]),
        *graph.node,
    ]
    del graph.node[:]
    graph.node.extend(nodes)


def _functions(rng: random.Random, model: Any) -> None:
    """Add functions that call themselves, each other, or the next one twice."""
    helper = onnx.helper
    depth = rng.choice((1, 2, 40, 300))
    circle = rng.random() < 0.5
    ids = [helper.make_opsetid("", 13), helper.make_opsetid("custom", 1)]
    for index in range(depth):
        following = f"f{index + 1}" if index + 1 < depth else ("f0" if circle else "Relu")
        domain = "" if following == "Relu" else "custom"
        calls = [
            helper.make_node(following, ["x"], ["t"], domain=domain),
            helper.make_node(following, ["t"], ["y"], domain=domain),
        ]
        model.functions.append(
            helper.make_function("custom", f"f{index}", ["x"], ["y"], calls, ids)
        )
    model.opset_import.append(helper.make_opsetid("custom", 1))
    node = _node(rng, model)
    node.op_type, node.domain = "f0", "custom"


def _branches(rng: random.Random, model: Any) -> None:
    """Add nested If nodes with a known or an unknown condition."""
    helper = onnx.helper
    node = _node(rng, model)
    name = node.input[0] if node.input else "x"
    value = helper.make_tensor_value_info("b", 1, None)
    leaf = body = helper.make_graph([helper.make_node("Relu", [name], ["b"])], "g", [], [value])
    for _ in range(rng.choice((1, 3, 30))):
        inner = helper.make_node("If", ["known"], ["b"], then_branch=body, else_branch=leaf)
        body = helper.make_graph([inner], "g", [], [value])
    known = rng.choice(("known", _tensor_name(rng, model)))
    model.graph.initializer.append(helper.make_tensor("known", 9, [], [rng.random() < 0.5]))
    outer = helper.make_node("If", [known], [*node.output], then_branch=body, else_branch=leaf)
    node.CopyFrom(outer)


def _opset(rng: random.Random, model: Any) -> None:
    kind = rng.randrange(3)
    if kind == 0:
        del model.opset_import[:]
    elif kind == 1 and model.opset_import:
        model.opset_import[0].version = rng.choice((0, 7, 9, 11, 13, 18, 21, 28, *_LIMITS))
    else:
        model.opset_import.add(domain="", version=rng.randrange(30))


def _output(rng: random.Random, model: Any) -> None:
    outputs = model.graph.output
    if outputs and rng.random() < 0.5:
        rng.choice(outputs).name = rng.choice((_tensor_name(rng, model), "nowhere", ""))
    elif rng.random() < 0.5:
        del outputs[:]
    else:
        outputs.add(name=_tensor_name(rng, model))


def _sparse(rng: random.Random, model: Any) -> None:
    model.graph.sparse_initializer.add(dims=[rng.choice(_SIZES)])


_STRUCTURAL: Sequence[Mutation] = (
    *(_attribute, _attribute, _attribute, _edge, _edge, _result, _op, _op, _domain, _nodes),
    *(_weight, _weight, _weight, _values, _values, _values, _input, _input, _name, _giant),
    *(_product, _functions, _branches, _opset, _output, _sparse),
)
