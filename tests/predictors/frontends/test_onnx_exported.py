"""Files of real exporters (`exported/README.md`) are read with the shapes of onnxruntime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from latfarm_predictors.errors import DynamicShapeError, ModelFileError
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.hash import hash_of

FOLDER = Path(__file__).parent / "exported"
FILES = sorted(path.stem for path in FOLDER.glob("*.txt"))
# Sizes for open dimensions of files that need others than an image of 16 x 24 or a sequence of 7.
SIZES = {"torchscript_11_pools_open": (2, 3, 17, 13), "dynamo_18_causal_open": (3, 9, 8)}

# Ops that are computed from shapes only: none of them may be left in a graph.
CHAINS = {"Shape", "ConstantOfShape", "Constant", "Identity", "Range", "If", "NonZero", "Size"}


def model_of(stem: str) -> Any:
    return onnx.parser.parse_model((FOLDER / f"{stem}.txt").read_text())


def bound(stem: str, model: Any) -> dict[str, tuple[int, ...]]:
    """Sizes for every input, open dimensions filled in."""
    weights = {proto.name for proto in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        declared = [d.dim_value for d in value.type.tensor_type.shape.dim]
        filler = SIZES.get(stem, (2, 3, 16, 24) if len(declared) == 4 else (2, 7, 8))
        found[value.name] = tuple(
            size or other for size, other in zip(declared, filler, strict=False)
        )
    return found


def saved(folder: Path, model: Any) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def session(model: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def test_every_exporter_and_old_and_new_opsets_are_there() -> None:
    exporters = Counter(stem.split("_")[0] for stem in FILES)
    assert exporters["torchscript"] >= 15
    assert exporters["dynamo"] >= 10
    assert exporters["tf2onnx"] >= 5
    opsets = {int(stem.split("_")[1]) for stem in FILES}
    assert min(opsets) == 7
    assert max(opsets) >= 25
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 300_000


@pytest.mark.parametrize("stem", FILES)
def test_reads_with_the_shapes_that_it_runs_with(stem: str, tmp_path: Path) -> None:
    model = model_of(stem)
    sizes = bound(stem, model)
    graph = read_onnx(saved(tmp_path, model), shapes=sizes)
    running = session(model)
    feeds = {
        value.name: np.zeros(
            sizes[value.name], np.float32 if "float" in value.type else value.type[7:-1]
        )
        for value in running.get_inputs()
    }
    made = [(str(result.dtype), result.shape) for result in running.run(None, feeds)]
    ours = [(graph.type_of(t).dtype, graph.type_of(t).shape) for t in graph.outputs]
    assert ours == made
    assert CHAINS.isdisjoint(node.op for node in graph.nodes)
    assert {name: graph.type_of(name).shape for name in graph.inputs} == sizes


@pytest.mark.parametrize("stem", [stem for stem in FILES if "open" in stem])
def test_open_sizes_must_be_bound(stem: str, tmp_path: Path) -> None:
    path = saved(tmp_path, model_of(stem))
    with pytest.raises(DynamicShapeError, match="open dimensions"):
        read_onnx(path)


@pytest.mark.parametrize("stem", ["torchscript_11_se_open", "tf2onnx_13_senet_open_nchw"])
def test_a_batch_binds_the_first_dimension(stem: str, tmp_path: Path) -> None:
    model = model_of(stem)
    path = saved(tmp_path, model)
    sizes = bound(stem, model)
    (name,) = sizes
    for batch in (1, 4):
        wanted = (batch, *sizes[name][1:])
        graph = read_onnx(path, batch=batch, shapes={name: wanted})
        assert graph.type_of(graph.inputs[0]).shape == wanted
        assert {graph.type_of(t).shape[0] for t in graph.outputs} == {batch}


def test_other_image_sizes_make_another_network(tmp_path: Path) -> None:
    path = saved(tmp_path, model_of("torchscript_11_interp_open"))
    small, wide = (read_onnx(path, shapes={"in0": (1, 3, 16, size)}) for size in (16, 32))
    assert hash_of(small) != hash_of(wide)
    assert wide.type_of(wide.outputs[0]).shape == (1, 12, 8, 16)


def test_sizes_that_the_network_cannot_have(tmp_path: Path) -> None:
    path = saved(tmp_path, model_of("torchscript_13_shuffle_open"))
    with pytest.raises(ModelFileError, match=r"node '/c/c\.0/Conv' .*does not fit"):
        read_onnx(path, shapes={"in0": (1, 6, 8, 8)})
