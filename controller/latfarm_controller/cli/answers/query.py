"""`latfarm query`: the latency of models, from the store or measured on a board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.shell import inputs, output

if TYPE_CHECKING:
    from pathlib import Path

    from latfarm_predictors.measurement import Measurement

Publish = Annotated[
    bool,
    typer.Option(
        help="Measure thoroughly, as for a publication: at least 1024 runs and 60 s. Default: a "
        "survey of some seconds."
    ),
]

Refresh = Annotated[bool, typer.Option(help="Measure even if the store has an answer.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("query")(query)


def query(
    models: inputs.Models,
    platform: inputs.Platform,
    publish: Publish = False,
    refresh: Refresh = False,
    energy: inputs.Energy = False,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    optimise: inputs.Optimise = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> int:
    """Report the latency of models, from the store or a board.

    A board is asked if the store does not know the model. The latency is shown as timed, and
    corrected for the core's slowdown, as predictions are. The store knows a network even if another
    tool exported its model; the answer says so ("same_export": false).

    \b
    Examples:
      latfarm query model.onnx -p local-onnxruntime1.31-fp32-1t
      latfarm query models/ -p local-litert2.3-fp32-1t --publish --json
      latfarm query model.onnx -p jetson-tensorrt10.3-fp16 --energy
    """
    from latfarm_predictors.graph.hash import hash_of

    from latfarm_controller.cli.shell.connect import controller

    files, several = inputs.model_files(models)
    graphs = inputs.read_models(files, batch, shape or [], optimise=optimise)
    if not graphs:
        return 2
    code = 2 if len(graphs) < len(files) else 0
    answers, rows = [], []
    with controller(wait_s) as client:
        for file, read in graphs:
            graph = inputs.for_platform(read, platform)
            tier = "publish" if publish else ""
            measurement, hit = client.query(
                graph, platform, tier=tier, refresh=refresh, energy=energy, on_progress=_tell
            )
            own = measurement.graph_hash == hash_of(graph)
            known = {"model": str(file), "hit": hit, "same_export": own}
            answers.append({**known, **output.measurement_json(measurement)})
            if not measurement.ok:
                code = code or 1
                output.error(f"{file}: {measurement.error_code}: {measurement.error_message}")
                continue
            rows.append(_row(file, measurement, hit=hit, own=own, energy=energy))
            if energy and measurement.energy_mj is None:
                output.error(f"{file}: {measurement.energy_story or 'no energy was measured'}")
    if as_json:
        output.json_text(answers if several else answers[0])
    elif rows:
        costs = output.ENERGY_HEADER if energy else ()
        output.table("", ["model", *output.LATENCY_HEADER, *costs, "runs", "from", ""], rows)
    return code


def _tell(text: str) -> None:
    """Print the progress of a question on standard error."""
    output.err().print(text, style="dim")


def _row(file: Path, measurement: Measurement, *, hit: bool, own: bool, energy: bool) -> list[str]:
    """One line of the table.

    Args:
        file: the model.
        measurement: its latency.
        hit: whether the store knew it.
        own: whether exactly this export of the network was measured.
        energy: whether the table shows energies.
    """
    notes = [
        output.stability(measurement),
        "" if own else "measured as another export of this network",
    ]
    return [
        str(file),
        *output.latency_cells(measurement),
        *(output.energy_cells(measurement) if energy else ()),
        str(measurement.runs),
        "store" if hit else "board",
        ", ".join(filter(None, notes)),
    ]
