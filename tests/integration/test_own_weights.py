"""Models keep their own weights: the file that is built from a model computes the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from latfarm_controller import builders
from latfarm_predictors.errors import ModelFileError
from latfarm_predictors.frontends.onnx import read_onnx_weights

FOLDER = Path(__file__).parents[1] / "predictors" / "frontends" / "exported"
FILES = sorted(path.stem for path in FOLDER.glob("*.txt"))
SIZES = {"torchscript_11_pools_open": (2, 3, 17, 13), "dynamo_18_causal_open": (3, 9, 8)}


def with_random_weights(model: Any) -> Any:
    """Replace each ConstantOfShape node by a random initializer, as exporters write weights."""
    rng = np.random.default_rng(0)
    graph = model.graph
    shapes = {p.name: onnx.numpy_helper.to_array(p) for p in graph.initializer}
    nodes = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] == f"{node.output[0]}_shape":
            shape = shapes[node.input[0]].tolist()
            array = (0.5 * rng.standard_normal(shape)).astype(np.float32)
            # A tensor with "var" in its name is a variance, which must be positive.
            array = np.abs(array) + 0.5 if "var" in node.output[0] else array
            graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
        else:
            nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return model


def session(data: bytes) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(data, options, ["CPUExecutionProvider"])


def same_results(model: Any, folder: Path, sizes: dict[str, tuple[int, ...]]) -> None:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph, weights = read_onnx_weights(path, shapes=sizes)
    assert set(weights) == {n for n, w in graph.weights.items() if w.values is None}
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {}
    original = session(path.read_bytes())
    for value in original.get_inputs():
        shape = sizes.get(value.name) or tuple(value.shape)
        if "float" in value.type:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            feeds[value.name] = rng.integers(0, 2, shape).astype(value.type[7:-1])
    ours = session(builders.build(graph, "onnx", "fp32", weights=weights))
    found = ours.run(None, {name: feeds[name] for name in graph.inputs})
    expected = original.run(None, feeds)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        assert np.abs(mine - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("stem", FILES)
def test_exported_files(stem: str, tmp_path: Path) -> None:
    model = with_random_weights(onnx.parser.parse_model((FOLDER / f"{stem}.txt").read_text()))
    held = {proto.name for proto in model.graph.initializer}
    sizes = {}
    for value in model.graph.input:
        declared = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name not in held:
            filler = SIZES.get(stem, (2, 3, 16, 24) if len(declared) == 4 else (2, 7, 8))
            sizes[value.name] = tuple(
                size or other for size, other in zip(declared, filler, strict=False)
            )
    same_results(model, tmp_path, sizes)


IMAGE = "float[2, 4, 6, 8] x"
MASK = np.arange(54).reshape(6, 9) % 7 > 0
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [8, 7, 6, 5, 4, 3]])
Weights = dict[str, Any]

# Models in forms that the exporters' files do not contain. Each has an opset, an input, weights (a
# shape stands for random weights) and nodes.
FORMS: dict[str, tuple[int, str, Weights, str]] = {
    "gemm": (
        13,
        "float[2, 3] x",
        {"b": (3, 4), "c": (1, 4)},
        "y = Gemm <alpha = 0.5, beta = 2.0> (x, b, c)",
    ),
    "gemm and a column": (13, "float[4, 3] x", {"b": (3, 4), "c": (4, 1)}, "y = Gemm (x, b, c)"),
    "large gemm": (13, "float[2, 90] x", {"b": (90, 100)}, "y = Gemm (x, b)"),
    "folded weights": (
        13,
        "float[2, 60] x",
        {"b": (100, 60), "c": (60,), "s": np.array([60, 100]), "a": np.array([0])},
        """t = Transpose <perm = [1, 0]> (b)
        e = Unsqueeze (c, a)
        f = Mul (b, e)
        g = Reshape (f, s)
        h = Add (t, g)
        i = Erf (h)
        y = MatMul (x, i)""",
    ),
    "batch norm": (
        15,
        IMAGE,
        {**dict.fromkeys("abm", (4,)), "v": np.arange(1, 5, dtype="f4")},
        "y = BatchNormalization <epsilon = 0.1> (x, a, b, m, v)",
    ),
    "instance norm": (
        13,
        IMAGE,
        {"a": (4,), "b": (4,)},
        "y = InstanceNormalization <epsilon = 0.1> (x, a, b)",
    ),
    "group norm of opset 21": (
        21,
        IMAGE,
        {"a": (4,), "b": (4,)},
        "y = GroupNormalization <num_groups = 2, epsilon = 0.01> (x, a, b)",
    ),
    "layer norm": (
        17,
        IMAGE,
        {"a": (6, 8)},
        "y = LayerNormalization <axis = -2, epsilon = 0.1> (x, a)",
    ),
    "rms norm": (23, IMAGE, {"a": (8,)}, "y = RMSNormalization <epsilon = 0.1> (x, a)"),
    "lower triangle": (14, IMAGE, {}, "y = Trilu <upper = 0> (x)"),
    "attention": (
        23,
        IMAGE,
        {"k": (2, 2, 7, 8), "v": (2, 2, 7, 5)},
        "y = Attention <is_causal = 1, scale = 0.2> (x, k, v)",
    ),
    "attention with a past": (
        23,
        IMAGE,
        {"k": (2, 4, 3, 8), "m": MASK},
        "y, p, q = Attention <softcap = 1.5> (x, x, x, m, k, k)",
    ),
    "flat attention": (
        23,
        "float[2, 6, 8] x",
        {"k": (2, 5, 4)},
        "y = Attention <q_num_heads = 4, kv_num_heads = 2> (x, k, k)",
    ),
    "rotary": (
        23,
        IMAGE,
        {"c": (9, 4), "s": (9, 4), "p": POSITIONS},
        "y = RotaryEmbedding (x, c, s, p)",
    ),
    "partly rotary": (
        23,
        IMAGE,
        {"c": (2, 6, 2), "s": (2, 6, 2)},
        "y = RotaryEmbedding <interleaved = 1, rotary_embedding_dim = 4> (x, c, s)",
    ),
    "known branch": (
        13,
        IMAGE,
        {"c": np.array(True)},
        """y = If (c) <then_branch = t () => (float[2, 4, 6, 8] a) { a = Relu (x) },
        else_branch = e () => (float[2, 4, 6, 8] b) { b = Exp (x) }>""",
    ),
    "sizes picked by position": (
        13,
        IMAGE,
        {"n": np.array([[0], [1]]), "m": np.array([-1])},
        """s = Shape (x)
        d = GatherND (s, n)
        w = Concat <axis = 0> (d, m)
        y = Reshape (x, w)""",
    ),
}


def model_of(name: str) -> Any:
    opset, head, weights, nodes = FORMS[name]
    version = 8 if opset < 21 else 10
    model = onnx.parser.parse_model(
        f'<ir_version: {version}, opset_import: ["" : {opset}]> g ({head}) => (float[N] y)'
        f" {{ {nodes} }}"
    )
    rng = np.random.default_rng(2)
    for key, given in weights.items():
        array = rng.standard_normal(given).astype("f4") if isinstance(given, tuple) else given
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_ops(name: str, tmp_path: Path) -> None:
    same_results(model_of(name), tmp_path, {})


def test_large_weights_are_views_of_the_file(tmp_path: Path) -> None:
    model = model_of("large gemm")
    array = np.random.default_rng(0).standard_normal((3000, 1000)).astype(np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "b"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3000
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    _, weights = read_onnx_weights(path)
    ((name, found),) = weights.items()
    assert found.shape == (1000, 3000)
    assert (found == array.T).all()
    assert not found.flags.owndata
    assert not found.flags.writeable
    assert weights[name] is not found  # each access makes a new array; none is kept


def test_weights_that_the_file_cuts_short(tmp_path: Path) -> None:
    model = model_of("large gemm")
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph, weights = read_onnx_weights(path)
    (name,) = weights
    assert graph.weights[name].type.shape == (100, 90)
    with pytest.raises(ModelFileError, match="is damaged"):
        weights[name]
    with pytest.raises(KeyError):
        weights["another"]
