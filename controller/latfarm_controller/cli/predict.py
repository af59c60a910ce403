"""`latfarm predict`: latency of models on a platform, from its bundle alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli import inputs, output

if TYPE_CHECKING:
    from latfarm_predictors.answer import Answer

EXAMPLES = """
    Predict the latency of an ONNX model, or of all in a folder, offline.

    \b
    Examples:
      latfarm predict model.onnx --platform local-onnxruntime1.31-fp32-1t
      latfarm predict models/ --json
      latfarm predict dynamic.onnx --batch 1
      latfarm predict dynamic.onnx --shape input:1,3,224,224
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", help=EXAMPLES)(predict)


def predict(
    models: inputs.Models,
    platform: Annotated[
        str, typer.Option("--platform", "-p", help="may be left out where one bundle is known")
    ] = "",
    coverage: Annotated[
        float, typer.Option(min=0.5, max=0.99, help="share of cases the interval must hold")
    ] = 0.9,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    optimise: inputs.Optimise = False,
    as_json: inputs.Json = False,
) -> int:
    """Predict each model; bad files are named and the rest is answered, with exit code 2."""
    files, several = inputs.model_files(models)
    graphs = inputs.read_models(files, batch, shape or [], optimise=optimise)
    if not graphs:
        return 2
    from latfarm_controller.bundles import open_bundle
    from latfarm_controller.config import load_config

    predictor = open_bundle(load_config().bundles_dir, platform)
    answers = [
        predictor.predict(inputs.for_platform(graph, predictor.platform), coverage)
        for _, graph in graphs
    ]
    code = 2 if len(graphs) < len(files) else 0
    if as_json:
        data = [
            {"model": str(file)} | answer.to_json()
            for (file, _), answer in zip(graphs, answers, strict=True)
        ]
        output.json_text(data if several else data[0])
        return code
    for answer in answers:
        _show(answer)
    return code


def _show(answer: Answer) -> None:
    low, high = answer.interval_ms
    trust = "" if answer.calibrated else " (uncalibrated: too few measured networks)"
    console = output.out()
    console.print(
        f"{answer.network} on {answer.platform}: {answer.latency_ms:.3f} ms, "
        f"{answer.coverage:.0%} interval "
        f"{low:.3f} to {high:.3f} ms{trust}",
        style="bold",
    )
    longest = sorted(answer.kernels, key=lambda k: -k.latency_ms)[:8]
    output.table(
        "",
        ["kernel", "configuration", "ms", "interval", "source"],
        [
            [
                kernel.type,
                " ".join(f"{k}={v}" for k, v in kernel.configuration.items()),
                f"{kernel.latency_ms:.4f}",
                "{:.4f} to {:.4f}".format(*kernel.interval_ms),
                kernel.source,
            ]
            for kernel in longest
        ],
    )
    if len(answer.kernels) > len(longest):
        console.print(f"... and {len(answer.kernels) - len(longest)} shorter kernels (--json)")
    for text in answer.unsupported:
        console.print(f"unsupported: {text}", style="yellow")
    console.print()
