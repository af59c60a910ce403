"""`latfarm predict`: the latency of models on a platform, from its bundle, without a board."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.errors import ModelFileError

from latfarm_controller.cli.answers.predict_show import Prediction, show_one, show_table
from latfarm_controller.cli.shell import complete, inputs, output
from latfarm_controller.errors import UsageError
from latfarm_controller.nearest_names import hint

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

    JSON of several models is a list, which is printed as they are predicted. The list has no end if
    the command was interrupted or failed, and the exit code is then 130 or 1.

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
    inputs.shapes(shape or [])  # refuses wrong ones before files are read
    from latfarm_controller.cli.answers.predict_files import HowToPredict, outcomes
    from latfarm_controller.training.bundles import own_folder

    names = tuple(dict.fromkeys(platform or [])) or ("",)
    how = HowToPredict(
        own_folder(),
        names,
        coverage,
        energy,
        explain,
        tuple(wanted),
        batch,
        tuple(shape or ()),
        optimise,
        kernels=as_json or not (several or len(names) > 1),
    )
    several = several or len(names) > 1
    with closing(outcomes(files, how, _workers(files))) as ends:
        predicted = _predicted(files, ends)
        if as_json and several:
            count = _print_list(predicted, len(names))
        else:
            found = list(predicted)
            count = len(found)
            if found and as_json:
                output.json_text(found[0][0].to_json())
            elif found:
                by_platform = list(zip(*found, strict=True))
                _show(by_platform, models, several=several, explain=explain)
    return 2 if count < len(files) else 0


def _predicted(
    files: Sequence[Path], ends: Iterable[list[Prediction] | Exception]
) -> Iterator[list[Prediction]]:
    """The predictions of each file, one for each platform; files without any are reported."""
    for file, end in zip(files, ends, strict=True):
        if isinstance(end, Exception):
            text = str(end)
            output.error(text if isinstance(end, ModelFileError) else f"{file}: {text}")
        else:
            yield end


def _print_list(predicted: Iterable[Sequence[Prediction]], platforms: int) -> int:
    """Print predictions as one JSON list, ordered by platform and by file.

    Predictions are not held: a hundred thousand with their kernels would take gigabytes.

    Returns:
        The number of files with predictions; if there is none, nothing is printed.
    """
    from latfarm_controller.cli.shell.json_list import json_list

    count = 0
    with json_list(platforms) as printed:
        for predictions in predicted:
            count += 1
            for part, one in enumerate(predictions):
                printed.add(one.to_json(), part)
        if count:
            printed.end()
    return count


def _workers(files: Sequence[Path]) -> int | None:
    """The setting `prediction_workers`, where there are enough files for it to count."""
    from latfarm_controller.cli.answers.predict_files import MANY_FILES

    if len(files) < MANY_FILES:
        return 1
    from latfarm_controller.config import load_config  # it is slow to import

    return load_config().prediction_workers


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
