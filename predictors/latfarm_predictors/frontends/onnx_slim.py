"""Optimisation of an ONNX model with onnxslim, for any backend (docs/adr/0005).

onnxslim folds batch norms into weights, takes seconds on real weights, and may fail on any model.
So it gets a model in which large constants are inputs: nothing can be folded into them. It runs in
a process of its own with a time limit. If it fails, or does not make the model smaller, the model
is read as it was, and a warning is logged.
"""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from latfarm_predictors.errors import ModelFileError
from latfarm_predictors.frontends.onnx_file import ModelFile, line_of
from latfarm_predictors.frontends.onnx_reader import Reader
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES
from latfarm_predictors.optional_libraries import check_installed, library

TIME_LIMIT_S = 120.0
"""The longest time that onnxslim may take, in seconds."""

# Constants of up to this number of elements stay: ops need them, as a Resize needs its factors.
_FEW = 16

_log = logging.getLogger(__name__)


class SlimError(Exception):
    """onnxslim failed, or its result is not smaller; the text says why."""


def optimised(opened: ModelFile, graph: Graph, time_limit_s: float = TIME_LIMIT_S) -> Graph:
    """The network of an opened file after onnxslim; `graph` itself if that fails.

    The result has no more nodes than `graph`, and the same inputs and outputs.

    Raises:
        MissingLibraryError: onnxslim is not installed.
    """
    check_installed("onnxslim")
    model, weights = skeleton(opened, graph)
    try:
        made = _in_child(model.SerializeToString(), time_limit_s)
        return reread(opened, graph, made, weights)
    except SlimError as error:
        _log.warning("%s: read without optimisation: %s", opened.path, error)
        return graph


def skeleton(opened: ModelFile, graph: Graph) -> tuple[Any, frozenset[str]]:
    """The model with static sizes and large float constants as inputs; names of these."""
    model = onnx.ModelProto()
    model.CopyFrom(opened.model)
    body = model.graph
    weights: dict[str, Any] = {}
    for proto in body.initializer:
        if opened.is_big(proto.name) or _is_weight(proto):
            weights[proto.name] = (proto.data_type, tuple(proto.dims))
    shapes = {p.name: onnx.numpy_helper.to_array(p) for p in body.initializer if _is_shape(p)}
    nodes = []
    for node in body.node:
        made = _weight_of(node, shapes)
        if made is None:
            nodes.append(node)
        else:
            weights[node.output[0]] = made
    kept = [proto for proto in body.initializer if proto.name not in weights]
    inputs = [value for value in body.input if value.name not in weights]
    for value in inputs:
        if value.name in graph.inputs:
            code = value.type.tensor_type.elem_type
            shape = graph.type_of(value.name).shape
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, code, shape))
    inputs += [onnx.helper.make_tensor_value_info(n, *kind) for n, kind in weights.items()]
    for field, items in ((body.node, nodes), (body.initializer, kept), (body.input, inputs)):
        copies = [type(item).FromString(item.SerializeToString()) for item in items]
        del field[:]
        field.extend(copies)
    del body.value_info[:]
    model.ir_version = max(model.ir_version, 4)  # in older versions, initializers were inputs
    return model, frozenset(weights)


def reread(opened: ModelFile, graph: Graph, data: bytes, weights: frozenset[str]) -> Graph:
    """Read the optimised model.

    Raises:
        SlimError: it cannot be read, has other inputs or outputs, or has more nodes.
    """
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        made = Reader(ModelFile(opened.path, model, memoryview(b""), {}), weights=weights).read()
    except (DecodeError, ModelFileError) as error:
        raise SlimError(f"what onnxslim made of it cannot be read: {line_of(error)}") from error
    ends = ([g.type_of(t) for t in (*g.inputs, *g.outputs)] for g in (graph, made))
    if next(ends) != next(ends):
        raise SlimError("onnxslim changed its inputs or outputs")
    if len(made.nodes) > len(graph.nodes):
        raise SlimError(f"onnxslim made {len(made.nodes)} nodes of {len(graph.nodes)}")
    return made


def slimmed(data: bytes) -> bytes:
    """Optimise a serialised model with onnxslim in this process, without any printed text.

    Raises:
        SlimError: onnxslim fails.
    """
    model = onnx.ModelProto.FromString(data)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        onnxslim = library("onnxslim")
        try:
            made: bytes = onnxslim.slim(model).SerializeToString()
        except (Exception, SystemExit) as error:  # each of its passes has its own errors
            name = type(error).__name__
            raise SlimError(f"onnxslim fails: {name}: {error!s:.200}") from error
    return made


def _in_child(data: bytes, time_limit_s: float) -> bytes:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],  # whatever modules the present folder has
            input=data,
            capture_output=True,
            timeout=time_limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SlimError(f"onnxslim takes longer than {time_limit_s:g} s") from error
    except OSError as error:
        raise SlimError(f"onnxslim cannot be started: {line_of(error)}") from error
    if done.returncode:
        story = done.stderr.decode(errors="replace").strip().splitlines()
        raise SlimError(story[-1] if story else f"onnxslim ended with status {done.returncode}")
    return done.stdout


def _is_weight(proto: Any) -> bool:
    elements = 1
    for size in proto.dims:
        elements *= size
    large = elements > _FEW or (len(proto.dims) > 1 and elements > 1)
    return large and CAST_CODES.get(proto.data_type, "").startswith("float")


def _is_shape(proto: Any) -> bool:
    return proto.data_type == onnx.TensorProto.INT64 and len(proto.dims) == 1


def _weight_of(node: Any, shapes: dict[str, Any]) -> tuple[int, tuple[int, ...]] | None:
    """Type and shape of a node that makes a weight: a Constant or a ConstantOfShape, else None."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    tensors = [a.t for a in node.attribute if a.name == "value" and a.HasField("t")]
    if node.op_type == "Constant" and tensors and _is_weight(tensors[0]):
        return tensors[0].data_type, tuple(tensors[0].dims)
    if node.op_type == "ConstantOfShape" and node.input and node.input[0] in shapes:
        shape = tuple(int(size) for size in shapes[node.input[0]])
        code = tensors[0].data_type if tensors else onnx.TensorProto.FLOAT
        probe = onnx.TensorProto(data_type=code, dims=shape)
        return (code, shape) if _is_weight(probe) else None
    return None


def main() -> int:
    """The child process: read a model from stdin, write the optimised model to stdout."""
    try:
        made = slimmed(sys.stdin.buffer.read())
    except SlimError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
