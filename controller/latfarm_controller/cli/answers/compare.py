"""`latfarm compare`: which platform, element type and network to choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.shell import complete, inputs, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from latfarm_controller.estimates import Estimate
    from latfarm_controller.reports.choices import Candidate, Choices

Platforms = Annotated[
    list[str] | None,
    typer.Option(
        "--platform",
        "-p",
        help="Name of a platform. May be repeated. Without any: all platforms that have a bundle.",
        autocompletion=complete.platforms,
    ),
]
NoPredict = Annotated[
    bool,
    typer.Option("--no-predict", help="Compare stored measurements alone; nothing is predicted."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    models: inputs.Models,
    platform: Platforms = None,
    no_predict: NoPredict = False,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    as_json: inputs.Json = False,
) -> int:
    """Compare models on platforms, to choose between them.

    It answers four questions: which platform is the fastest for each model, which model is the
    fastest on each platform, what a narrower element type saves, and what ops cost that a platform
    does not support. Stored measurements answer where there are any, predictions of the newest
    bundles elsewhere; no board is asked.

    \b
    Examples:
      latfarm compare resnet18.onnx regnetx200.onnx -p p4-tensorrt8.6-int8 -p t4-tensorrt8.6-int8
      latfarm compare vit.onnx -p jetson-tensorrt10.3-fp32 -p jetson-tensorrt10.3-fp16
      latfarm compare models/ --json
    """
    from latfarm_controller.bulk.candidates import NetworkFile
    from latfarm_controller.config import load_config
    from latfarm_controller.errors import UsageError
    from latfarm_controller.estimates import estimate_many
    from latfarm_controller.reports.choices import choices
    from latfarm_controller.training.bundles import newest

    platforms = list(dict.fromkeys(platform or [])) or list(newest(load_config().bundles_dir))
    if not platforms:
        raise UsageError(
            "no platform has a bundle yet: latfarm demo makes one for this machine; with "
            "--platform, stored measurements of a platform are compared without one"
        )
    files, _ = inputs.model_files(models)
    shapes = tuple(inputs.shapes(shape or []).items())
    asked = [NetworkFile(str(file), batch, shapes) for file in files]
    found = list(estimate_many(asked, platforms, predict=not no_predict))
    code = 0
    for each in found:
        if each.error is not None:
            code = max(code, 2 if getattr(each.error, "exit_code", 2) == 2 else 1)
            output.error(f"{each.model} on {each.platform}: {each.error}")
    order = {str(file): place for place, file in enumerate(files)}
    found.sort(key=lambda each: (order[each.model], platforms.index(each.platform)))
    candidates = [_candidate(each) for each in found if each.latency_ms is not None]
    if not candidates:
        return code
    settled = choices(candidates)
    if as_json:
        output.json_text(
            {"latencies": [_as_dict(each) for each in candidates], **settled.to_json()}
        )
    else:
        _show(candidates, settled)
    return code


def _candidate(estimate: Estimate) -> Candidate:
    """An estimate as a candidate."""
    from latfarm_controller.reports.choices import Candidate

    assert estimate.latency_ms is not None
    return Candidate(
        estimate.model,
        estimate.platform,
        estimate.latency_ms,
        estimate.source,
        estimate.unsupported,
        estimate.unsupported_ms,
    )


def _as_dict(candidate: Candidate) -> dict[str, object]:
    """A candidate as plain JSON types."""
    return {
        "model": candidate.model,
        "platform": candidate.platform,
        "latency_ms": candidate.latency_ms,
        "source": candidate.source,
    }


def _show(candidates: Sequence[Candidate], settled: Choices) -> None:
    """Print the latencies and what they settle."""
    output.table(
        "Latencies",
        ["model", "platform", "ms", "from"],
        [[c.model, c.platform, f"{c.latency_ms:.3f}", c.source] for c in candidates],
    )
    for title, ranks in (
        ("Platforms, the fastest first", settled.platforms),
        ("Models, the fastest first", settled.models),
    ):
        rows = [
            [name, each.name, f"{each.latency_ms:.3f}", f"{each.times_best:.2f}"]
            for name, found in ranks.items()
            for each in found
        ]
        if rows:
            output.table(title, ["for", "choice", "ms", "times the best"], rows)
    if settled.types:
        output.table(
            "Element types",
            ["model", "from", "to", "saves", ""],
            [
                [
                    gain.model,
                    gain.wide,
                    gain.narrow,
                    f"{gain.saved:.0%}",
                    "" if gain.worth_it else "not worth a loss of accuracy",
                ]
                for gain in settled.types
            ],
        )
    if settled.unsupported:
        output.table(
            "Ops that a platform does not support, or that no regressor knows",
            ["model", "platform", "ms", "share", "ops"],
            [
                [
                    cost.model,
                    cost.platform,
                    f"{cost.latency_ms:.3f}",
                    f"{cost.share:.0%}",
                    ", ".join(cost.ops),
                ]
                for cost in settled.unsupported
            ],
        )
