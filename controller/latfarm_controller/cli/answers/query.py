"""`latfarm query`: the latency of models, from the store or measured on a board."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import typer

from latfarm_controller.cli.answers import query_options as asking
from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from latfarm_controller.app.estimating import EstimateEnd
    from latfarm_controller.app.question import Found, Question
    from latfarm_controller.bulk.candidates import NetworkFile
    from latfarm_controller.bulk.predictions import PredictedLatency
    from latfarm_controller.estimates import AskedModel
    from latfarm_controller.latency import LatencyDatabase, QueryOptions


@dataclass
class _Shown:
    """What the command prints: answers as JSON, rows of the table, and the exit code."""

    energy: bool
    code: int = 0
    answers: list[dict[str, Any]] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def add_error(self, file: Path, platform: str, error: Exception) -> None:
        """Take an answer that is an error; it is told at once."""
        self.code = max(self.code, getattr(error, "exit_code", 1))
        output.error(f"{file}: {error}")
        told = {"kind": type(error).__name__, "text": str(error)}
        self.answers.append({"model": str(file), "platform": platform, "error": told})

    def add(self, file: Path, question: Question, found: Found) -> None:
        """Take an answer with a measurement, which may have failed."""
        measurement = found.measurement
        own = measurement.graph_hash == question.graph_hash
        known: dict[str, Any] = {"model": str(file), "hit": found.hit, "same_export": own}
        if found.repeats:
            known["repeats"] = [output.measurement_json(each) for each in found.repeats]
        if found.origin:
            known["origin"] = found.origin
        self.answers.append({**known, **output.measurement_json(measurement)})
        if not measurement.ok:
            self.code = self.code or 1
            output.error(f"{file}: {measurement.error_code}: {measurement.error_message}")
            return
        notes = [
            output.stability(measurement),
            output.clock_note(measurement),
            output.throttling_note(measurement),
            output.fingerprint_note(measurement),
            "" if own else "measured as another export of this network",
            ", ".join(found.origin.values()),
        ]
        self.rows.append(
            [
                str(file),
                measurement.platform,
                *output.latency_cells(measurement),
                *(output.energy_cells(measurement) if self.energy else ()),
                str(measurement.runs),
                "store" if found.hit else "board",
                ", ".join(filter(None, notes)),
            ]
        )
        if self.energy and measurement.energy_mj is None:
            output.error(f"{file}: {measurement.energy_story or 'no energy was measured'}")

    def add_prediction(self, file: Path, platform: str, answer: PredictedLatency) -> None:
        """Take an answer that a bundle predicts."""
        low, high = answer.interval_ms
        self.answers.append(
            {
                "model": str(file),
                "platform": platform,
                "hit": False,
                "predicted": True,
                "corrected_ms": answer.latency_ms,
                "interval_ms": [low, high],
                "coverage": answer.coverage,
                "calibrated": answer.calibrated,
                "unsupported": list(answer.unsupported),
                "bundle": answer.bundle,
                "method": answer.method,
            }
        )
        notes = [
            f"{answer.coverage:.0%} interval {low:.3f} to {high:.3f}",
            "" if answer.calibrated else "uncalibrated",
            "" if answer.method == "sum" else f"predicted by {answer.method}",
            f"{len(answer.unsupported)} unsupported ops" if answer.unsupported else "",
        ]
        shown = [str(file), platform, f"{answer.latency_ms:.3f}", "", ""]
        self.rows.append([*shown, "", "bundle", ", ".join(filter(None, notes))])


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("query")(query)


def query(
    command: typer.Context,
    models: inputs.Models,
    platform: asking.Platforms,
    publish: asking.Publish = False,
    survey: asking.Survey = False,
    refresh: asking.Refresh = False,
    max_age: asking.MaxAge = "",
    no_measure: asking.NoMeasure = False,
    predict: asking.Predict = False,
    repeat: asking.Repeat = 1,
    foreign: asking.Foreign = False,
    energy: inputs.Energy = False,
    batch: inputs.Batch = 0,
    shape: inputs.Shape = None,
    optimise: inputs.Optimise = False,
    tags: inputs.Tags = None,
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
      latfarm query models/ -p local-litert2.3-fp32-1t -p local-mnn3.6-fp32-1t --json
      latfarm query model.onnx -p local-litert2.3-fp32-1t --no-measure --max-age 30d
      latfarm query candidates/ -p local-litert2.3-fp32-1t --predict --json
      latfarm query model.onnx -p local-litert2.3-fp32-1t --repeat 5 --survey
      latfarm query model.onnx -p jetson-tensorrt10.3-fp16 --energy
    """
    asking.check(command)
    from latfarm_controller.bulk.candidates import NetworkFile
    from latfarm_controller.latency import QueryOptions

    options = QueryOptions(
        tier="publish" if publish else "survey" if survey else "",
        refresh=refresh,
        energy=energy,
        max_age_s=age_s(max_age),
        measure=not (no_measure or predict),
        repeat=repeat,
        foreign=foreign,
        tags=tuple(tags or ()),
    )
    files, several = inputs.model_files(models)
    read = NetworkFile("", batch, tuple(inputs.shapes(shape or []).items()), optimise)
    platforms = list(dict.fromkeys(platform))
    asked = _Asked(files, platforms, options, read)
    shown = _ask(asked, wait_s, energy=energy, predict=predict)
    if asked.unread == len(files):
        return 2
    shown.code = max(shown.code, 2 if asked.unread else 0)
    _show(shown, several=several, with_platform=len(platforms) > 1, as_json=as_json)
    return shown.code


