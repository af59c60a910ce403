"""The guard that torch's exporter puts behind a softmax with a mask: IsNaN and Where."""

from __future__ import annotations

import numpy as np
import onnx
from latfarm_predictors import read_onnx
from latfarm_predictors.kernels.families import family_of
from onnx import TensorProto, helper, numpy_helper


def test_is_nan_is_an_element_wise_op_of_truth_values() -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Softmax", ["x"], ["s"], axis=-1),
            helper.make_node("IsNaN", ["s"], ["n"]),
            helper.make_node("Where", ["n", "zero", "s"], ["y"]),
        ],
        "guarded",
        [info("x", TensorProto.FLOAT, (1, 4, 16, 16))],
        [info("y", TensorProto.FLOAT, (1, 4, 16, 16))],
        initializer=[numpy_helper.from_array(np.zeros((), np.float32), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.checker.check_model(model)
    read = read_onnx(model.SerializeToString())
    (node,) = (node for node in read.nodes if node.op == "IsNaN")
    told = read.type_of(node.outputs[0])
    assert (told.shape, told.dtype) == ((1, 4, 16, 16), "bool")
    assert {family_of(read, node) for node in read.nodes} == {"softmax", "eltwise"}
