"""`latfarm predict`: latency of models on a platform, from its bundle alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from latfarm_predictors.baselines.names import BASELINES

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.predict.answer import Answer, EnergyAnswer
    from latfarm_predictors.trust.network_trust import NetworkTrust

EXAMPLES = """
    Predict the latency of an ONNX model, or of all in a folder, offline.

    \b
    Examples:
      latfarm predict model.onnx --platform local-onnxruntime1.31-fp32-1t
      latfarm predict models/ --json
      latfarm predict dynamic.onnx --batch 1
      latfarm predict dynamic.onnx --shape input:1,3,224,224
      latfarm predict model.onnx --platform jetson-tensorrt10.3-fp16 --energy
      latfarm predict model.onnx --baseline nn-meter --baseline operators
      latfarm predict model.onnx --platform jetson-tensorrt10.3-fp16 --explain
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
    energy: Annotated[
        bool, typer.Option("--energy", help="millijoules of an inference, too")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="how far to trust it, layer by layer, and what to measure"),
    ] = False,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            help="by this predictor of the literature, too; may be repeated; all of: "
            + ", ".join(BASELINES),
        ),
    ] = None,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    optimise: inputs.Optimise = False,
    as_json: inputs.Json = False,
) -> int:
    """Predict each model; bad files are named and the rest is answered, with exit code 2."""
    wanted = _baselines(baseline or [])
    files, several = inputs.model_files(models)
    graphs = inputs.read_models(files, batch, shape or [], optimise=optimise)
    if not graphs:
        return 2
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import open_bundle

    predictor = open_bundle(load_config().bundles_dir, platform)
    asked = [inputs.for_platform(graph, predictor.platform) for _, graph in graphs]
    costs = predictor.predict_energies(asked, coverage) if energy else []
    answers = [predictor.predict(graph, coverage) for graph in asked]
    trusts: list[NetworkTrust] = []
    if explain:
        from latfarm_predictors.trust.network_trust import trust

        trusts = [
            trust(predictor, graph, coverage, model=str(file))
            for (file, _), graph in zip(graphs, asked, strict=True)
        ]
    others: list[dict[str, float]] = [{} for _ in asked]
    if wanted:
        from latfarm_predictors.predict.baseline_sums import baseline_ms

        others = [{name: baseline_ms(predictor, graph, name) for name in wanted} for graph in asked]
    code = 2 if len(graphs) < len(files) else 0
    if as_json:
        data = [
            {"model": str(file)} | answer.to_json()
            for (file, _), answer in zip(graphs, answers, strict=True)
        ]
        for told, cost in zip(data, costs, strict=False):
            told["energy"] = cost.to_json()
        for told, found in zip(data, trusts, strict=False):
            told["trust"] = found.to_json()
        for told, other in zip(data, others, strict=True):
            if other:
                told["baselines"] = other
        output.json_text(data if several else data[0])
        return code
    for index, answer in enumerate(answers):
        _show(answer, costs[index] if costs else None)
        for name, latency_ms in others[index].items():
            output.out().print(f"by {name}: {latency_ms:.3f} ms")
        if trusts:
            from latfarm_controller.cli.answers.predict_explain import show_trust

            show_trust(trusts[index])
    return code


def _baselines(names: list[str]) -> list[str]:
    """The names asked for, each once.

    Raises:
        UsageError: one that is none.
    """
    for name in names:
        if name not in BASELINES:
            raise UsageError(f"no baseline {name!r}; known: {', '.join(BASELINES)}")
    return list(dict.fromkeys(names))


def _show(answer: Answer, cost: EnergyAnswer | None) -> None:
    low, high = answer.interval_ms
    trust = "" if answer.calibrated else " (uncalibrated: too few measured networks)"
    console = output.out()
    console.print(
        f"{answer.network} on {answer.platform}: {answer.latency_ms:.3f} ms, "
        f"{answer.coverage:.0%} interval "
        f"{low:.3f} to {high:.3f} ms{trust}",
        style="bold",
    )
    if cost is not None:
        low, high = cost.interval_mj
        trust = "" if cost.calibrated else " (uncalibrated: too few measured networks)"
        console.print(
            f"{cost.energy_mj:.4g} mJ an inference above rest, by {cost.rail}, "
            f"{cost.coverage:.0%} interval {low:.4g} to {high:.4g} mJ{trust}",
            style="bold",
        )
    order = sorted(range(len(answer.kernels)), key=lambda i: -answer.kernels[i].latency_ms)
    longest = order[:8]
    output.table(
        "",
        ["kernel", "configuration", "ms", "interval", *(["mJ"] if cost else []), "source"],
        [
            [
                kernel.type,
                " ".join(f"{k}={v}" for k, v in kernel.configuration.items()),
                f"{kernel.latency_ms:.4f}",
                "{:.4f} to {:.4f}".format(*kernel.interval_ms),
                *([f"{cost.kernels[index].energy_mj:.4g}"] if cost else []),
                kernel.source,
            ]
            for index in longest
            for kernel in [answer.kernels[index]]
        ],
    )
    if len(answer.kernels) > len(longest):
        console.print(f"... and {len(answer.kernels) - len(longest)} shorter kernels (--json)")
    for text in answer.unsupported:
        console.print(f"unsupported: {text}", style="yellow")
    console.print()
