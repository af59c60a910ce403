"""Many candidates without a board: each answer is measured or predicted, and says so."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from latfarm_controller.app.question import Question
from latfarm_controller.errors import NotMeasuredError, UsageError
from latfarm_controller.estimates import MEASURED, PREDICTED, estimate_many
from latfarm_controller.latency import (
    TOGETHER,
    LatencyDatabase,
    QueryOptions,
    query,
    query_many,
)
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.predict.answer import Answer, KernelAnswer
from latfarm_predictors.testing.onnx_files import write

from tests.controller.test_latency import PLATFORM, home, network

__all__ = ["home"]
Run = Callable[..., tuple[int, Any]]


@dataclass
class FakePredictor:
    """Predicts that each network takes as many milliseconds as it has nodes."""

    platform: str

    def predict_many(self, graphs: Sequence[Graph], coverage: float) -> list[Answer]:
        return [self._answer(graph, coverage) for graph in graphs]

    def _answer(self, graph: Graph, coverage: float) -> Answer:
        size = float(len(graph.nodes))
        kernels = tuple(
            KernelAnswer("relu", (node.name,), {}, 1.0, (0.5, 2.0), "") for node in graph.nodes
        )
        strange = (f"{graph.nodes[0].name} (Conv): no regressor knows it",)
        ends = (size / 2.0, size * 2.0)
        return Answer(
            graph.name, self.platform, size, ends, coverage, True, kernels, unsupported=strange
        )


@pytest.fixture
def bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of `PLATFORM` alone. It is known to this process, so no other one predicts."""
    monkeypatch.setenv("LATFARM_PREDICTION_WORKERS", "1")

    def opened(_folder: Path, platform: str) -> FakePredictor:
        if platform != PLATFORM:
            raise UsageError(f"there is no bundle for platform {platform!r}")
        return FakePredictor(platform)

    monkeypatch.setattr("latfarm_controller.training.bundles.open_bundle", opened)


