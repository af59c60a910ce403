"""`latfarm graph`: show, hash and compare models, and convert them to other formats."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from latfarm_predictors.whole_file import written_whole

from latfarm_controller.cli.networks import layers_shown
from latfarm_controller.cli.shell import complete, inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import callers_umask

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Look into models: layers, totals, hashes and differences. No board is needed.

    \b
    Examples:
      latfarm graph show model.onnx
      latfarm graph show model.onnx --platform local-onnxruntime1.31-fp32-1t
      latfarm graph show c92a4bf3ed70
      latfarm graph hash a.onnx b.onnx
      latfarm graph diff a.onnx b.onnx
      latfarm graph build model.onnx -f tflite --dtype int8 -o model.tflite
    """,
)

_HASH = re.compile(r"[0-9a-fA-F]{6,64}")
"""The hash of a network, or its first digits."""
Model = Annotated[Path, typer.Argument(help="An ONNX or TFLite file.", readable=False)]
ModelOrHash = Annotated[
    Path,
    typer.Argument(
        help="An ONNX or TFLite file, or the hash of a network that was measured, as latfarm "
        "results shows it.",
        readable=False,
    ),
]
BoundPlatform = Annotated[
    str,
    typer.Option(
        "--platform",
        "-p",
        help="Show the kernels and roofline bounds of this platform. Default: single layers.",
        autocompletion=complete.platforms,
    ),
]
Fold = Annotated[
    bool,
    typer.Option("--fold-batch-norm", help="Fold batch normalisations into convolutions first."),
]
Format = Annotated[
    str,
    typer.Option(
        "--format", "-f", help="Format of the file: onnx, tflite, ncnn, mnn or graph-json."
    ),
]
Noise = Annotated[
    bool,
    typer.Option(
        "--noise",
        help="Fill weights with noise, as for measurements, instead of the model's own weights.",
    ),
]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="graph")


@app.command()
def show(
    model: ModelOrHash,
    platform: BoundPlatform = "",
    fold_batch_norm: Fold = False,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    optimise: inputs.Optimise = False,
    as_json: inputs.Json = False,
) -> None:
    """Show each layer of a model, and the sum.

    It tells multiply-adds, parameters, memory traffic and arithmetic intensity. With --platform the
    rows are the kernels as that platform fuses them, each with its roofline bound. A kernel cannot
    be faster than this bound, which assumes the best rates that were measured on the platform.

    \b
    Examples:
      latfarm graph show model.onnx
      latfarm graph show model.onnx --fold-batch-norm --json
      latfarm graph show dynamic.onnx --shape input:1,3,224,224
      latfarm graph show model.onnx --platform local-onnxruntime1.31-fp32-1t
      latfarm graph show c92a4bf3ed70
    """
    from latfarm_predictors.features.layers import layers, total
    from latfarm_predictors.graph.equivalences import network_hash_of

    graph = _named(model, batch, shape or [], fold_batch_norm, optimise)
    rules = peaks = None
    if platform:
        from latfarm_controller.config import load_config
        from latfarm_controller.training.bundles import open_bundle

        predictor = open_bundle(load_config().bundles_dir, platform)
        rules, peaks = predictor.rules, predictor.peaks
    rows = layers(graph, rules=rules, peaks=peaks)
    summed = total(graph, rows)
    if as_json:
        output.json_text(
            {
                "model": str(model),
                "name": graph.name,
                "hash": network_hash_of(graph),
                "inputs": {t: layers_shown.typed(graph, t) for t in graph.inputs},
                "outputs": {t: layers_shown.typed(graph, t) for t in graph.outputs},
                "layers": [layers_shown.plain(row) for row in rows],
                "total": layers_shown.plain(summed),
                "platform": platform or None,
                "peaks": None if peaks is None else asdict(peaks),
            }
        )
    else:
        layers_shown.show(graph, [*rows, summed], platform, peaks)


@app.command("hash")
def hash_models(
    models: inputs.Models,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Print hashes that also differ between two exports of the same network."
        ),
    ] = False,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    optimise: inputs.Optimise = False,
    as_json: inputs.Json = False,
) -> int:
    """Print the canonical hash of models.

    It is equal for the same network, whichever tool exported it. Names, the order of nodes,
    weights, batch normalisations that can be folded and ops that do nothing do not change the hash.
    Attributes, the order of operands, shapes, data types and the batch size do. docs/hashing.md
    lists everything. If a file cannot be read, the other hashes are printed and the exit code is 2.

    \b
    Examples:
      latfarm graph hash model.onnx
      latfarm graph hash models/ --json
      latfarm graph hash --exact torch.onnx tf.onnx
    """
    from latfarm_predictors.graph.equivalences import network_hash_of
    from latfarm_predictors.graph.hash import hash_of

    files, several = inputs.model_files(models)
    graphs = inputs.read_models(files, batch, shape or [], optimise=optimise)
    rows = [
        {"model": str(file), "hash": network_hash_of(graph), "exact_hash": hash_of(graph)}
        for file, graph in graphs
    ]
    if as_json:
        output.json_text(rows if several else next(iter(rows), None))
    else:
        for row in rows:
            print(f"{row['exact_hash' if exact else 'hash']}  {row['model']}")
    return 2 if len(graphs) < len(files) else 0


