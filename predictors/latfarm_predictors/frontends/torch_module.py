"""Read a PyTorch network as a Graph, through PyTorch's own exporter of ONNX, in memory.

It needs the extra `torch`. Weights are never written to a file: a Graph needs their types alone. So
a module on PyTorch's device "meta", which has no data at all, is read too.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from latfarm_predictors.errors import ModelFileError
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.frontends.onnx_constants import VALUES_LIMIT
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.optional_libraries import check_installed, library

_ABSENT = "weights"
"""Name of a file of weights that nobody writes, because a Graph needs their types alone."""
_QUOTED_LETTERS = 300
"""Largest number of letters of PyTorch's errors that a message tells."""


def from_torch(
    model: Any,
    example_inputs: Sequence[Any] | Any = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    batch: int | None = None,
    optimise: bool = False,
) -> Graph:
    """Read a PyTorch network.

    Args:
        model: a `torch.nn.Module`, a `torch.export.ExportedProgram`, or the path of one that
            `torch.export.save` has written (`.pt2`).
        example_inputs: one tensor, or a tuple of tensors, with the shapes of the network's inputs;
            the values do not matter. A module needs them, an exported program has its own.
        example_kwargs: inputs that a module takes by name.
        batch: the first dimension of every input, instead of that of the examples.
        optimise: simplify the network with onnxslim, as in `read_onnx`.

    Raises:
        MissingLibraryError: torch or onnxscript is not installed.
        ModelFileError: PyTorch cannot export the network, or `model` is none of these. The message
            says what PyTorch says.
        UnsupportedOpError: the network uses an op that a Graph cannot express.
    """
    torch = library("torch")
    check_installed("onnxscript")
    program = model
    if isinstance(model, (str, Path)):
        program = _loaded(torch, Path(model))
    is_module = isinstance(program, torch.nn.Module)
    if not is_module and not isinstance(program, torch.export.ExportedProgram):
        raise ModelFileError(
            f"{type(model).__name__} is no PyTorch network; give a torch.nn.Module, an "
            "ExportedProgram, or the path of a .pt2 file"
        )
    name = type(program).__name__ if is_module else "exported program"
    if isinstance(model, (str, Path)):
        name = str(model)
    inputs = (
        tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    )
    if is_module and not inputs and not example_kwargs:
        raise ModelFileError(f"{name}: a module is read with example inputs; give example_inputs")
    if is_module:
        program = _exported(torch, program, inputs, dict(example_kwargs or {}), name)
    graph = read_onnx(_as_onnx(torch, program, name), batch=batch, optimise=optimise)
    return replace(graph, name=Path(name).stem)


def _loaded(torch: Any, path: Path) -> Any:
    """The exported program in a file."""
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file; check the path")
    try:
        return torch.export.load(path)
    except Exception as error:  # PyTorch documents none of its errors
        raise ModelFileError(
            f"{path}: is not an exported program: {_short(error)}; write one with torch.export.save"
        ) from error


def _exported(
    torch: Any, module: Any, inputs: tuple[Any, ...], named: dict[str, Any], name: str
) -> Any:
    """The module as an exported program, as it is at inference; its parts get their modes back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(module, inputs, named or None)
    except Exception as error:
        raise ModelFileError(
            f"{name}: PyTorch cannot export this module: {_short(error)}; check that the example "
            "inputs fit it"
        ) from error
    finally:
        for part, training in modes:
            part.training = training


def _as_onnx(torch: Any, program: Any, name: str) -> Any:
    """The exported program as a ModelProto, whose large weights are in a file that is not there."""
    ir = library("onnx_ir")
    empty = {name for name, tensor in program.state_dict.items() if tensor.is_meta}
    try:
        with _quiet():
            # what has no data cannot be optimised, as that computes constants
            made = torch.onnx.export(program, dynamo=True, verbose=False, optimize=not empty).model
            offset = 0
            for value in made.graph.initializers.values():
                tensor = value.const_value
                if tensor.size > VALUES_LIMIT or value.name in empty:
                    value.const_value = ir.ExternalTensor(
                        _ABSENT,
                        offset,
                        tensor.nbytes,
                        tensor.dtype,
                        shape=tensor.shape,
                        name=value.name,
                    )
                    offset += tensor.nbytes
            return ir.to_proto(made)
    except Exception as error:
        raise ModelFileError(
            f"{name}: PyTorch cannot write this network as ONNX: {_short(error)}; see "
            "torch.onnx.export"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what PyTorch's exporter prints and warns of."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _short(error: BaseException) -> str:
    """The first line of an error, or its type if it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0][:_QUOTED_LETTERS] if lines else type(error).__name__
