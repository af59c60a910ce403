"""`latfarm predict`: the latency of models on a platform, from its bundle, without a board."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from latfarm_predictors.baselines.names import BASELINES

from latfarm_controller.cli.answers.predict_remarks import as_sample, remarks_on
from latfarm_controller.cli.answers.predict_show import Prediction, show_one, show_table
from latfarm_controller.cli.shell import complete, inputs, output
from latfarm_controller.errors import UsageError
from latfarm_controller.nearest_names import hint

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.predict.predictor import PlatformPredictor

Platforms = Annotated[
    list[str] | None,
    typer.Option(
        "--platform",
        "-p",
        help="Name of the platform. It may be left out if only one platform has a bundle. May be "
        "repeated: each platform is then a column. sample: the simulated board whose bundle ships "
        "with latfarm, which answers too where no platform has a bundle yet.",
        autocompletion=complete.platforms,
    ),
]
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
    Predict the latency of ONNX and TFLite models from a bundle. No board is needed.

    Several models, a folder of them, or several platforms make one table. A yellow line tells what
    an answer lacks, and the command that mends it.

    \b
    Examples:
      latfarm predict model.onnx --platform local-onnxruntime1.31-fp32-1t
      latfarm predict model.onnx --platform sample
      latfarm predict models/
      latfarm predict models/ -p local-onnxruntime1.31-fp32-1t -p local-litert2.3-fp32-1t
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
    platform: Platforms = None,
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
    from latfarm_controller.training.bundles import open_or_sample, own_folder

    bundles_dir = own_folder()
    names = list(dict.fromkeys(platform or [])) or [""]
    found = []
    for name in names:
        predictor, is_sample = open_or_sample(bundles_dir, name)
        if is_sample and energy:
            raise UsageError(
                "the sample bundle has no energies; latfarm demo --energy measures those of this "
                "machine, if it has a power sensor"
            )
        named = [(file, inputs.for_platform(graph, predictor.platform)) for file, graph in graphs]
        predictions = _predict(predictor, named, coverage, energy=energy, explain=explain)
        for one in predictions if is_sample else ():
            _mark_as_sample(one)
        for one in predictions if wanted else ():
            one.baselines = _by_baselines(predictor, one.graph, wanted)
        found.append(predictions)
    several = several or len(names) > 1
    if as_json:
        data = [one.to_json() for predictions in found for one in predictions]
        output.json_text(data if several else data[0])
    else:
        _show(found, models, several=several, explain=explain)
    return 2 if len(graphs) < len(files) else 0


def _mark_as_sample(prediction: Prediction) -> None:
    """Let a prediction say that it is one of the sample bundle, and send nobody to its board."""
    from latfarm_controller.cli.answers.predict_explain import as_samples_trust

    prediction.remarks = as_sample(prediction.remarks)
    if prediction.trust is not None:
        prediction.trust = as_samples_trust(prediction.trust)


def _show(
    found: Sequence[Sequence[Prediction]], asked: Sequence[Path], *, several: bool, explain: bool
) -> None:
    """Print the predictions: one in detail, several as a table, and all layers if asked for."""
    if not several:
        show_one(found[0][0])
        return
    show_table(found, asked)
    if explain:
        from latfarm_controller.cli.answers.predict_explain import show_trust

        for one in (each for predictions in found for each in predictions):
            assert one.trust is not None
            output.out().print()
            output.out().print(f"{one.model} on {one.answer.platform}", style="bold")
            show_trust(one.trust)


def _by_baselines(
    predictor: PlatformPredictor, graph: Graph, names: Sequence[str]
) -> dict[str, float]:
    """Latencies of a network by other predictors, in milliseconds."""
    from latfarm_predictors.predict.baseline_sums import baseline_ms

    return {name: baseline_ms(predictor, graph, name) for name in names}


def _predict(
    predictor: PlatformPredictor,
    named: Sequence[tuple[Path, Graph]],
    coverage: float,
    *,
    energy: bool,
    explain: bool,
) -> list[Prediction]:
    """Predict latencies, and energies and trust where these are asked for."""
    from latfarm_predictors.trust.network_trust import covered_share, trust

    graphs = [graph for _, graph in named]
    costs = predictor.predict_energies(graphs, coverage) if energy else []
    found = []
    for (file, graph), answer in zip(named, predictor.predict_many(graphs, coverage), strict=True):
        covered = covered_share(predictor, graph, answer)
        remarks = remarks_on(predictor, graph, answer, covered)
        found.append(Prediction(file, graph, answer, covered, remarks))
    for one, cost in zip(found, costs, strict=False):
        one.cost = cost
    for one in found if explain else ():
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
                f"{hint(name, BASELINES)}"
            )
    return list(dict.fromkeys(names))
