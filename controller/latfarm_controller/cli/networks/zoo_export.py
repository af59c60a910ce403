"""The work of `latfarm zoo export`: a file for each network, or one file of JSON lines for all."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from latfarm_predictors.errors import GraphError
from latfarm_predictors.whole_file import written_whole

from latfarm_controller import builders, zoo
from latfarm_controller.cli.shell.inputs import check_format
from latfarm_controller.cli.shell.output import quiet_libraries
from latfarm_controller.cli.shell.progress import bars
from latfarm_controller.errors import BuildError, UsageError
from latfarm_controller.private_files import callers_umask
from latfarm_controller.zoo.draws import dataset
from latfarm_controller.zoo.draws.variants import RULES, Rule

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph

_SUFFIXES = {"graph-json": ".json", "ncnn": ".ncnn.zip"}
"""Suffixes of files by format; files of other formats have the format's name as suffix."""
_GROUPS = {
    "all": tuple(zoo.families()),
    "nn-meter": dataset.FAMILIES,
    "transformers": dataset.TRANSFORMERS,
}
"""Names that stand for several families."""


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Where networks are written to, and how.

    Attributes:
        path: a folder, or the file that holds all networks.
        as_lines: whether `path` is a file with a graph as JSON on each line.
        model_format: format of the files.
        dtype: data type of the models.
    """

    path: Path
    as_lines: bool
    model_format: str
    dtype: str


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What to write, and where to.

    Attributes:
        names: the networks.
        target: where they go.
        variants: random variants of each network; 0: the network as published.
        rule: how variants are drawn.
        seed: random seed of the variants.
        width: factor for the number of channels of networks as published.
        resolution: input size; None: as published.
        batch: batch size.
        replace: whether files that exist are replaced.
    """

    names: tuple[str, ...]
    target: ExportTarget
    variants: int
    rule: Rule
    seed: int
    width: float
    resolution: int | None
    batch: int
    replace: bool

    @property
    def graphs(self) -> int:
        """How many networks are to be written."""
        return len(self.names) * max(self.variants, 1)

    def check(self) -> None:
        """Check the options against each other.

        Raises:
            UsageError: two options contradict each other, or a file exists.
        """
        if self.variants and self.width != 1.0:
            raise UsageError(
                "--width cannot be used with --variants, because variants draw their own widths"
            )
        if self.target.as_lines and self.target.path.exists() and not self.replace:
            raise UsageError(f"{self.target.path} exists; --replace replaces it")


def target_of(out: Path | None, jsonl: Path | None, model_format: str, dtype: str) -> ExportTarget:
    """Where the options `--output`, `--jsonl`, `--format` and `--dtype` say that networks go.

    Raises:
        UsageError: the options contradict each other, or the format cannot be built.
    """
    if (out is None) == (jsonl is None):
        raise UsageError("say where to write to: either -o FOLDER or --jsonl FILE")
    wanted = model_format or ("onnx" if jsonl is None else "graph-json")
    check_format(wanted, dtype)
    if jsonl is not None and wanted != "graph-json":
        raise UsageError(f"--jsonl writes the format graph-json, not {wanted}")
    path = cast(Path, out if jsonl is None else jsonl)
    if path.exists() and path.is_dir() != (jsonl is None):
        what = "is a file; name a folder" if jsonl is None else "is a folder; name a file in it"
        raise UsageError(f"{path} {what}")
    return ExportTarget(path, jsonl is not None, wanted, dtype)


def rule_of(name: str) -> Rule:
    """The rule of that name by which variants are drawn.

    Raises:
        UsageError: there is no such rule.
    """
    if name not in RULES:
        raise UsageError(f"there is no rule {name!r}; known rules: {', '.join(RULES)}")
    return name


def expanded(names: Sequence[str]) -> tuple[str, ...]:
    """The networks that are named, each once, groups such as `all` replaced by their members.

    Raises:
        UsageError: there is no network of that name.
    """
    every = [one for name in names for one in _GROUPS.get(name, (name,))]
    for name in every:
        zoo.find(name)
    return tuple(dict.fromkeys(every))


def run(wanted: ExportPlan) -> tuple[list[str], list[dict[str, str]]]:
    """Write all that can be written.

    Returns:
        The names of what was written (files, or graphs in the file of JSON lines), and the networks
        that could not be written, each with the reason.

    Raises:
        OSError: a file cannot be written, for example on a full disk. The files before it stay.
    """
    written: list[str] = []
    failed: list[dict[str, str]] = []
    with bars() as progress, _lines(wanted) as stream:
        bar = progress.add_task("export", total=wanted.graphs)
        for name in wanted.names:
            before = len(written) + len(failed)
            try:
                for graph in _graphs(wanted, name):
                    try:
                        written.append(_write(wanted, graph, stream))
                    except (BuildError, UsageError) as error:
                        failed.append({"model": graph.name, "reason": str(error)})
                    progress.advance(bar)
            except (GraphError, UsageError) as error:
                failed.append({"model": name, "reason": str(error)})
                made = len(written) + len(failed) - before - 1
                progress.advance(bar, max(wanted.variants, 1) - made)
    return written, failed


def _graphs(wanted: ExportPlan, name: str) -> Iterator[Graph]:
    if wanted.variants:
        yield from dataset.family_variants(
            name,
            wanted.variants,
            wanted.seed,
            batch=wanted.batch,
            rule=wanted.rule,
            resolutions=None if wanted.resolution is None else (wanted.resolution,),
        )
        return
    yield zoo.build(name, width=wanted.width, resolution=wanted.resolution, batch=wanted.batch)


def _write(wanted: ExportPlan, graph: Graph, stream: IO[bytes] | None) -> str:
    """Write one graph as a line or as a file; the name of the graph or file."""
    if stream is not None:
        stream.write(builders.build(graph, "graph-json", wanted.target.dtype) + b"\n")
        return graph.name
    batch = f"-b{wanted.batch}" if wanted.batch > 1 else ""
    dtype = "" if wanted.target.dtype == "fp32" else f"-{wanted.target.dtype}"
    suffix = _SUFFIXES.get(wanted.target.model_format, f".{wanted.target.model_format}")
    path = wanted.target.path / f"{graph.name}{batch}{dtype}{suffix}"
    if path.exists() and not wanted.replace:
        raise UsageError(f"{path} exists; --replace replaces it")
    with quiet_libraries():
        data = builders.build(graph, wanted.target.model_format, wanted.target.dtype)
    with callers_umask(), written_whole(path, make_folder=True) as part:
        part.write_bytes(data)
    return str(path)


@contextmanager
def _lines(wanted: ExportPlan) -> Iterator[IO[bytes] | None]:
    """The file of JSON lines, if one is wanted; it appears when the block ends without error."""
    if not wanted.target.as_lines:
        yield None
        return
    path = wanted.target.path
    with callers_umask(), written_whole(path, make_folder=True) as part, part.open("wb") as raw:
        if wanted.target.path.suffix != ".gz":
            yield raw
            return
        # Without a name and a time inside, the same graphs make the same file.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
