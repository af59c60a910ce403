"""Options that several commands share, and the files and names that they stand for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from latfarm_predictors.errors import ModelFileError

from latfarm_controller.cli.shell import complete, output
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.kernels.fusion import FusionRules

# `readable=False`: the code that reads a file says in one line why it cannot be read.
Models = Annotated[
    list[Path],
    typer.Argument(
        help="ONNX or TFLite files, or folders: all *.onnx and *.tflite files in a folder are "
        "read.",
        readable=False,
    ),
]
Platform = Annotated[
    str,
    typer.Option(
        "--platform",
        "-p",
        help="Name of the platform; see latfarm platforms.",
        autocompletion=complete.platforms,
    ),
]
MOST_BATCH = 65_536
"""Largest batch size; no board that is measured here holds more inputs at once."""
Batch = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST_BATCH,
        help="Batch size, in the place of that of the file. 0: leave the model as it is.",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="Shape for an input that leaves sizes open, as name:1,3,224,224. May be repeated."
    ),
]
Optimise = Annotated[
    bool,
    typer.Option(
        "--optimise",
        help="Simplify the model with onnxslim first. This takes seconds; use it for exports "
        "with many leftover operators.",
    ),
]
BundlePlatform = Annotated[
    str,
    typer.Option(
        "--platform",
        "-p",
        help="Name of the platform. It may be left out if only one platform has a bundle.",
        autocompletion=complete.platforms,
    ),
]
Energy = Annotated[
    bool,
    typer.Option(
        "--energy",
        help="Measure the energy of an inference, too. The board needs a power sensor.",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0.0,
        help="Seconds to wait while another command holds the store. 0: fail at once.",
    ),
]
CampaignName = Annotated[
    str,
    typer.Option(
        "--name",
        help="Name for the campaign. The same command with another name starts a new campaign.",
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        help="Only boards with this tag. May be repeated: a board must have all of these tags. "
        "latfarm boards set NAME --tag TAG gives a board a tag.",
        autocompletion=complete.tags,
    ),
]
SUFFIXES = (".onnx", ".tflite")
"""Suffixes of the files that are read where a folder is named."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def chosen_by(tags: Sequence[str] | None) -> dict[str, list[str]]:
    """What tags add to the configuration of a campaign; without tags, nothing.

    Raises:
        UsageError: a tag is malformed.
    """
    from latfarm_controller.board_profile import checked_tags

    return {"tags": list(checked_tags(tags))} if tags else {}


def model_files(paths: Sequence[Path]) -> tuple[list[Path], bool]:
    """The files of models among `paths`, each folder replaced by the files in it.

    Hidden files and folders, such as those of version control and of virtual environments, are left
    out of folders. A file that is named twice counts once.

    Returns:
        The files, and whether the answer is a list: several files, or a folder, were named.

    Raises:
        UsageError: a folder holds no model, or cannot be read.
    """
    files: list[Path] = []
    in_folder = False
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        in_folder = True
        found = sorted(_models_in(path))
        if not found:
            ends = " or ".join(f"*{end}" for end in SUFFIXES)
            raise UsageError(f"{path}: this folder holds no {ends} file")
        files.extend(found)
    return list(dict.fromkeys(files)), in_folder or len(files) > 1


def _models_in(folder: Path) -> Iterator[Path]:
    """The models in a folder and in the folders below it.

    Raises:
        UsageError: the folder cannot be read. A folder below it that cannot be read is told.
    """

    def unreadable(error: OSError) -> None:
        text = f"{error.filename}: this folder cannot be read: {error.strerror}"
        if Path(error.filename) == folder:
            raise UsageError(text) from error
        output.error(f"{text}; its models are left out")

    for root, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(root, name)


