"""`latfarm probes`: a platform without a bundle, from the rows of other boards in the store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.app.question import Found, Question
from latfarm_controller.config import load_config
from latfarm_controller.errors import ControllerError
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.testing.onnx_files import write

from tests.predictors.transfer.boards import made_table

Latfarm = Callable[..., Any]
NEW = "b5-ncnn1.0-fp32-1t"
TABLE = made_table(boards=6, networks=8)


def network(number: int) -> Graph:
    builder = GraphBuilder(f"net{number}")
    x = builder.conv(builder.input((1, 3, 8, 8)), number + 1, 3)
    return builder.build([builder.relu(x)])


def measured(board: int, number: int) -> tuple[Measurement, Graph]:
    graph = network(number)
    made = Measurement(
        f"r{board}-{number}",
        hash_of(graph),
        f"b{board}-ncnn1.0-fp32-1t",
        "query" if number % 2 else "network",
        Outcome.OK,
        latency_ms=float(TABLE.latencies_ms[board, number]),
        received_at_s=time.time() - 100.0,
    )
    return made, graph


@pytest.fixture
def farm(home: Path) -> Path:
    """A store in which five boards have measured eight networks, and a sixth board four of them."""
    config = load_config()
    config.make_dirs()
    with DuckDBStore(config.store_file) as store:
        store.add_measurements("c", [measured(b, n) for b in range(5) for n in range(8)])
        store.add_measurements("d", [measured(5, n) for n in range(4)])
    return home


@pytest.mark.usefixtures("farm")
def test_the_plan_names_networks_and_what_is_measured_already(latfarm: Latfarm) -> None:
    ended = latfarm("probes", "plan", "-p", NEW, "--count", "6", "--json")
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    assert told["others"] == 5
    assert len({probe["graph_hash"] for probe in told["probes"]}) == 6
    latencies = {probe["network"]: probe["latency_ms"] for probe in told["probes"]}
    for name, latency_ms in latencies.items():
        number = int(name.removeprefix("net"))
        expected = float(TABLE.latencies_ms[5, number]) if number < 4 else None
        assert latency_ms == (None if expected is None else pytest.approx(expected))
    assert json.loads(latfarm("probes", "plan", "-p", NEW, "--count", "6", "--json").out) == told
    table = latfarm("probes", "plan", "-p", "b9-ncnn1.0-fp32-1t", "--count", "3")
    assert "3 of 3 probes are not measured on b9-ncnn1.0-fp32-1t" in table.err


@pytest.mark.usefixtures("farm")
def test_predictions_are_marked_and_have_intervals(latfarm: Latfarm, tmp_path: Path) -> None:
    told = json.loads(latfarm("probes", "predict", "-p", NEW, "--json").out)
    sources = {each["model"]: each["source"] for each in told["answers"]}
    assert sources == {f"net{n}": "probe" if n < 4 else "transferred" for n in range(8)}
    for each in told["answers"]:
        low, high = each["interval_ms"]
        assert low <= each["latency_ms"] <= high
        assert (low < high) == (each["source"] == "transferred")
    write(network(6), tmp_path / "six.onnx")
    write(network(30), tmp_path / "other.onnx")
    ended = latfarm("probes", "predict", "-p", NEW, tmp_path, "--json")
    assert ended.code == 2
    assert "other.onnx: no platform has measured this network" in ended.err
    (answer,) = json.loads(ended.out)["answers"]
    assert answer["model"] == str(tmp_path / "six.onnx")
    assert answer["source"] == "transferred"
    assert "transferred" in latfarm("probes", "predict", "-p", NEW).out


@pytest.mark.usefixtures("farm")
def test_a_model_with_open_sizes(latfarm: Latfarm, tmp_path: Path) -> None:
    path = write(network(6), tmp_path / "open.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(model, path)
    ended = latfarm("probes", "predict", "-p", NEW, path)
    assert ended.code == 2
    name = model.graph.input[0].name
    assert f"--shape {name}:1,3,224,8" in ended.err
    told = latfarm("probes", "predict", "-p", NEW, path, "--shape", f"{name}:1,3,8,8", "--json")
    assert [each["model"] for each in json.loads(told.out)["answers"]] == [str(path)]


@pytest.mark.usefixtures("farm")
def test_each_file_has_an_answer_though_two_hold_one_network(
    latfarm: Latfarm, tmp_path: Path
) -> None:
    files = [write(network(6), tmp_path / f"{name}.onnx") for name in ("one", "other")]
    told = json.loads(latfarm("probes", "predict", "-p", NEW, *files, "--json").out)
    assert [each["model"] for each in told["answers"]] == [str(file) for file in files]


@pytest.mark.usefixtures("farm")
def test_what_is_missing_is_told_with_the_remedy(latfarm: Latfarm) -> None:
    ended = latfarm("probes", "predict", "-p", "b9-ncnn1.0-fp32-1t")
    assert ended.code == 2
    assert "0 probes" in ended.line
    ended = latfarm("probes", "plan", "-p", "b9-ncnn1.0-gpu-fp32")
    assert ended.code == 2
    assert "kind gpu" in ended.line


@pytest.mark.usefixtures("farm")
def test_probes_are_measured_by_ordinary_queries(latfarm: Latfarm) -> None:
    ended = latfarm("probes", "plan", "-p", NEW, "--count", "8", "--measure", "--json")
    assert ended.code == 2  # no board of this home offers the platform
    told = json.loads(ended.out)
    measured_ms = [probe["latency_ms"] for probe in told["probes"]]
    assert sum(value is not None for value in measured_ms) == 4
    lines = ended.err.splitlines()
    assert len([line for line in lines if "unknown platform" in line]) == 4


@pytest.mark.usefixtures("farm")
def test_only_missing_probes_are_measured(
    latfarm: Latfarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Question] = []
    stored = ControllerClient.query_many

    def answered(
        client: ControllerClient, questions: Sequence[Question]
    ) -> Iterator[tuple[int, Found | ControllerError]]:
        """A board that measures everything in 3 ms; the store answers as always."""
        if not questions[0].measure:
            yield from stored(client, questions)
            return
        asked.extend(questions)
        for place, question in enumerate(questions):
            made = Measurement(
                f"new{place}",
                question.graph_hash,
                question.platform,
                "query",
                Outcome.OK,
                latency_ms=3.0,
            )
            yield place, Found(made, hit=False)

    monkeypatch.setattr(ControllerClient, "query_many", answered)
    ended = latfarm("probes", "plan", "-p", NEW, "--count", "8", "--measure", "--survey", "--json")
    assert ended.code == 0, ended
    probes = json.loads(ended.out)["probes"]
    assert sum(probe["latency_ms"] == 3.0 for probe in probes) == 4
    assert all(probe["latency_ms"] is not None for probe in probes)
    assert {question.tier for question in asked} == {"survey"}
    assert {question.platform for question in asked} == {NEW}
    assert all(question.graph is not None for question in asked)
