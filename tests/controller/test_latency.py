"""The interface for Python: what the store knows is answered without a server, a board, or Ray."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_controller.config import load_config
from latfarm_controller.errors import NotMeasuredError, StoreBusyError, UsageError
from latfarm_controller.latency import query, query_many
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import PUBLISH, SURVEY, Measurement, Outcome

PLATFORM = "toy-sim1.0-fp32-1t"


def network(channels: int) -> Graph:
    builder = GraphBuilder(f"net{channels}")
    x = builder.conv(builder.input((1, 3, 8, 8)), channels, 3)
    return builder.build([builder.relu(x)])


def measured(channels: int, **changes: object) -> Measurement:
    made = Measurement(
        f"r{channels}",
        hash_of(network(channels)),
        PLATFORM,
        "query",
        Outcome.OK,
        latency_ms=float(channels),
        received_at_s=time.time() - 1000.0,
        settings=SURVEY,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose store knows the networks with 1, 2 and 3 channels; no server runs."""
    home = tmp_path / "home"
    monkeypatch.setenv("LATFARM_HOME", str(home))
    monkeypatch.setenv("LATFARM_LOCAL_AGENT", "false")
    config = load_config()
    config.make_dirs()
    with DuckDBStore(config.store_file) as store:
        told = [(measured(channels), network(channels)) for channels in (1, 2)]
        told.append((measured(3, settings=PUBLISH), network(3)))
        store.add_measurements("c", told)
    return home


@pytest.mark.usefixtures("home")
def test_a_hit_is_answered_from_the_store() -> None:
    answer = query(network(2), 1, PLATFORM)
    assert answer.hit
    assert answer.same_export
    assert (answer.latency_ms, answer.timed_ms) == (2.0, 2.0)
    assert answer.measurement is not None
    assert answer.measurement.request_id == "r2"
    assert answer.origin == {}


@pytest.mark.usefixtures("home")
def test_what_the_store_alone_cannot_answer() -> None:
    with pytest.raises(NotMeasuredError, match="leave out --no-measure"):
        query(network(9), 1, PLATFORM, measure=False)
    with pytest.raises(NotMeasuredError):
        query(network(2), 1, PLATFORM, measure=False, max_age_s=500.0)
    assert query(network(2), 1, PLATFORM, measure=False, max_age_s=5000.0).hit
    with pytest.raises(NotMeasuredError):
        query(network(2), 1, PLATFORM, measure=False, tier="publish")
    assert query(network(3), 1, PLATFORM, measure=False, tier="publish").hit
    with pytest.raises(UsageError, match=r"unknown platform.*did you mean toy-sim1\.0-fp32-1t"):
        query(network(2), 1, "toy-sim1.1-fp32-1t", measure=False)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tier": "fast"}, "survey or publish"),
        ({"max_age_s": -1.0}, "largest age"),
        ({"max_age_s": float("nan")}, "largest age"),
        ({"repeat": 0}, "repeats"),
        ({"measure": False, "refresh": True}, "forbidden"),
    ],
)
def test_a_question_that_makes_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        query(network(2), 1, PLATFORM, **options)


@pytest.mark.usefixtures("home")
def test_one_bad_model_fails_alone(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    models: list[Graph | Path] = [network(1), broken, network(2), network(9)]
    answers = list(query_many(models, [PLATFORM, "toy-sim1.1-fp32-1t"], measure=False))
    assert len(answers) == 8
    good = {answer.model: answer.latency_ms for answer in answers if answer.error is None}
    assert good == {"net1": 1.0, "net2": 2.0}
    bad = {(answer.model, type(answer.error).__name__) for answer in answers if answer.error}
    assert bad == {
        (str(broken), "ModelFileError"),
        ("net1", "UsageError"),
        ("net2", "UsageError"),
        ("net9", "UsageError"),
        ("net9", "NotMeasuredError"),
    }


@pytest.mark.usefixtures("home")
def test_another_process_that_holds_the_store_is_named() -> None:
    from latfarm_controller.store.lock import StoreLock

    with StoreLock(load_config().lock_file), pytest.raises(StoreBusyError, match="held by"):
        query(network(2), 1, PLATFORM)


def test_a_hit_loads_neither_ray_nor_runtimes(home: Path) -> None:
    program = (
        "import sys\n"
        "from latfarm_controller.latency import query\n"
        "from tests.controller.test_latency import PLATFORM, network\n"
        "assert query(network(2), 1, PLATFORM).hit\n"
        "print(sorted({'ray', 'onnx', 'sklearn', 'lightgbm', 'scipy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"
    assert home.exists()