@app.command()
def diff(
    left: Model,
    right: Model,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Compare the models as they are written, not in normal form."),
    ] = False,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    optimise: inputs.Optimise = False,
    as_json: inputs.Json = False,
) -> int:
    """Compare two models op by op; exit code 1 when they differ.

    Both are first brought into the normal form of the canonical hash, unless --exact is given.

    \b
    Examples:
      latfarm graph diff before.onnx after.onnx
      latfarm graph diff --exact torch.onnx simplified.onnx
    """
    from latfarm_predictors.features.layers import layers, total
    from latfarm_predictors.graph.diff import diff_graphs, unified
    from latfarm_predictors.graph.equivalences import normal_form
    from latfarm_predictors.graph.hash import hash_of

    graphs = [_read(file, batch, shape or [], False, optimise) for file in (left, right)]
    if not exact:
        graphs = [normal_form(graph) for graph in graphs]
    changes = diff_graphs(*graphs)
    equal = hash_of(graphs[0]) == hash_of(graphs[1])
    sums = [total(graph, layers(graph)) for graph in graphs]
    if as_json:
        output.json_text(
            {
                "equal": equal,
                "hashes": [hash_of(graph) for graph in graphs],
                "totals": [layers_shown.plain(row) for row in sums],
                "changes": [asdict(change) for change in changes if change.side != "same"],
            }
        )
        return 0 if equal else 1
    if equal:
        print(f"equal: {hash_of(graphs[0])}")
        return 0
    for mark, file, graph, row in zip("-+", (left, right), graphs, sums, strict=True):
        print(
            f"{mark} {file}: {hash_of(graph)}, {len(graph.nodes)} ops, {row.macs / 1e6:.1f} MMACs,"
            f" {row.parameters} parameters"
        )
    if all(change.side == "same" for change in changes):
        print("  the ops are the same; their connections or the order of operands differ")
    for line in unified(changes):
        print(line)
    return 1


@app.command(cls=formerly({"--out": "--output", "--force": "--replace"}))
def build(
    model: Model,
    out: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    model_format: Format = "onnx",
    dtype: Annotated[
        str, typer.Option(help="Data type: fp32, fp16 or int8, if the format has it.")
    ] = "fp32",
    noise: Noise = False,
    fold_batch_norm: Fold = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the file if it exists.")
    ] = False,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    as_json: inputs.Json = False,
) -> None:
    """Write a model in the format of another runtime, with its own weights.

    If the format cannot express an op, the error names its node. An ncnn model is a zip file of
    model.param and model.bin. The ranges of int8 values come from the weights, not from data: this
    is good for measuring latency, but not for accuracy.

    \b
    Examples:
      latfarm graph build model.onnx -f tflite --dtype int8 -o model.tflite
      latfarm graph build model.onnx -f ncnn -o model.ncnn.zip
      latfarm graph build model.onnx --fold-batch-norm -o folded.onnx
    """
    from latfarm_predictors.frontends.model_file import read_model_weights
    from latfarm_predictors.graph.batch_norm import fold_batch_norms, fold_values
    from latfarm_predictors.graph.equivalences import network_hash_of

    from latfarm_controller import builders

    inputs.check_format(model_format, dtype)
    if noise and model_format == "graph-json":
        raise UsageError("--noise says what weights are, and graph-json has none; leave it out")
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file in it")
    if out.exists() and not replace:
        raise UsageError(f"{out} exists; give --replace to replace it")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent}: there is no such folder; create it first")
    bound = inputs.shapes(shape or [])
    graph, weights = read_model_weights(model, batch=batch or None, shapes=bound or None)
    values: Mapping[str, Any] | None = None if noise else weights
    if fold_batch_norm:
        graph, folds = fold_batch_norms(graph)
        values = None if values is None else fold_values(values, folds)
    with output.quiet_libraries():
        data = builders.build(graph, model_format, dtype, values)
    with callers_umask(), written_whole(out, make_folder=True) as part:
        part.write_bytes(data)
    if as_json:
        made = {"file": str(out), "format": model_format, "dtype": dtype, "size_bytes": len(data)}
        output.json_text(made | {"hash": network_hash_of(graph)})
    else:
        print(f"{out}: {len(data)} bytes")


def _read(model: Path, batch: int, shape: Sequence[str], fold: bool, optimise: bool) -> Graph:
    graph = inputs.read_model(model, batch, shape, optimise=optimise)
    return _folded(graph) if fold else graph


def _named(model: Path, batch: int, shape: Sequence[str], fold: bool, optimise: bool) -> Graph:
    """The network in a file, or the one that was measured and has this hash."""
    text = str(model)
    if not _HASH.fullmatch(text) or model.exists():
        return _read(model, batch, shape, fold, optimise)
    if batch or shape or optimise:
        raise UsageError(
            f"{text}: --batch, --shape and --optimise say how a file is read; a network that is "
            "named by its hash is shown as it was measured"
        )
    measured = _measured(text)
    return _folded(measured) if fold else measured


def _folded(graph: Graph) -> Graph:
    from latfarm_predictors.graph.batch_norm import fold_batch_norms

    return fold_batch_norms(graph)[0]


def _measured(text: str) -> Graph:
    """The network that was measured and has this hash."""
    from latfarm_controller.cli.shell.connect import controller

    with controller() as client:
        found: Graph = client.graph(text)[1]
        return found
