"""`latfarm zoo`: the networks that can be built here, their sizes, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.totals import macs_of

from latfarm_controller.cli.shell import inputs, output

if TYPE_CHECKING:
    from latfarm_controller.zoo import Family
    from latfarm_controller.zoo.family import Published

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Networks that are built here: published families, their widths, and random variants.
    Needs no board, no store and no framework.

    \b
    Examples:
      latfarm zoo list
      latfarm zoo show mobilenet-v2 --width 0.5
      latfarm zoo export resnet18 mobilenet-v2 -o models
    """,
)

Width = Annotated[float, typer.Option(min=0.01, max=16.0, help="factor of all channel counts")]
Resolution = Annotated[
    int, typer.Option(min=0, help="pixels a side, or tokens of a sequence; 0: as published")
]
Batch = Annotated[int, typer.Option(min=1, help="size of the batch")]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="zoo")


@app.command("list")
def list_families(
    task: Annotated[
        str, typer.Option(help="only those for: classification, detection or language")
    ] = "",
    as_json: inputs.Json = False,
) -> None:
    """List the families: task, input size, parameters and multiply-adds as built, and the source.

    Parameters are trained ones, multiply-adds those of convolutions and matrix products at batch 1.
    Families that are drawn at random are shown with their first network, NAME@0.

    \b
    Examples:
      latfarm zoo list
      latfarm zoo list --task detection --json
    """
    from latfarm_predictors.graph.totals import trained_parameters

    from latfarm_controller import zoo
    from latfarm_controller.errors import UsageError

    tasks = sorted({family.task for family in zoo.families().values()})
    if task and task not in tasks:
        raise UsageError(f"no task {task!r}; known: {', '.join(tasks)}")
    rows: list[dict[str, Any]] = []
    for family in zoo.families().values():
        if task and family.task != task:
            continue
        graph = family.build()
        rows.append(
            {
                "name": family.name,
                "task": family.task,
                "resolution": family.resolution,
                "parameters": trained_parameters(graph),
                "macs": macs_of(graph),
                "source": family.source,
                "drawn": family.drawn,
                "lineage": sorted(family.lineage),
            }
        )
    if as_json:
        output.json_text(rows)
        return
    output.table(
        "",
        ["family", "task", "input", "Mparams", "MMACs", "source"],
        [
            [
                row["name"] + ("@0" if row["drawn"] else ""),
                row["task"],
                str(row["resolution"]),
                f"{row['parameters'] / 1e6:.3f}",
                f"{row['macs'] / 1e6:.1f}",
                row["source"],
            ]
            for row in rows
        ],
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="a family, or NAME@SEED of one that is drawn")],
    width: Width = 1.0,
    resolution: Resolution = 0,
    batch: Batch = 1,
    as_json: inputs.Json = False,
) -> None:
    """Show a network stage by stage, its sums, and what its publication says of them.

    \b
    Examples:
      latfarm zoo show mobilenet-v2
      latfarm zoo show mobilenet-v2 --width 0.5 --resolution 160 --json
      latfarm zoo show nasbench201@17
    """
    from dataclasses import asdict

    from latfarm_controller import zoo
    from latfarm_controller.zoo.summary import stages

    family, _ = zoo.find(name)
    graph = zoo.build(name, width=width, resolution=resolution or None, batch=batch)
    parts = stages(graph)
    ends = {
        kind: {t: [graph.type_of(t).dtype, *graph.type_of(t).shape] for t in tensors}
        for kind, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }
    total = {
        "nodes": len(graph.nodes),
        "parameters": sum(part.parameters for part in parts),
        "macs": macs_of(graph),
        "traffic_bytes": graph.traffic_bytes,
    }
    if as_json:
        output.json_text(
            {
                "name": graph.name,
                "family": family.name,
                "task": family.task,
                "source": family.source,
                "hash": network_hash_of(graph),
                **ends,
                "stages": [asdict(part) for part in parts],
                "total": total,
                "published": None if family.published is None else asdict(family.published),
            }
        )
        return
    console = output.out()
    console.print(f"{graph.name}  {network_hash_of(graph)}", style="bold")
    console.print(f"{family.task}: {family.source}")
    for kind, tensors in ends.items():
        for tensor, (dtype, *shape) in tensors.items():
            console.print(f"{kind[:-1]} {tensor}: {dtype} {'x'.join(map(str, shape))}")
    output.table(
        "",
        ["maps", "ops", "output", "Kparams", "MMACs"],
        [
            [
                "x".join(map(str, part.size)) or "vector",
                " ".join(f"{op}:{count}" for op, count in list(part.ops.items())[:5])
                + (" ..." if len(part.ops) > 5 else ""),
                "x".join(map(str, part.output)),
                f"{part.parameters / 1e3:.1f}",
                f"{part.macs / 1e6:.2f}",
            ]
            for part in parts
        ],
    )
    console.print(
        f"in all: {total['nodes']} nodes, {total['parameters']:,} parameters, "
        f"{macs_of(graph) / 1e6:,.1f} M multiply-adds, {graph.traffic_bytes / 2**20:,.1f} MiB moved"
    )
    if family.published is not None:
        console.print(_published(family, family.published))


