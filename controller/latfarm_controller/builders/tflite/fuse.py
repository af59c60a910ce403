"""Makes activations part of the operators before them, as TFLite's own converter does.

LiteRT runs an int8 convolution several times slower if a RELU6 after it is an operator of its own:
XNNPACK leaves such a convolution to the reference kernels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from latfarm_controller.builders.tflite.file import BuiltOperator, TfliteModel

# ActivationFunctionType of the schema.
_KINDS = {"RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}
_POOLS = frozenset({"MAX_POOL_2D", "AVERAGE_POOL_2D"})
_TAKERS = _POOLS | frozenset(
    {
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "FULLY_CONNECTED",
        "ADD",
        "SUB",
        "MUL",
        "DIV",
    }
)


def fuse_activations(model: TfliteModel) -> TfliteModel:
    """The same model, with clamps made part of the operators whose results only they read.

    This works on float32 models and on quantised models: the operator's result takes the scale of
    the clamp, so that nothing is rounded twice. Tensors that are not made any more are dropped, so
    the indices of tensors change.
    """
    readers = Counter(index for operator in model.operators for index in operator.inputs)
    readers.update(model.outputs)
    clamps = {
        operator.inputs[0]: operator
        for operator in model.operators
        if operator.code in _KINDS and readers[operator.inputs[0]] == 1
    }
    operators = []
    drawn_in: set[int] = set()
    for operator in model.operators:
        if id(operator) in drawn_in:
            continue
        clamp = clamps.get(operator.outputs[0]) if operator.code in _TAKERS else None
        if clamp is None or not _fits(model, operator, clamp):
            operators.append(replace(operator))
            continue
        drawn_in.add(id(clamp))
        options = {**operator.options, "fusedActivationFunction": _KINDS[clamp.code]}
        operators.append(replace(operator, outputs=list(clamp.outputs), options=options))
    return _compact(replace(model, operators=operators))


def _fits(model: TfliteModel, operator: BuiltOperator, clamp: BuiltOperator) -> bool:
    """Whether the operator may make the clamp's result: pools cannot change a tensor's scale."""
    first, second = model.tensors[operator.outputs[0]], model.tensors[clamp.outputs[0]]
    if first.dtype != second.dtype:
        return False
    if first.scales is None or second.scales is None or operator.code not in _POOLS:
        return True
    return (*first.scales, first.zero_point) == (*second.scales, second.zero_point)


def _compact(model: TfliteModel) -> TfliteModel:
    """Without the tensors that no operator makes or reads and that are no input or output."""
    used = {*model.inputs, *model.outputs}
    for operator in model.operators:
        used.update(operator.inputs, operator.outputs)
    used.discard(-1)
    kept = [index for index in range(len(model.tensors)) if index in used]
    place = {index: at for at, index in enumerate(kept)} | {-1: -1}
    return TfliteModel(
        model.name,
        [model.tensors[index] for index in kept],
        [
            replace(
                operator,
                inputs=[place[index] for index in operator.inputs],
                outputs=[place[index] for index in operator.outputs],
            )
            for operator in model.operators
        ],
        [place[index] for index in model.inputs],
        [place[index] for index in model.outputs],
    )
