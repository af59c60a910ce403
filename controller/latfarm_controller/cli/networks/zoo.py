"""`latfarm zoo`: list, show and export the networks that latfarm can build."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import given, inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph

    from latfarm_controller.zoo import Family
    from latfarm_controller.zoo.family import Published
    from latfarm_controller.zoo.summary import NetworkStage

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Networks that latfarm builds.

    There are published families in several widths, and random variants. No board, no store and no
    framework is needed.

    \b
    Examples:
      latfarm zoo list
      latfarm zoo show mobilenet-v2 --width 0.5
      latfarm zoo export resnet18 mobilenet-v2 -o models
    """,
)

Width = Annotated[
    float, typer.Option(min=0.01, max=16.0, help="Factor for the number of channels of all layers.")
]
Resolution = Annotated[
    int,
    typer.Option(
        min=0, help="Input size: pixels of each side, or tokens of a sequence. 0: as published."
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=inputs.MOST_BATCH, help="Batch size.")]
Task = Annotated[
    str,
    typer.Option(help="List only families for this task: classification, detection or language."),
]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="zoo")


@app.command("list")
def list_families(
    task: Task = "",
    as_json: inputs.Json = False,
) -> None:
    """List the families of networks.

    It tells task, input size, parameters, multiply-adds and source. Only trained parameters count,
    and multiply-adds of convolutions and matrix products at batch 1. For a family that is drawn at
    random, the first network NAME@0 is shown.

    \b
    Examples:
      latfarm zoo list
      latfarm zoo list --task detection --json
    """
    from latfarm_predictors.graph.totals import macs_of, trained_parameters

    from latfarm_controller import zoo
    from latfarm_controller.errors import UsageError

    tasks = sorted({family.task for family in zoo.families().values()})
    if task and task not in tasks:
        raise UsageError(f"there is no task {task!r}; known tasks: {', '.join(tasks)}")
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
    name: Annotated[
        str,
        typer.Argument(help="A family, or NAME@SEED for one of a family that is drawn at random."),
    ],
    width: Width = 1.0,
    resolution: Resolution = 0,
    batch: Batch = 1,
    as_json: inputs.Json = False,
) -> None:
    """Show the stages of a network and their sum.

    The numbers that its publication gives stand beside them.

    \b
    Examples:
      latfarm zoo show mobilenet-v2
      latfarm zoo show mobilenet-v2 --width 0.5 --resolution 160 --json
      latfarm zoo show nasbench201@17
    """
    from latfarm_controller import zoo
    from latfarm_controller.zoo.summary import stages

    family, _ = zoo.find(name)
    graph = zoo.build(name, width=width, resolution=resolution or None, batch=batch)
    parts = stages(graph)
    if as_json:
        output.json_text(_as_dict(family, graph, parts))
    else:
        _show(family, graph, parts)


def _ends(graph: Graph) -> dict[str, dict[str, list[Any]]]:
    """The inputs and outputs of a network, each as its data type followed by its shape."""
    return {
        kind: {t: [graph.type_of(t).dtype, *graph.type_of(t).shape] for t in tensors}
        for kind, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }


def _as_dict(family: Family, graph: Graph, parts: Sequence[NetworkStage]) -> dict[str, Any]:
    from dataclasses import asdict

    from latfarm_predictors.graph.equivalences import network_hash_of
    from latfarm_predictors.graph.totals import macs_of

    return {
        "name": graph.name,
        "family": family.name,
        "task": family.task,
        "source": family.source,
        "hash": network_hash_of(graph),
        **_ends(graph),
        "stages": [asdict(part) for part in parts],
        "total": {
            "nodes": len(graph.nodes),
            "parameters": sum(part.parameters for part in parts),
            "macs": macs_of(graph),
            "traffic_bytes": graph.traffic_bytes,
        },
        "published": None if family.published is None else asdict(family.published),
    }


