"""The work of `latfarm zoo export`: graphs one by one into files, or all into one of JSON lines."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.whole_file import written_whole

from latfarm_controller import builders, zoo
from latfarm_controller.cli.shell.inputs import check_format
from latfarm_controller.cli.shell.output import quiet_libraries
from latfarm_controller.cli.shell.progress import bars
from latfarm_controller.errors import BuildError, UsageError
from latfarm_controller.zoo.draws import dataset
from latfarm_controller.zoo.draws.variants import RULES, Rule

_SUFFIXES = {"graph-json": ".json", "ncnn": ".ncnn.zip"}  # of others the format's own name
_GROUPS = {"all": tuple(zoo.families()), "nn-meter": dataset.FAMILIES}


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What to write: networks, how they are bent, and where to."""

    names: tuple[str, ...]
    target: Path
    as_lines: bool
    model_format: str
    dtype: str
    variants: int
    rule: Rule
    seed: int
    width: float
    resolution: int | None
    batch: int
    force: bool

    @property
    def graphs(self) -> int:
        """How many are to be written."""
        return len(self.names) * max(self.variants, 1)


def plan(
    names: Sequence[str],
    *,
    out: Path | None,
    jsonl: Path | None,
    model_format: str,
    dtype: str,
    variants: int,
    rule: str,
    seed: int,
    width: float,
    resolution: int | None,
    batch: int,
    force: bool,
) -> ExportPlan:
    """The options, checked against each other.

    Raises:
        UsageError: a name, format or combination is unknown; says what is known.
    """
    if (out is None) == (jsonl is None):
        raise UsageError("say where to write to: either -o FOLDER or --jsonl FILE")
    target = cast(Path, out if jsonl is None else jsonl)
    wanted = model_format or ("onnx" if jsonl is None else "graph-json")
    check_format(wanted, dtype)
    if jsonl is not None and wanted != "graph-json":
        raise UsageError(f"--jsonl holds graph-json, not {wanted}")
    if rule not in RULES:
        raise UsageError(f"no rule {rule!r}; known: {', '.join(RULES)}")
    if variants and width != 1.0:
        raise UsageError("--width is for networks as published: variants draw their own widths")
    if jsonl is not None and jsonl.exists() and not force:
        raise UsageError(f"{jsonl} exists; --force overwrites it")
    every = [one for name in names for one in _GROUPS.get(name, (name,))]
    for name in every:
        zoo.find(name)
    return ExportPlan(
        names=tuple(dict.fromkeys(every)),
        target=target,
        as_lines=jsonl is not None,
        model_format=wanted,
        dtype=dtype,
        variants=variants,
        rule=rule,
        seed=seed,
        width=width,
        resolution=resolution,
        batch=batch,
        force=force,
    )


def run(wanted: ExportPlan) -> tuple[list[str], list[dict[str, str]]]:
    """Write all that can be written.

    Returns:
        the names of what was written (files, or graphs in the file of JSON lines), and of what was
        not with the reason.

    Raises:
        OSError: a file cannot be written, as on a full disk; those before it stay.
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
    """One graph, as a line or as a file; its name."""
    if stream is not None:
        stream.write(builders.build(graph, "graph-json", wanted.dtype) + b"\n")
        return graph.name
    batch = f"-b{wanted.batch}" if wanted.batch > 1 else ""
    dtype = "" if wanted.dtype == "fp32" else f"-{wanted.dtype}"
    suffix = _SUFFIXES.get(wanted.model_format, f".{wanted.model_format}")
    path = wanted.target / f"{graph.name}{batch}{dtype}{suffix}"
    if path.exists() and not wanted.force:
        raise UsageError(f"{path} exists; --force overwrites it")
    with quiet_libraries():
        data = builders.build(graph, wanted.model_format, wanted.dtype)
    with written_whole(path, make_folder=True) as part:
        part.write_bytes(data)
    return str(path)


@contextmanager
def _lines(wanted: ExportPlan) -> Iterator[IO[bytes] | None]:
    """The file of JSON lines, where one is wanted; it appears when the block ends well."""
    if not wanted.as_lines:
        yield None
        return
    with written_whole(wanted.target, make_folder=True) as part, part.open("wb") as raw:
        if wanted.target.suffix != ".gz":
            yield raw
            return
        # No name and no time inside: the same graphs make the same file.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