@pytest.mark.usefixtures("home", "bundle")
def test_hits_come_from_the_store_and_the_rest_is_predicted(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    models: list[Graph | Path] = [network(1), network(8), broken, network(2), network(9)]
    found = {each.model: each for each in estimate_many(models, [PLATFORM])}
    assert {name: (each.latency_ms, each.source) for name, each in found.items()} == {
        "net1": (1.0, MEASURED),
        "net2": (2.0, MEASURED),
        "net8": (2.0, PREDICTED),
        "net9": (2.0, PREDICTED),
        str(broken): (None, ""),
    }
    assert found["net1"].interval_ms is None
    assert found["net8"].interval_ms == (1.0, 4.0)
    assert found["net8"].unsupported_ms == 1.0
    assert type(found[str(broken)].error).__name__ == "ModelFileError"


@pytest.mark.usefixtures("home")
def test_without_a_bundle_or_without_predictions_it_is_an_error() -> None:
    (missing,) = estimate_many([network(9)], [PLATFORM])
    assert isinstance(missing.error, NotMeasuredError)
    assert "no bundle of the platform predicts it" in str(missing.error)
    (alone,) = estimate_many([network(9)], [PLATFORM], predict=False)
    assert isinstance(alone.error, NotMeasuredError)
    assert "leave out --no-measure" in str(alone.error)
    (unknown,) = estimate_many([network(9)], ["toy-sim7.0-fp32-1t"])
    assert isinstance(unknown.error, UsageError)


@pytest.mark.usefixtures("home", "bundle")
def test_thousands_of_candidates_are_predicted_in_one_call() -> None:
    alive: list[int] = []
    made = 0

    def candidates() -> Iterator[Graph]:
        nonlocal made
        for number in range(1, 2201):
            graph = network(number % 1200 + 1)
            made += 1
            weakref.finalize(graph, alive.pop)
            alive.append(number)
            yield graph

    most = 0
    sources = dict.fromkeys((MEASURED, PREDICTED), 0)
    for each in estimate_many(candidates(), [PLATFORM]):
        sources[each.source] += 1
        most = max(most, len(alive))
    assert made == 2200
    assert sources == {MEASURED: 5, PREDICTED: 2195}
    assert most <= 2 * TOGETHER  # networks are not kept, however many there are


@pytest.mark.usefixtures("home")
def test_thousands_of_questions_to_the_store_hold_few_networks() -> None:
    alive: list[int] = []

    def candidates() -> Iterator[Graph]:
        for number in range(1, 1301):
            graph = network(number)
            weakref.finalize(graph, alive.pop)
            alive.append(number)
            yield graph

    most = hits = 0
    for each in query_many(candidates(), [PLATFORM], measure=False):
        most = max(most, len(alive))
        hits += each.hit
    assert hits == 3
    assert most <= 2 * TOGETHER


@pytest.mark.usefixtures("home")
def test_one_network_that_cannot_be_predicted_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Choosy(FakePredictor):
        def predict_many(self, graphs: Sequence[Graph], coverage: float) -> list[Answer]:
            if any(graph.name == "net11" for graph in graphs):
                raise GraphError("net11 is too large for any board")
            return super().predict_many(graphs, coverage)

    monkeypatch.setattr(
        "latfarm_controller.training.bundles.open_bundle", lambda _, platform: Choosy(platform)
    )
    found = list(estimate_many([network(number) for number in range(4, 40)], [PLATFORM]))
    bad = {each.model: str(each.error) for each in found if each.error is not None}
    assert bad == {"net11": "net11 is too large for any board"}
    assert sum(each.source == PREDICTED for each in found) == 35


def test_an_estimate_never_asks_a_board() -> None:
    with pytest.raises(UsageError, match="asks no board"):
        list(estimate_many([network(1)], [PLATFORM], options=QueryOptions()))


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, and reads the JSON that it prints."""
    from latfarm_controller.cli import main

    def call(*arguments: str | Path) -> tuple[int, Any]:
        code = main.run([str(argument) for argument in arguments])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a network that the store knows, and one that it does not."""
    folder = tmp_path / "models"
    folder.mkdir()
    write(network(2), folder / "known.onnx")
    write(network(9), folder / "new.onnx")
    return folder


@pytest.mark.usefixtures("bundle")
def test_the_command_marks_what_it_predicts(run: Run, models: Path) -> None:
    code, told = run("query", models, "-p", PLATFORM, "--predict", "--json")
    assert code == 0
    assert [each["hit"] for each in told] == [True, False]
    assert told[1]["predicted"] is True
    assert told[1]["interval_ms"] == [1.0, 4.0]
    assert "predicted" not in told[0]


@pytest.mark.usefixtures("bundle")
def test_the_command_compares_models_and_platforms(run: Run, models: Path) -> None:
    code, told = run("compare", models, "-p", PLATFORM, "--json")
    assert code == 0
    assert [each["source"] for each in told["latencies"]] == [MEASURED, PREDICTED]
    assert [each["times_best"] for each in told["models"][PLATFORM]] == [1.0, 1.0]
    assert told["unsupported"][0]["share"] == 0.5
    code, told = run("compare", models, "-p", PLATFORM, "--no-predict", "--json")
    assert code == 1
    assert len(told["latencies"]) == 1


@pytest.mark.usefixtures("bundle")
def test_models_with_open_sizes_are_compared(run: Run, tmp_path: Path) -> None:
    path = write(network(9), tmp_path / "open.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(model, path)
    shape = f"{model.graph.input[0].name}:1,3,8,8"
    code, told = run("compare", path, "-p", PLATFORM, "--shape", shape, "--json")
    assert code == 0
    assert [each["model"] for each in told["latencies"]] == [str(path)]


@pytest.mark.usefixtures("home", "bundle")
def test_the_store_is_opened_for_many_candidates_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time it is opened for many questions, an index of all rows is made."""
    opened: list[int] = []

    def counted(database: LatencyDatabase, questions: Sequence[Question]) -> Any:
        opened.append(len(questions))
        return stored(database, questions)

    stored = LatencyDatabase._stored
    monkeypatch.setattr(LatencyDatabase, "_stored", counted)
    candidates = [network(number % 600 + 1) for number in range(4 * TOGETHER)]
    found = list(estimate_many(candidates, [PLATFORM]))
    assert [each.model for each in found] == [each.name for each in candidates]
    assert sum(opened) == len(candidates)
    assert len(opened) == 3
    opened.clear()
    assert len(list(query_many(candidates, [PLATFORM], measure=False))) == len(candidates)
    assert len(opened) == 3


@pytest.mark.usefixtures("home")
def test_a_graph_of_another_batch_is_refused() -> None:
    """It would be answered for its own batch, although another one is asked for."""
    assert query(network(1), 1, PLATFORM).latency_ms == 1.0
    with pytest.raises(UsageError, match="net1 has a batch of 1, and a Graph is taken as it is"):
        query(network(1), 8, PLATFORM)
    with pytest.raises(UsageError, match="build it with a batch of 8"):
        list(estimate_many([network(1)], [PLATFORM], batch_size=8))


@pytest.mark.usefixtures("home")
def test_an_unanswered_question_tells_the_name_of_the_model(tmp_path: Path) -> None:
    """Networks are not kept where no board is asked, and still no hash is told."""
    write(network(9), tmp_path / "nine.onnx")
    models: list[Graph | Path] = [network(8), tmp_path / "nine.onnx", network(1)]
    found = list(query_many(models, [PLATFORM], measure=False))
    assert [str(each.error).split(" was not")[0] for each in found[:2]] == [
        "net8",
        str(tmp_path / "nine.onnx"),
    ]
    assert found[2].hit