def check_to_write(*paths: Path | None) -> None:
    """Refuse paths at which no file can be written, before the work whose result would be lost.

    Folders that are missing are made later, so those above them count.

    Args:
        paths: the files; None: one that nobody wants.

    Raises:
        UsageError: a path is a folder, or what is above it is a file or cannot be written.
    """
    for path in filter(None, paths):
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file in it")
        above = next(each for each in path.absolute().parents if each.exists())
        if not above.is_dir():
            raise UsageError(f"{path}: {above} is a file; name a file in a folder")
        if not os.access(above, os.W_OK | os.X_OK):
            raise UsageError(
                f"{path}: nothing can be written in {above}; name another folder, or mend its "
                "permissions"
            )


def check_reading(models: Sequence[object] | None, batch: int, shape: Sequence[str] | None) -> None:
    """Check the options that say how models are read, before anything is started.

    Args:
        models: the models that are named, if any.
        batch: see `read_model`.
        shape: see `shapes`.

    Raises:
        UsageError: a shape has another form, or no model is named.
    """
    if shapes(shape or []) and not models:
        raise UsageError("--shape says how models are read; name the models, too")
    if batch and not models:
        raise UsageError("--batch says how models are read; name the models, too")


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read shapes: `name:1,3,224,224` becomes {name: (1, 3, 224, 224)}.

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
            raise UsageError(
                f"--shape {text}: a shape is written as name:1,3,224,224, with positive sizes"
            )
        bound[name] = shape
    return bound


def check_format(model_format: str, dtype: str) -> None:
    """Check that models can be built in this format and data type.

    Raises:
        UsageError: they cannot; the message names the known formats or data types.
    """
    from latfarm_controller import builders

    known = builders.dtypes_of(model_format)
    if known is None:
        raise UsageError(
            f"there is no format {model_format!r}; known formats: {builders.known_formats()}"
        )
    if dtype not in known:
        raise UsageError(
            f"models in the format {model_format} can be {' or '.join(known)}, not {dtype!r}"
        )


def read_model(path: Path, batch: int, shape: Sequence[str], *, optimise: bool = False) -> Graph:
    """Read an ONNX or TFLite file.

    Args:
        path: the file.
        batch: batch size in the place of that of the file; 0: as the model has it.
        shape: shapes of inputs, as `shapes` reads them.
        optimise: simplify the model first.

    Raises:
        ModelFileError: the file is not a usable model.
        UsageError: a shape has another form.
    """
    from latfarm_predictors.frontends.model_file import read_model as read

    try:
        return read(path, batch=batch or None, shapes=shapes(shape) or None, optimise=optimise)
    except ModelFileError as error:
        family = _family_of(path)
        if not family:
            raise
        raise ModelFileError(
            f"{path}: no such file; latfarm zoo export {family} -o FOLDER writes the network of "
            "that name"
        ) from error


def _family_of(path: Path) -> str:
    """The family of the zoo that a file which does not exist is named after; empty if none is."""
    from latfarm_controller.zoo.families import FAMILIES

    if path.exists() or len(path.parts) != 1:
        return ""
    return next((name for name in (path.name, path.stem) if name in FAMILIES), "")


def read_models(
    files: Sequence[Path], batch: int, shape: Sequence[str], *, optimise: bool = False
) -> list[tuple[Path, Graph]]:
    """Read ONNX or TFLite files; a file that is not a usable model is reported and left out.

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
        UsageError: the file cannot be read, or does not hold fusion rules.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: this file cannot be read: {reason}") from error
    return parse_rules(text, str(path))


def parse_rules(text: str, origin: str) -> FusionRules:
    """Read fusion rules from JSON text.

    Args:
        text: the JSON.
        origin: where the text comes from, for the error message.

    Raises:
        UsageError: the text does not hold fusion rules; the message names the wrong entry.
    """
    from latfarm_predictors.errors import FusionRulesError
    from latfarm_predictors.kernels.fusion import FusionRules

    try:
        return FusionRules.loads(text)
    except FusionRulesError as error:
        raise UsageError(f"{origin}: {error}") from error


def for_platform(graph: Graph, platform: str) -> Graph:
    """The form in which a platform is asked about a model.

    An int8 platform quantises float networks itself. There an int8 file stands for the float
    network that was quantised.
    """
    from latfarm_controller.platform_name import as_asked

    return as_asked(graph, platform)