@dataclass
class _Asked:
    """The questions of the command. Models are read one by one, as their questions are taken.

    Attributes:
        files: the models.
        platforms: each model is asked about on each of them.
        options: which answers will do.
        how: how models are read; its path counts for nothing.
        unread: number of files that are no usable models; each was told once.
    """

    files: list[Path]
    platforms: list[str]
    options: QueryOptions
    how: NetworkFile
    unread: int = 0

    def questions(self) -> Iterator[tuple[int, Question]]:
        """Each question with its place among those of all models."""
        from latfarm_predictors.errors import ModelFileError

        from latfarm_controller.latency import question_about

        for number, file in enumerate(self.files):
            try:
                graph = replace(self.how, path=str(file)).read()
            except ModelFileError as error:
                self.add_unread(error)
                continue
            for index, platform in enumerate(self.platforms):
                place = number * len(self.platforms) + index
                question = question_about(graph, platform, self.options)
                # Only a board needs the network itself, and a folder may hold very many.
                yield place, question if self.options.measure else replace(question, graph=None)

    def models(self) -> Iterator[tuple[int, AskedModel]]:
        """Each model on each platform with its place among all. Files are not read here."""
        from latfarm_controller.estimates import AskedModel

        for number, file in enumerate(self.files):
            source = replace(self.how, path=str(file))
            for index, platform in enumerate(self.platforms):
                yield number * len(self.platforms) + index, AskedModel(source, platform)

    def add_unread(self, error: Exception) -> None:
        """Tell that a file is no usable model."""
        output.error(str(error))
        self.unread += 1


def _ask(asked: _Asked, wait_s: float, *, energy: bool, predict: bool) -> _Shown:
    """Ask all questions, and return the answers in the order of the questions."""
    from latfarm_controller.cli.shell.signals import no_signals
    from latfarm_controller.latency import LatencyDatabase

    with LatencyDatabase(
        wait_s=wait_s,
        on_progress=lambda text: output.err().print(text, style="dim"),
        guard=no_signals,
    ) as database:
        ends = _estimated(asked, database) if predict else _answered(asked, database)
    shown = _Shown(energy)
    for place in sorted(ends):
        question, answer = ends[place]
        _add(shown, asked.files[place // len(asked.platforms)], question, answer)
    return shown


def _add(shown: _Shown, file: Path, question: Question, answer: EstimateEnd) -> None:
    """Take one answer."""
    from latfarm_controller.app.question import Found
    from latfarm_controller.bulk.predictions import PredictedLatency

    if isinstance(answer, Found):
        shown.add(file, question, answer)
    elif isinstance(answer, PredictedLatency):
        shown.add_prediction(file, question.platform, answer)
    elif isinstance(answer, Exception):
        shown.add_error(file, question.platform, answer)


def _answered(asked: _Asked, database: LatencyDatabase) -> dict[int, tuple[Question, EstimateEnd]]:
    """What the store or boards answer, by place. A single question raises its error."""
    from latfarm_controller.app.question import named

    told = list(asked.questions())
    ends: dict[int, tuple[Question, EstimateEnd]] = {}
    for index, end in database.ask([question for _, question in told]):
        place, question = told[index]
        if not isinstance(end, Exception):
            ends[place] = question, end
            continue
        error = named(end, question, asked.files[place // len(asked.platforms)].name)
        if len(told) == 1:
            raise error
        ends[place] = question, error
    return ends


def _estimated(asked: _Asked, database: LatencyDatabase) -> dict[int, tuple[Question, EstimateEnd]]:
    """What the store knows or bundles predict, by place. Networks are not kept."""
    from latfarm_predictors.errors import ModelFileError

    from latfarm_controller.app.question import Question
    from latfarm_controller.config import load_config
    from latfarm_controller.estimates import Choice, Estimator

    ends: dict[int, tuple[Question, EstimateEnd]] = {}
    estimator = Estimator(database, load_config(), Choice(asked.options))
    for place, question, end in estimator.ends(asked.models()):
        platform = asked.platforms[place % len(asked.platforms)]
        if question is not None:
            ends[place] = question, end
        elif not isinstance(end, ModelFileError):
            ends[place] = Question(platform, ""), end
        elif place % len(asked.platforms) == 0:  # a file is told once, on however many platforms
            asked.add_unread(end)
    return ends


def _show(shown: _Shown, *, several: bool, with_platform: bool, as_json: bool) -> None:
    """Print JSON or the table; the platform has a column only where there are several."""
    if as_json:
        output.json_text(shown.answers if several or with_platform else shown.answers[0])
        return
    if not shown.rows:
        return
    costs = output.ENERGY_HEADER if shown.energy else ()
    header = ["model", "platform", *output.LATENCY_HEADER, *costs, "runs", "from", ""]
    rows = shown.rows
    if not with_platform:
        del header[1]
        rows = [[row[0], *row[2:]] for row in rows]
    output.table("", header, rows)


def age_s(text: str) -> float:
    """An age in seconds: `12h` becomes 43,200; empty text becomes 0, which is any age.

    Raises:
        UsageError: the text has another form.
    """
    return seconds(text, "--max-age", "an age") if text else 0.0
