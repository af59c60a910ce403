"""Models and platforms as people name them on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from latfarm_predictors.errors import ModelFileError

from latfarm_controller.cli.shell import output
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.kernels.fusion import FusionRules

# Whether a file can be read is told by its reader, in one line.
Models = Annotated[list[Path], typer.Argument(help="ONNX files or folders of them", readable=False)]
Platform = Annotated[str, typer.Option("--platform", "-p", help="see latfarm platforms")]
Batch = Annotated[int, typer.Option(min=0, help="bind an open batch dimension; 0: as it is")]
Shape = Annotated[list[str] | None, typer.Option(help="bind an input's shape: name:1,3,224,224")]
Optimise = Annotated[
    bool, typer.Option("--optimise", help="simplify with onnxslim first; takes seconds")
]
Wait = Annotated[
    float, typer.Option("--wait", min=0.0, help="seconds to wait while another command works")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


def model_files(paths: Sequence[Path]) -> tuple[list[Path], bool]:
    """The ONNX files named, folders replaced by the files in them; whether it may be several.

    Raises:
        UsageError: a folder holds no ONNX file.
    """
    files: list[Path] = []
    in_folder = False
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        in_folder = True
        found = sorted(path.rglob("*.onnx"))
        if not found:
            raise UsageError(f"{path}: no *.onnx file in this folder")
        files.extend(found)
    return files, in_folder or len(files) > 1


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`name:1,3,224,224` to {name: (1, 3, 224, 224)}.

    Raises:
        UsageError: a text has another form.
    """
    bound: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        try:
            shape = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 1:
            raise UsageError(f"--shape {text}: expected name:1,3,224,224 (positive sizes)")
        bound[name] = shape
    return bound


def check_format(model_format: str, dtype: str) -> None:
    """See that there is a builder of this format and element type.

    Raises:
        UsageError: there is none; says which there are.
    """
    from latfarm_controller import builders

    known = builders.dtypes_of(model_format)
    if known is None:
        raise UsageError(f"no format {model_format!r}; known: {builders.known_formats()}")
    if dtype not in known:
        raise UsageError(f"{model_format} is written as {' or '.join(known)}, not {dtype!r}")


def read_model(path: Path, batch: int, shape: Sequence[str], *, optimise: bool = False) -> Graph:
    """Read an ONNX file.

    Raises:
        ModelFileError: it is no usable model.
        UsageError: a shape has another form.
    """
    from latfarm_predictors.frontends.onnx import read_onnx

    return read_onnx(path, batch=batch or None, shapes=shapes(shape) or None, optimise=optimise)


def read_models(
    files: Sequence[Path], batch: int, shape: Sequence[str], *, optimise: bool = False
) -> list[tuple[Path, Graph]]:
    """Read ONNX files before anything is started; bad ones are reported and left out.

    Raises:
        UsageError: a shape has another form.
    """
    graphs = []
    for file in files:
        try:
            graphs.append((file, read_model(file, batch, shape, optimise=optimise)))
        except ModelFileError as error:
            output.error(str(error))
    return graphs


def read_rules(path: Path) -> FusionRules:
    """Read a file of fusion rules.

    Raises:
        UsageError: it cannot be read, or holds none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be read: {reason}") from error
    return parse_rules(text, str(path))


def parse_rules(text: str, origin: str) -> FusionRules:
    """Fusion rules from JSON text.

    Raises:
        UsageError: they are none; names `origin` and the entry.
    """
    from latfarm_predictors.errors import FusionRulesError
    from latfarm_predictors.kernels.fusion import FusionRules

    try:
        return FusionRules.loads(text)
    except FusionRulesError as error:
        raise UsageError(f"{origin}: {error}") from error


def for_platform(graph: Graph, platform: str) -> Graph:
    """The form of a model that a platform is asked about.

    Where the platform itself makes models int8, an int8 file stands for the float network in it.
    """
    from latfarm_predictors.frontends.onnx_quantization import dequantised, is_quantised

    return dequantised(graph) if "int8" in platform.split("-") and is_quantised(graph) else graph