def _show(family: Family, graph: Graph, parts: Sequence[NetworkStage]) -> None:
    from latfarm_predictors.graph.equivalences import network_hash_of
    from latfarm_predictors.graph.totals import macs_of

    console = output.out()
    console.print(f"{graph.name}  {network_hash_of(graph)}", style="bold")
    console.print(f"{family.task}: {family.source}")
    for kind, tensors in _ends(graph).items():
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
    parameters = sum(part.parameters for part in parts)
    console.print(
        f"in all: {len(graph.nodes)} nodes, {parameters:,} parameters, "
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


Names = Annotated[
    list[str],
    typer.Argument(
        help="Families, or NAME@SEED for one of a family that is drawn at random. all: every "
        "family; nn-meter: the 13 families of its dataset; transformers: those transformers and "
        "hybrids that judge predictors."
    ),
]
OutFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder to write, with one file for each network."),
]
JsonLines = Annotated[
    Path | None,
    typer.Option(
        help="Write all networks to this one file instead, a graph as JSON on each line. A name "
        "that ends in .gz makes a compressed file."
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        help="Format of the files: onnx, tflite, ncnn, mnn or graph-json. Default: onnx, or "
        "graph-json with --jsonl.",
    ),
]
Dtype = Annotated[str, typer.Option(help="Data type: fp32, fp16 or int8, if the format has it.")]
Variants = Annotated[
    int,
    typer.Option(min=0, help="Number of random variants of each network. 0: as published."),
]
DrawRule = Annotated[
    str,
    typer.Option(
        "--variant-rule",
        help="How variants are drawn. nn-meter: channels and kernel sizes, as in its paper; "
        "wide: resolutions, too.",
    ),
]
VariantSeed = Annotated[
    int, typer.Option(min=0, help="Random seed. The same seed draws the same variants.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace files that exist.")]


@app.command(
    cls=formerly({"--out": "--output", "--force": "--replace", "--rule": "--variant-rule"})
)
def export(
    command: typer.Context,
    names: Names,
    out: OutFolder = None,
    jsonl: JsonLines = None,
    model_format: Format = "",
    dtype: Dtype = "fp32",
    variants: Variants = 0,
    rule: DrawRule = "nn-meter",
    seed: VariantSeed = 0,
    width: Width = 1.0,
    resolution: Resolution = 0,
    batch: Batch = 1,
    replace: Replace = False,
    as_json: inputs.Json = False,
) -> int:
    """Write networks as model files. Their weights are noise that depends on the graph's hash.

    Formats: onnx (fp32, fp16, int8), tflite (fp32, int8), ncnn and mnn (fp32), and graph-json,
    which has no weights. An ncnn model is a zip file of model.param and model.bin. A network that
    cannot be written is reported at the end with the reason, the others are written, and the exit
    code is 1. There are never incomplete files.

    \b
    Examples:
      latfarm zoo export resnet18 mobilenet-v2 -o models
      latfarm zoo export all --format tflite --dtype int8 -o models --replace
      latfarm zoo export mobilenet-v2 --variants 20 --seed 1 --batch 8 -o variants
      latfarm zoo export nn-meter --variants 2000 --jsonl dataset.jsonl.gz
    """
    from latfarm_controller.cli.networks import zoo_export

    target = zoo_export.target_of(out, jsonl, model_format, dtype)
    plan = zoo_export.ExportPlan(
        names=zoo_export.expanded(names),
        target=target,
        variants=variants,
        rule=zoo_export.rule_of(rule),
        seed=seed,
        width=width,
        resolution=resolution or None,
        batch=batch,
        replace=replace,
    )
    plan.check()
    if not variants:
        why = "says how variants are drawn; give their number with --variants"
        given.refuse(command, "rule", "seed", why=why)
    written, failed = zoo_export.run(plan)
    if as_json:
        output.json_text({"written": written, "failed": failed})
    else:
        graphs = "1 graph was" if len(written) == 1 else f"{len(written)} graphs were"
        output.err().print(f"{graphs} written to {jsonl or out}")
    for failure in failed:
        output.error(f"{failure['model']}: {failure['reason']}")
    return 1 if failed else 0
