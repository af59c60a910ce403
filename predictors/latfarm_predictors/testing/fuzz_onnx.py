"""Read damaged ONNX files in a child process, which runs this module as a program.

The child is called as `python -m latfarm_predictors.testing.fuzz_onnx FOLDER FIRST COUNT`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import onnx

from latfarm_predictors.errors import GraphError, ModelFileError
from latfarm_predictors.frontends.onnx import read_onnx_weights
from latfarm_predictors.frontends.onnx_quantization import dequantised
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.testing.fuzzing import FuzzSummary, report_cases, run_cases
from latfarm_predictors.testing.onnx_mutations import mutated

# A model with int8 and with weights of some kilobytes, which stay in the file; one with attention.
_EXTRA = (
    """<ir_version: 8, opset_import: ["" : 13]>
    g (float[N, 8] x) => (float[N, 600] y)
    <float[600] b = {0}, uint8 z = {3}, float s = {0.5}> {
        w = Constant <value: tensor = float[8, 600] {0}> ()
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        y = Gemm (d, w, b)
    }""",
    """<ir_version: 11, opset_import: ["" : 25]>
    g (float[1, 2, 6, 4] q, float[1, 1, 6, 4] k, float[1, 1, 6, 4] v) => (float[1, 2, 6, 4] y) {
        y = Attention <is_causal: int = 1, softcap: float = 2.0> (q, k, v)
    }""",
)


def seeds_of(folder: Path) -> list[bytes]:
    """The models that will be damaged: those in textual syntax in a folder, and `_EXTRA`."""
    texts = [path.read_text() for path in sorted(folder.glob("*.txt"))]
    made = []
    for text in (*texts, *_EXTRA):
        model = onnx.parser.parse_model(text)
        for proto in _tensors(model):
            if len(proto.float_data) == 1:  # one number stands for all elements
                count = 1
                for size in proto.dims:
                    count *= size
                proto.float_data.extend([0.5] * (count - 1))
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(
                dims, (2, 3, 16, 24) if len(dims) == 4 else (2, 7, 8), strict=False
            ):
                if not dim.dim_value:
                    dim.dim_value = size
        made.append(model.SerializeToString())
    return made


def _tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    constants = [a.t for node in model.graph.node for a in node.attribute if a.HasField("t")]
    return [*model.graph.initializer, *constants]


def fuzz_onnx(folder: Path, first: int, count: int) -> FuzzSummary:
    """Read `count` damaged models that are made from those in `folder`.

    Case number n is always the same damaged model.
    """
    command = [sys.executable, "-W", "error", "-m", __name__, str(folder)]
    return run_cases(command, first, count)


def _read(path: Path) -> None:
    graph, weights = read_onnx_weights(path)
    graph.dumps()
    assert hash_of(graph)
    with contextlib.suppress(GraphError):  # a graph of scaling ops only has no float network
        dequantised(graph)
    for name in weights:
        if graph.weights[name].type.elements < 10_000:
            weights[name]


def main() -> None:
    """Run the child process."""
    folder, first, count = sys.argv[1:]
    seeds = seeds_of(Path(folder))
    report_cases(lambda case: mutated(seeds, case), _read, ModelFileError, int(first), int(count))


if __name__ == "__main__":
    main()
