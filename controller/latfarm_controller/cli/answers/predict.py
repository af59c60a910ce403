"""`latfarm predict`: the latency of models on a platform, from its bundle, without a board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from latfarm_predictors.baselines.names import BASELINES

from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.predict.answer import Answer, EnergyAnswer
    from latfarm_predictors.predict.predictor import PlatformPredictor
    from latfarm_predictors.trust.network_trust import NetworkTrust

MOST_KERNELS = 8
"""Number of kernels that the table shows, the longest first."""
UNCALIBRATED = " (uncalibrated: too few measured networks)"
"""Note after an interval whose width rests on no calibration networks."""
Coverage = Annotated[
    float,
    typer.Option(
        min=0.5,
        max=0.99,
        help="Share of cases in which the latency, corrected for the slowdown of the core, shall "
        "lie in the interval.",
    ),
]
PredictEnergy = Annotated[
    bool,
    typer.Option("--energy", help="Predict the energy of an inference, too, in millijoules."),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Show for each layer how far the prediction can be trusted, and what to measure "
        "for a better one.",
    ),
]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        help="Predict with this predictor of the literature, too, for a comparison. May be "
        "repeated. One of: " + ", ".join(BASELINES) + ".",
    ),
]
EXAMPLES = """
    Predict the latency of ONNX models from a bundle. No board is needed.

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
    platform: inputs.BundlePlatform = "",
    coverage: Coverage = 0.9,
    energy: PredictEnergy = False,
    explain: Explain = False,
    baseline: Baselines = None,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    optimise: inputs.Optimise = False,
    as_json: inputs.Json = False,
) -> int:
    """Predict each model. Files that cannot be read are reported, and the exit code is then 2."""
    wanted = _baselines(baseline or [])
    files, several = inputs.model_files(models)
    graphs = inputs.read_models(files, batch, shape or [], optimise=optimise)
    if not graphs:
        return 2
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import open_bundle

    predictor = open_bundle(load_config().bundles_dir, platform)
    named = [(file, inputs.for_platform(graph, predictor.platform)) for file, graph in graphs]
    found = _predict(predictor, named, coverage, energy=energy, explain=explain)
    if wanted:
        from latfarm_predictors.predict.baseline_sums import baseline_ms

        for one in found:
            one.baselines = {name: baseline_ms(predictor, one.graph, name) for name in wanted}
    if as_json:
        data = [one.to_json() for one in found]
        output.json_text(data if several else data[0])
    else:
        for one in found:
            _show(one)
    return 2 if len(graphs) < len(files) else 0


@dataclass
class _Prediction:
    """All that is predicted of one model.

    Attributes:
        model: its file.
        graph: the network.
        answer: its latency.
        cost: its energy; None unless it is asked for.
        trust: how far the answer can be trusted; None unless it is asked for.
        baselines: latencies by other predictors, in milliseconds, by their names.
    """

    model: Path
    graph: Graph
    answer: Answer
    cost: EnergyAnswer | None = None
    trust: NetworkTrust | None = None
    baselines: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The answer as plain JSON types, with what else was asked for."""
        data = {"model": str(self.model)} | self.answer.to_json()
        if self.cost is not None:
            data["energy"] = self.cost.to_json()
        if self.trust is not None:
            data["trust"] = self.trust.to_json()
        if self.baselines:
            data["baselines"] = self.baselines
        return data


def _predict(
    predictor: PlatformPredictor,
    named: Sequence[tuple[Path, Graph]],
    coverage: float,
    *,
    energy: bool,
    explain: bool,
) -> list[_Prediction]:
    """Predict latencies, and energies and trust where these are asked for."""
    graphs = [graph for _, graph in named]
    costs = predictor.predict_energies(graphs, coverage) if energy else []
    found = [_Prediction(file, graph, predictor.predict(graph, coverage)) for file, graph in named]
    for one, cost in zip(found, costs, strict=False):
        one.cost = cost
    if explain:
        from latfarm_predictors.trust.network_trust import trust

        for one in found:
            one.trust = trust(predictor, one.graph, coverage, model=str(one.model))
    return found


def _baselines(names: list[str]) -> list[str]:
    """The baselines that are asked for, each once.

    Raises:
        UsageError: there is no baseline of that name.
    """
    for name in names:
        if name not in BASELINES:
            raise UsageError(
                f"there is no baseline {name!r}; known baselines: {', '.join(BASELINES)}"
            )
    return list(dict.fromkeys(names))


def _show(found: _Prediction) -> None:
    answer, cost = found.answer, found.cost
    _show_totals(answer, cost)
    _show_kernels(answer, cost)
    for text in answer.unsupported:
        output.out().print(f"unsupported: {text}", style="yellow")
    output.out().print()
    for name, latency_ms in found.baselines.items():
        output.out().print(f"by {name}: {latency_ms:.3f} ms")
    if found.trust is not None:
        from latfarm_controller.cli.answers.predict_explain import show_trust

        show_trust(found.trust)


def _show_totals(answer: Answer, cost: EnergyAnswer | None) -> None:
    low, high = answer.interval_ms
    trust = "" if answer.calibrated else UNCALIBRATED
    console = output.out()
    console.print(
        f"{answer.network} on {answer.platform}: {answer.latency_ms:.3f} ms, "
        f"{answer.coverage:.0%} interval "
        f"{low:.3f} to {high:.3f} ms{trust}",
        style="bold",
    )
    if answer.guarantee is not None and answer.calibrated:
        console.print(answer.guarantee.sentence, style="dim")
    if cost is not None:
        low, high = cost.interval_mj
        trust = "" if cost.calibrated else UNCALIBRATED
        console.print(
            f"{cost.energy_mj:.4g} mJ an inference above rest, by {cost.rail}, "
            f"{cost.coverage:.0%} interval {low:.4g} to {high:.4g} mJ{trust}",
            style="bold",
        )


def _show_kernels(answer: Answer, cost: EnergyAnswer | None) -> None:
    """A table of the longest kernels."""
    order = sorted(range(len(answer.kernels)), key=lambda i: -answer.kernels[i].latency_ms)
    longest = order[:MOST_KERNELS]
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
        hidden = len(answer.kernels) - len(longest)
        output.out().print(f"... and {hidden} shorter kernels (--json)")
