"""Measures the ranges of a TFLite model's activations, by running the float model once on noise.

Deep networks need this: an estimate is good to a few per cent over one layer, but not over a
hundred layers. A minimum and a maximum are added after each operator and read instead of the
model's own outputs, so that the run needs no more memory than usual.
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

# Inputs of an int8 model span about what a normalised image does.
INPUT: Range = (-3.0, 3.0)
_DEVIATION = 1.5
_DEVIATIONS = 3.7  # standard deviations that a range should include on each side


def measured_ranges(
    model: TfliteModel, inputs: Sequence[Array], skipped: Collection[str] = ()
) -> list[Range | None]:
    """The smallest and the largest value of each float activation of a float model.

    Args:
        model: of float32 activations; indices and truths may occur.
        inputs: what to run it on, in the model's order and layouts.
        skipped: codes of operators whose results need no range.

    Returns:
        by tensor; None for constants, what is no float32, and results of `skipped`.

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
    except (RuntimeError, ValueError) as error:  # names operator and node itself
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
    """A range widened to what other inputs may reach.

    The extremes of few values are widened more than those of many: the largest of n normal deviates
    is near sqrt(2 log n).
    """
    factor = max(_DEVIATIONS / math.sqrt(2 * math.log(max(count, 3))), 1.0)
    centre = 0.0 if low <= 0.0 <= high else (low + high) / 2
    return centre + factor * (low - centre), centre + factor * (high - centre)


def sample(graph: Graph) -> dict[str, Array]:
    """Inputs to measure ranges with: pixels all over `INPUT`, ids, masks with some padding."""
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
    """The model with extremes as outputs, two for each of the tensors listed."""
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
