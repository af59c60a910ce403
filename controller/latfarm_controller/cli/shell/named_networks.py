"""The networks that a command is given: files, folders of them, or names in the zoo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_controller.cli.shell import inputs
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph


def named_networks(
    models: Sequence[str], batch: int, shape: Sequence[str], platform: str
) -> dict[str, Graph]:
    """The networks that are named, by name; all that samplers draw from, if none is named.

    A network is named as in its file. Exports of some tools all have the same name: where several
    networks have one, they are named as they were asked for.

    Args:
        models: ONNX or TFLite files, folders of them, or names of networks in the zoo.
        batch: batch size in the place of that of the file; 0: as the model has it, and 1 in the
            zoo.
        shape: shapes of inputs of the files, as `inputs.shapes` reads them.
        platform: the platform that is asked about.

    Raises:
        UsageError: a name is neither a file nor a network of the zoo.
        ModelFileError: a file is not a usable model.
    """
    from latfarm_controller import zoo

    if not models:
        drawn = (family.build(batch=batch or 1) for family in zoo.calibration_families().values())
        return {graph.name: graph for graph in drawn}
    found: dict[str, Graph] = {}
    for model in models:
        if _names_file(model):
            files, _ = inputs.model_files([Path(model)])
            for file in files:
                graph = inputs.read_model(file, batch, shape)
                found[str(file)] = inputs.for_platform(graph, platform)
            continue
        try:
            found[model] = zoo.build(model, batch=batch or 1)
        except UsageError as error:
            raise UsageError(f"{model}: there is no such file, and {error}") from error
    counts = Counter(graph.name for graph in found.values())
    return {
        graph.name if counts[graph.name] == 1 else asked: graph for asked, graph in found.items()
    }


def check_shape(models: Sequence[str], shape: Sequence[str] | None) -> None:
    """Refuse shapes of inputs where no file is named.

    Raises:
        UsageError: the shapes would have no effect.
    """
    if shape and not any(map(_names_file, models)):
        raise UsageError(
            "--shape says how files are read, and networks of the zoo have shapes of their own; "
            "name a file, or give the batch size with --batch"
        )


def _names_file(model: str) -> bool:
    """Whether a file or a folder is named, and no network of the zoo."""
    return Path(model).exists() or model.endswith(inputs.SUFFIXES)
