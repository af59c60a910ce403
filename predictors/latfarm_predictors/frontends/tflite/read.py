"""Read a TFLite file as a Graph.

Images become channels-first, fused activations become nodes of their own, and the paddings SAME and
VALID become pads. Quantised tensors are read as in int8 ONNX files: an op computes with real
numbers between a DequantizeLinear and a QuantizeLinear. The data of weights stay in the file. Every
fault of a file becomes a ModelFileError with one line that names the file, the operator and the
remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from latfarm_predictors.errors import GraphError, ModelFileError, UnsupportedOpError
from latfarm_predictors.frontends.onnx_constants import UnsupportedError
from latfarm_predictors.frontends.onnx_file import Contents, Source, contents_of
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.frontends.tflite import elementwise, matrices, moves, windows
from latfarm_predictors.frontends.tflite.axes import ordered
from latfarm_predictors.frontends.tflite.model import ReadModel, ReadOperator, parse
from latfarm_predictors.frontends.tflite.translation import TfliteReading, input_order
from latfarm_predictors.frontends.tflite.windows import Handler
from latfarm_predictors.graph.graph import Graph, TensorType

_HANDLERS: Mapping[str, Handler] = {
    **elementwise.HANDLERS,
    **matrices.HANDLERS,
    **moves.HANDLERS,
    **windows.HANDLERS,
}
_FOREIGN = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)
"""Errors that Python and numpy raise on damaged or hostile files."""
_QUOTED_LETTERS = 300
"""The largest number of letters of an error that a message tells; a file's texts may be long."""


def read_tflite(
    source: Source,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """Read a model.

    Args:
        source: path of a .tflite file, or the model's bytes, or an open file.
        batch: the first dimension of every input; it replaces the one in the file.
        shapes: full shapes of inputs by name, in the file's order of axes (images as N, H, W, C);
            they replace those in the file, and `batch`.

    Raises:
        ModelFileError: the file is missing, is not TFLite, is damaged or contradicts itself.
        UnsupportedOpError: the model uses an op, or a form of one, that a Graph cannot express.
    """
    contents = contents_of(source)
    return read_contents(contents, batch, shapes or MappingProxyType({}))[0]


def read_contents(
    contents: Contents, batch: int | None, shapes: Mapping[str, Sequence[int]]
) -> tuple[Graph, Emitter]:
    """The Graph of a file's contents, and what made it, which has the values of its weights.

    The arguments and errors are those of `read_tflite`.
    """
    file, data, _ = contents
    try:
        model = parse(data)
    except UnsupportedError as error:
        raise UnsupportedOpError(f"{file}: {_short(error)}; convert the model again") from error
    except (GraphError, *_FOREIGN) as error:
        raise ModelFileError(
            f"{file}: is not a TFLite model, or is damaged: {_short(error)}; copy or convert it "
            "again"
        ) from error
    em = Emitter()
    reading = TfliteReading(em, model)
    _read_inputs(file, reading, batch, shapes)
    for number, op in enumerate(model.operators):
        _read_operator(file, reading, number, op)
    try:
        outputs = [moves.in_output_order(reading, index) for index in model.outputs]
        name = "".join(c if c.isprintable() else " " for c in model.name)[:_QUOTED_LETTERS]
        return em.finish(name.strip() or file.stem, outputs), em
    except (GraphError, *_FOREIGN) as error:
        raise ModelFileError(f"{file}: {_short(error)}; convert the model again") from error


def _read_inputs(
    file: Path, t: TfliteReading, batch: int | None, shapes: Mapping[str, Sequence[int]]
) -> None:
    """Add the inputs, with the batch and the shapes that the caller wants."""
    if batch is not None and batch < 1:
        raise ModelFileError(f"{file}: a batch of {batch}; give --batch 1 or more")
    names = _input_names(t.model)
    for name in shapes:
        if name not in names:
            raise ModelFileError(
                f"{file}: has no input {name!r}; give --shape for {', '.join(names)}"
            )
    for index, name in zip(t.model.inputs, names, strict=True):
        told = t.model.tensors[index]
        shape = told.shape
        if name in shapes:
            shape = tuple(shapes[name])
        elif batch is not None and shape:
            shape = (batch, *shape[1:])
        if len(shape) != len(told.shape) or min(shape, default=1) < 1:
            raise ModelFileError(
                f"{file}: shape {list(shape)} does not fit input {name!r} of shape "
                f"{list(told.shape)}; give --shape with as many sizes, each at least 1"
            )
        t.rescaled |= shape != told.shape
        try:
            order = input_order(t.model, index)
            t.em.add_input(name, TensorType(told.type.dtype, ordered(shape, order)))
            t.put(index, name, order)
        except GraphError as error:
            raise UnsupportedOpError(
                f"{file}: input {name!r}: {_short(error)}; convert the model with float inputs"
            ) from error


def _input_names(model: ReadModel) -> list[str]:
    """A name of each input: the one in the file, if it is a text and no other input has it."""
    found: list[str] = []
    for number, index in enumerate(model.inputs):
        name = model.tensors[index].name
        sound = name.isprintable() and name and name not in found and ":" not in name[-4:]
        found.append(name[:_QUOTED_LETTERS] if sound else f"input_{number}")
    return found


def _read_operator(file: Path, t: TfliteReading, number: int, op: ReadOperator) -> None:
    """Add what one operator does."""
    label = f"operator {number} ({op.code})"
    handler = _HANDLERS.get(op.code) if op.known else None
    if handler is None:
        raise UnsupportedOpError(
            f"{file}: {label} cannot be expressed in a Graph; convert the model without it, or "
            "export the network to ONNX"
        )
    if not op.outputs or min(op.outputs) < 0:
        raise ModelFileError(f"{file}: {label} makes nothing; convert the model again")
    made = t.model.tensors[op.outputs[0]].name
    t.em.start(made[:_QUOTED_LETTERS] if made and made.isprintable() else f"operator_{number}")
    try:
        handler(t, op)
    except UnsupportedError as error:
        raise UnsupportedOpError(
            f"{file}: {label}: {_short(error)}; convert the model without it, or export the "
            "network to ONNX"
        ) from error
    except (GraphError, *_FOREIGN) as error:
        raise ModelFileError(
            f"{file}: {label}: {_short(error)}; convert the model again"
        ) from error


def _short(error: BaseException) -> str:
    """What an error says, as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(c if c.isprintable() else " " for c in text)[:_QUOTED_LETTERS]
