"""`latfarm query`: the true latency, from the store or from a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfarm_controller.cli import inputs, output


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("query")(query)


def query(
    models: Annotated[list[Path], typer.Argument(help="ONNX files or folders of them")],
    platform: Annotated[str, typer.Option("--platform", "-p")],
    publish: Annotated[
        bool, typer.Option(help="measure at least 1024 runs and 60 s instead of a survey")
    ] = False,
    refresh: Annotated[bool, typer.Option(help="measure again even if known")] = False,
    batch: Annotated[int, typer.Option(min=0, help="bind an open batch dimension")] = 0,
    shape: Annotated[list[str] | None, typer.Option(help="name:1,3,224,224")] = None,
    wait_s: Annotated[float, typer.Option("--wait", help="seconds to wait for the store")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Tell the true latency of models: from the store if known, else measured on a board.

    \b
    Examples:
      latfarm query model.onnx -p local-onnxruntime1.31-fp32-1t
      latfarm query models/ -p local-litert2.3-fp32-1t --publish --json
    """
    from latfarm_controller.cli.connect import controller

    files, in_folder = inputs.model_files(models)
    answers = []
    code = 0
    rows = []
    with controller(wait_s) as client:
        for file in files:
            graph = inputs.read_or_report(file, batch, shape or [], several=len(files) > 1)
            if graph is None:
                code = 2
                continue
            measurement, hit = client.query(
                graph,
                platform,
                tier="publish" if publish else "",
                refresh=refresh,
                on_progress=lambda text: output.err().print(text, style="dim"),
            )
            answers.append({"model": str(file), "hit": hit} | measurement.to_json())
            if not measurement.ok:
                code = code or 1
                output.error(f"{file}: {measurement.error_code}: {measurement.error_message}")
                continue
            rows.append(
                [
                    str(file),
                    f"{measurement.latency_ms:.3f}",
                    f"{measurement.mad_ms or 0:.3f}",
                    str(measurement.runs),
                    "store" if hit else "board",
                    "unstable" if measurement.unstable else "",
                ]
            )
    if as_json:
        output.json_text(answers if in_folder or len(files) > 1 else answers[0])
    elif rows:
        output.table("", ["model", "ms", "MAD, ms", "runs", "from", ""], rows)
    return code
