"""Merges activation functions into the operators before them, as TFLite's own converter does.

LiteRT runs an int8 convolution several times slower if the RELU6 after it is a separate operator,
because XNNPACK then leaves the convolution to the reference kernels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from latfarm_controller.builders.tflite.file import BuiltOperator, TfliteModel

# Numbers of the clamps in the schema's enumeration ActivationFunctionType.
_KINDS = {"RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}
_POOLS = frozenset({"MAX_POOL_2D", "AVERAGE_POOL_2D"})
# Operators that can apply a clamp to their own result.
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
    """Return the model with each clamp merged into the operator whose result only the clamp reads.

    This works on float32 models and on quantised models. In a quantised model, the operator's
    result takes the scale of the clamp's result, so that nothing is rounded twice. Tensors that no
    operator makes any more are removed, so the indices of tensors change.
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
    """Whether the operator can make the clamp's result.

    A pool can only do so if the clamp does not change the scale, because the operand and the result
    of a pool have the same scale.
    """
    first, second = model.tensors[operator.outputs[0]], model.tensors[clamp.outputs[0]]
    if first.dtype != second.dtype:
        return False
    if first.scales is None or second.scales is None or operator.code not in _POOLS:
        return True
    return (*first.scales, first.zero_point) == (*second.scales, second.zero_point)


def _compact(model: TfliteModel) -> TfliteModel:
    """Return the model without unused tensors.

    A tensor is unused if no operator makes or reads it and it is no input or output of the model.
    """
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
