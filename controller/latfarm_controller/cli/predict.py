"""`latfarm predict`: latency of models on a platform, from its bundle alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    models: Annotated[list[Path], typer.Argument(help="ONNX files or folders of them")],
    platform: Annotated[
        str, typer.Option("--platform", "-p", help="may be left out where one bundle is known")
    ] = "",
    coverage: Annotated[
        float, typer.Option(min=0.5, max=0.99, help="share of cases the interval must hold")
    ] = 0.9,
    batch: Annotated[int, typer.Option(min=0, help="bind an open batch dimension")] = 0,
    shape: Annotated[
        list[str] | None, typer.Option(help="bind an input's shape: name:1,3,224,224")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Predict each model; bad files are named and the rest is answered, with exit code 2."""
    from latfarm_controller.bundles import open_bundle
    from latfarm_controller.config import load_config

    files, in_folder = inputs.model_files(models)
    predictor = open_bundle(load_config().bundles_dir, platform)
    answers: list[Answer] = []
    code = 0
    for file in files:
        graph = inputs.read_or_report(file, batch, shape or [], several=len(files) > 1)
        if graph is None:
            code = 2
            continue
        answers.append(predictor.predict(graph, coverage))
    if as_json:
        data: list[Any] = [answer.to_json() for answer in answers]
        output.json_text(data if in_folder or len(files) > 1 else data[0])
        return code
    for answer in answers:
        _show(answer)
    return code


def _show(answer: Answer) -> None:
    low, high = answer.interval_ms
    trust = "" if answer.calibrated else " (uncalibrated: too few measured networks)"
    console = output.out()
    console.print(
        f"[bold]{answer.network}[/bold] on {answer.platform}: "
        f"[bold]{answer.latency_ms:.3f} ms[/bold], {answer.coverage:.0%} interval "
        f"{low:.3f} to {high:.3f} ms{trust}"
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
        console.print(f"[yellow]unsupported:[/yellow] {text}")
    console.print()
