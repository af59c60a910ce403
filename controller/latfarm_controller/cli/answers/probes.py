"""`latfarm probes`: predict a platform without a bundle from a few measured networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from latfarm_predictors.errors import ModelFileError

from latfarm_controller.cli.shell import complete, inputs, output
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.measurement import Measurement
    from latfarm_predictors.transfer.new_board import BoardAnswers

    from latfarm_controller.api.client import ControllerClient
    from latfarm_controller.app.question import Question
    from latfarm_controller.training.transfer_rows import KnownRows, PlatformTransfer

PURPOSES = ("query", "network")
"""Purposes of the measurements of whole networks."""
app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""
    Predict a platform without a bundle from few networks.

    A probe is a network that other platforms of the farm have measured, too. A few probes tell how
    the platform differs from these. A bundle (latfarm characterize) predicts any network, and more
    precisely, but takes many measurements.

    \b
    Examples:
      latfarm probes plan -p board7-ncnn1.0-fp32-4t
      latfarm probes plan -p board7-ncnn1.0-fp32-4t --measure
      latfarm probes predict -p board7-ncnn1.0-fp32-4t --json
    """,
)
Count = Annotated[int, typer.Option("--count", min=3, max=200, help="Number of probes.")]
Coverage = Annotated[
    float,
    typer.Option(
        min=0.5, max=0.99, help="Share of cases in which the latency shall lie in the interval."
    ),
]
NewPlatform = Annotated[
    str,
    typer.Option(
        "--platform",
        "-p",
        help="Name of the platform; see latfarm platforms.",
        autocompletion=complete.platforms,
    ),
]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="probes")


@app.command()
def plan(
    platform: NewPlatform,
    count: Count = 10,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the probes now, on a board of the platform.")
    ] = False,
    survey: Annotated[
        bool,
        typer.Option(
            "--survey",
            help="Measure for some seconds each. Without this, a measurement is as thorough as for "
            "a publication.",
        ),
    ] = False,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> int:
    """Choose the networks whose latency tells most about a platform.

    They are chosen among the networks that other platforms have measured. The same store gives the
    same probes.

    \b
    Examples:
      latfarm probes plan -p board7-ncnn1.0-fp32-4t
      latfarm probes plan -p board7-ncnn1.0-fp32-4t --count 20 --measure --survey
    """
    if survey and not measure:
        raise UsageError("--survey says how --measure measures; give --measure, too")
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.training.transfer_rows import transfer_to

    code = 0
    with controller(wait_s) as client:
        rows = _rows(client)
        transfer = transfer_to(rows, platform, count)
        told = _planned(rows, transfer, count)
        if measure:
            code = _measure(client, platform, told, survey=survey)
    if as_json:
        output.json_text({"platform": platform, "others": transfer.others, "probes": told})
        return code
    output.table(
        "",
        ["network", "graph", "ms"],
        [
            [
                each["network"],
                each["graph_hash"][:12],
                "" if each["latency_ms"] is None else f"{each['latency_ms']:.3f}",
            ]
            for each in told
        ],
    )
    missing = sum(each["latency_ms"] is None for each in told)
    if missing and not measure:
        output.err().print(
            f"{missing} of {len(told)} probes are not measured on {platform}; --measure does it"
        )
    return code


@app.command()
def predict(
    platform: NewPlatform,
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            help="ONNX files, or folders of them, that other platforms have measured. Without any: "
            "all networks that they have measured.",
            readable=False,
        ),
    ] = None,
    coverage: Coverage = 0.9,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> int:
    """Predict the latency of networks from the probes of a platform.

    Everything that was measured on the platform is a probe. Each answer is marked: "probe" for a
    measured network, "transferred" for one that was predicted from other platforms.

    \b
    Examples:
      latfarm probes predict -p board7-ncnn1.0-fp32-4t
      latfarm probes predict -p board7-ncnn1.0-fp32-4t model.onnx --json
    """
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.training.transfer_rows import transfer_to

    def read(file: Path) -> Graph:
        return inputs.for_platform(inputs.read_model(file, batch, shape or []), platform)

    inputs.check_reading(models, batch, shape)
    code = 0
    wanted: list[tuple[str, str]] | None = None
    with controller(wait_s) as client:
        rows = _rows(client)
        if models:
            code, wanted = _wanted(client, rows, models, read)
            if not wanted:
                return code
        probes = len(rows.probes_ms(platform))
        transfer = transfer_to(rows, platform, max(3, probes))
    found = transfer.predict(coverage)
    answers = _answers(found, rows, wanted, platform, coverage)
    if wanted is not None and len(answers) < len(wanted):
        code = 2
    if as_json:
        output.json_text({"platform": platform, "others": transfer.others, "answers": answers})
    else:
        _show(answers, calibrated=found.calibrated)
    return code


def _show(answers: Sequence[dict[str, Any]], *, calibrated: bool) -> None:
    """Print the answers as a table."""
    output.table(
        "",
        ["network", "ms", "interval", "from"],
        [
            [
                each["model"],
                f"{each['latency_ms']:.3f}",
                f"{each['interval_ms'][0]:.3f} to {each['interval_ms'][1]:.3f}",
                each["source"],
            ]
            for each in answers
        ],
    )
    if not calibrated:
        output.err().print(
            "the intervals are uncalibrated: too few other boards have measured these networks",
            style="yellow",
        )