def _published(family: Family, said: Published) -> str:
    macs = "" if said.macs is None else f", {said.macs / 1e6:,.7g} M multiply-adds"
    return (
        f"published, at {family.resolution} and batch 1: {said.parameters:,.0f} parameters{macs}"
        f" ({said.source})"
    )


@app.command()
def export(
    names: Annotated[
        list[str],
        typer.Argument(
            help="families, or NAME@SEED; all: every family; nn-meter: the 13 of its dataset"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder for one file per network")
    ] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(help="one file for all, a graph as JSON on each line; NAME.gz is compressed"),
    ] = None,
    model_format: Annotated[
        str, typer.Option("--format", "-f", help="onnx, tflite, ncnn, mnn or graph-json")
    ] = "",
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or int8, as the format has it")] = "fp32",
    variants: Annotated[
        int, typer.Option(min=0, help="so many random variants of each; 0: as published")
    ] = 0,
    rule: Annotated[
        str, typer.Option(help="how variants are drawn: nn-meter, or wide (resolutions too)")
    ] = "nn-meter",
    seed: Annotated[int, typer.Option(min=0, help="of the variants")] = 0,
    width: Width = 1.0,
    resolution: Resolution = 0,
    batch: Batch = 1,
    force: Annotated[bool, typer.Option("--force", help="overwrite files")] = False,
    as_json: inputs.Json = False,
) -> int:
    """Write networks as model files; weights are noise from the graph's hash.

    Formats: onnx (fp32, fp16, int8), tflite (fp32, int8), ncnn and mnn (fp32), and graph-json,
    which has no weights. An ncnn file is a zip of model.param and model.bin. What cannot be written
    is named at the end with the reason, the rest is written, and the exit code is 1. A file is
    complete or not there.

    \b
    Examples:
      latfarm zoo export resnet18 mobilenet-v2 -o models
      latfarm zoo export all --format tflite --dtype int8 -o models --force
      latfarm zoo export mobilenet-v2 --variants 20 --seed 1 --batch 8 -o variants
      latfarm zoo export nn-meter --variants 2000 --jsonl dataset.jsonl.gz
    """
    from latfarm_controller.cli.networks import zoo_export

    plan = zoo_export.plan(
        names,
        out=out,
        jsonl=jsonl,
        model_format=model_format,
        dtype=dtype,
        variants=variants,
        rule=rule,
        seed=seed,
        width=width,
        resolution=resolution or None,
        batch=batch,
        force=force,
    )
    written, failed = zoo_export.run(plan)
    if as_json:
        output.json_text({"written": written, "failed": failed})
    else:
        graphs = "1 graph" if len(written) == 1 else f"{len(written)} graphs"
        output.err().print(f"{graphs} in {jsonl or out}")
    for failure in failed:
        output.error(f"{failure['model']}: {failure['reason']}")
    return 1 if failed else 0
