from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import SURVEY, Measurement, Outcome, request_id

MakeGraph = Callable[[int], Graph]
MakeMeasurement = Callable[..., tuple[Measurement, Graph]]


def _graph(size: int) -> Graph:
    kind = TensorType("float32", (1, size))
    return Graph(
        f"relu-{size}",
        ("x",),
        ("y",),
        (Node("n", "Relu", ("x",), ("y",)),),
        {},
        {"x": kind, "y": kind},
    )


def _measurement(
    size: int = 8, repeat: int = 0, *, ok: bool = True, **changes: Any
) -> tuple[Measurement, Graph]:
    graph = _graph(size)
    platform = changes.pop("platform", "p")
    purpose = changes.pop("purpose", "kernel")
    made = Measurement(
        request_id=request_id(hash_of(graph), platform, purpose, SURVEY, repeat),
        graph_hash=hash_of(graph),
        platform=platform,
        purpose=purpose,
        outcome=Outcome.OK if ok else Outcome.INFRASTRUCTURE_ERROR,
        error_code="" if ok else "NOT_READY",
        board_id="b",
        latency_ms=float(size) if ok else None,
        mad_ms=0.01 if ok else None,
        session_ms=(1.0, 2.0) if ok else (),
        runs=20 if ok else 0,
        measured_at_s=1000.0 + size + repeat / 1000,
        conditions={"governor": "unknown"},
    )
    return replace(made, **changes), graph


@pytest.fixture(scope="session")
def make_graph() -> MakeGraph:
    """Return a function that makes a small graph of a given size."""
    return _graph


@pytest.fixture(scope="session")
def make_measurement() -> MakeMeasurement:
    """Return a function that makes a measurement and its graph.

    Its argument `repeat` makes different requests, and `changes` replace fields of the measurement.
    """
    return _measurement


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBStore]:
    """Open one store for all tests that use only a campaign of their own."""
    with DuckDBStore(tmp_path_factory.mktemp("shared") / "store.duckdb") as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with DuckDBStore(tmp_path / "store.duckdb") as opened:
        yield opened