def _rows(client: ControllerClient) -> KnownRows:
    """What the farm knows about whole networks.

    The listing tells what there is; the answers to questions leave out what was discarded, and are
    corrected for slow cores.
    """
    from latfarm_controller.app.question import Found, Question
    from latfarm_controller.training.transfer_rows import rows_of

    names: dict[tuple[str, str], str] = {}
    for purpose in PURPOSES:
        for measurement, details in client.detailed_results(purpose=purpose):
            key = (measurement.platform, measurement.graph_hash)
            names.setdefault(key, details.get("network") or measurement.graph_hash[:12])
    keys = sorted(names)
    questions = [Question(platform, name, measure=False) for platform, name in keys]
    found: list[tuple[Measurement, str]] = []
    for place, end in client.query_many(questions):
        if isinstance(end, Found):
            found.append((end.measurement, names[keys[place]]))
    return rows_of(sorted(found, key=lambda each: -each[0].told_at_s))


def _planned(rows: KnownRows, transfer: PlatformTransfer, count: int) -> list[dict[str, Any]]:
    """The probes as plain JSON types, with the latency of those that the platform has already."""
    return [
        {
            "graph_hash": name,
            "network": rows.names[name],
            "latency_ms": transfer.probes_ms.get(name),
        }
        for name in transfer.plan(count)
    ]


def _measure(
    client: ControllerClient, platform: str, told: list[dict[str, Any]], *, survey: bool
) -> int:
    """Measure the probes that have no latency, by ordinary queries; the exit code."""
    from dataclasses import replace

    from latfarm_predictors.slow_core import SlowCore

    from latfarm_controller.app.question import Found, Question

    missing = [each for each in told if each["latency_ms"] is None]
    questions: list[Question] = [
        replace(
            Question.about(client.graph(each["graph_hash"])[1], platform),
            tier="survey" if survey else "",
        )
        for each in missing
    ]
    code = 0
    for place, end in client.query_many(questions):
        each = missing[place]
        if not isinstance(end, Found):
            code = max(code, getattr(end, "exit_code", 1))
            output.error(f"{each['network']}: {end}")
            continue
        measurement = end.measurement
        latency = SlowCore.told_by(measurement).latency(measurement) if measurement.ok else None
        if latency is None:
            code = code or 1
            output.error(
                f"{each['network']}: {measurement.error_code}: {measurement.error_message}"
            )
            continue
        each["latency_ms"] = latency.corrected_ms
        output.err().print(f"{each['network']}: {latency.corrected_ms:.3f} ms", style="dim")
    return code


def _wanted(
    client: ControllerClient,
    rows: KnownRows,
    models: Iterable[Path],
    read: Callable[[Path], Graph],
) -> tuple[int, list[tuple[str, str]]]:
    """The exit code so far, and the hash of each model with its file's name.

    A model that no platform has measured under its exact hash may be another export of a network
    that one has.
    """
    from latfarm_predictors.graph.equivalences import network_hash_of
    from latfarm_predictors.graph.hash import hash_of

    files, _ = inputs.model_files(list(models))
    code = 0
    wanted: list[tuple[str, str]] = []
    exports: dict[str, str] = {}
    for file in files:
        try:
            graph = read(file)
        except ModelFileError as error:
            output.error(str(error))
            code = 2
            continue
        name = hash_of(graph)
        if name not in rows.names:
            if not exports:
                exports = {network_hash_of(client.graph(each)[1]): each for each in rows.names}
            name = exports.get(network_hash_of(graph), "")
        if not name:
            code = 2
            output.error(
                f"{file}: no platform has measured this network; measure it on others with latfarm "
                "query, or make a bundle with latfarm characterize"
            )
            continue
        wanted.append((name, str(file)))
    return code, wanted


def _answers(
    found: BoardAnswers,
    rows: KnownRows,
    wanted: Sequence[tuple[str, str]] | None,
    platform: str,
    coverage: float,
) -> list[dict[str, Any]]:
    """The answers as plain JSON types, in the order of the models, or by name.

    Raises:
        UsageError: nothing is known about any of the networks.
    """
    places = {name: place for place, name in enumerate(found.networks)}
    every = sorted((rows.names[name], name) for name in found.networks)
    asked = [(name, model) for model, name in every] if wanted is None else wanted
    answers: list[dict[str, Any]] = []
    for name, model in asked:
        place = places.get(name)
        if place is None or found.latency_ms[place] != found.latency_ms[place]:
            if wanted is not None:
                output.error(f"{model}: no other platform has measured this network")
            continue
        answers.append(
            {
                "model": model,
                "platform": platform,
                "graph_hash": name,
                "latency_ms": float(found.latency_ms[place]),
                "interval_ms": [float(found.low_ms[place]), float(found.high_ms[place])],
                "coverage": coverage,
                "calibrated": found.calibrated,
                "source": "probe" if found.measured[place] else "transferred",
            }
        )
    if not answers:
        raise UsageError(
            f"{platform}: nothing can be predicted; other platforms have measured none of the "
            "networks"
        )
    return answers
