"""Measures the ranges of a TFLite model's activations, by running the float model once on noise.

Deep networks need this, because the error of an estimate is a few per cent for one layer but too
large after a hundred layers. Operators that compute the minimum and the maximum are added after
each operator. Their results replace the model's own outputs, so that the run needs no more memory
than usual.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.builders.noise import inputs
from latfarm_controller.builders.tflite.file import Array, TfliteModel, serialise
from latfarm_controller.errors import BuildError

Range = tuple[float, float]

# Range that is assumed for the float inputs of an int8 model: about that of a normalised image.
INPUT: Range = (-3.0, 3.0)
_DEVIATION = 1.5  # factor that is applied to the noise of the inputs before it is cut to `INPUT`
_DEVIATIONS = 3.7  # standard deviations that a range should include on each side


def measured_ranges(
    model: TfliteModel, inputs: Sequence[Array], skipped: Collection[str] = ()
) -> list[Range | None]:
    """Measure the range of each float activation of a float model, and widen it a little.

    Args:
        model: the model to run; its real-valued activations are float32, and others may be
            integers or booleans.
        inputs: the model's input data, in the order and the layouts of its inputs.
        skipped: codes of operators whose results need no range.

    Returns:
        one range per tensor of the model, by its index; `INPUT` for float inputs; None for
        constants, for tensors that are not float32, and for results of operators in `skipped`.

    Raises:
        BuildError: ai-edge-litert is not installed or cannot run the model, or the weights exceed
            2 GB.
    """
    probed, measured = _probed(model, frozenset(skipped))
    data = serialise(probed)
    from ai_edge_litert.interpreter import Interpreter

    try:
        interpreter = Interpreter(model_content=data, num_threads=1)
        interpreter.allocate_tensors()
        for detail, values in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(detail["index"], values)
        interpreter.invoke()
    except (RuntimeError, ValueError) as error:  # the message names operator and node
        raise BuildError(f"{model.name}: ranges cannot be measured: {error}") from error
    ends = [float(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]
    found: list[Range | None] = [None] * len(model.tensors)
    for position, index in enumerate(measured):
        count = math.prod(model.tensors[index].shape)
        found[index] = _widened(ends[2 * position], ends[2 * position + 1], count)
    for index in model.inputs:
        if model.tensors[index].dtype == "float32":
            found[index] = INPUT
    return found


def _widened(low: float, high: float, count: int) -> Range:
    """Widen a measured range to the values that other inputs may produce.

    `count` is the number of values from which the range was measured. The range of few values is
    widened more than that of many, because the largest of n standard normal deviates is close to
    sqrt(2 log n).
    """
    factor = max(_DEVIATIONS / math.sqrt(2 * math.log(max(count, 3))), 1.0)
    centre = 0.0 if low <= 0.0 <= high else (low + high) / 2
    return centre + factor * (low - centre), centre + factor * (high - centre)


def sample(graph: Graph) -> dict[str, Array]:
    """Make the inputs with which ranges are measured.

    Float inputs are noise that fills the range `INPUT`. Other inputs keep their type, except that
    int64 becomes int32. In an input that contains only ones, which is a mask, the end is set to 0.
    """
    found: dict[str, Array] = {}
    for tensor, data in inputs(graph).items():
        if data.dtype.kind == "f":
            found[tensor] = np.clip(_DEVIATION * data, *INPUT).astype(np.float32)
        else:
            narrow = data.astype(np.int32 if data.dtype == np.int64 else data.dtype)
            if narrow.ndim and narrow.all() and narrow.max() == 1:
                narrow[..., -max(narrow.shape[-1] // 8, 1) :] = 0
            found[tensor] = narrow
    return found


def _probed(model: TfliteModel, skipped: frozenset[str]) -> tuple[TfliteModel, list[int]]:
    """Return the model with the minimum and the maximum of its activations as outputs.

    Returns:
        the model, and the indices of the tensors that it measures; the model has two outputs for
        each of them, in the same order.
    """
    made = TfliteModel(model.name, list(model.tensors), [], list(model.inputs), [])
    measured: list[int] = []
    axes: dict[int, int] = {}
    for operator in model.operators:
        made.operators.append(operator)
        for index in operator.outputs:
            tensor = model.tensors[index]
            if tensor.dtype != "float32" or operator.code in skipped:
                continue
            rank = len(tensor.shape)
            if rank not in axes:
                axes[rank] = made.constant(f"axes_{rank}", np.arange(rank, dtype=np.int32))
            measured.append(index)
            for code in ("REDUCE_MIN", "REDUCE_MAX"):
                end = made.tensor(f"{tensor.name}_{code}", (), "float32")
                made.operator(code, [index, axes[rank]], [end], keepDims=False)
                made.outputs.append(end)
    return made, measured
