"""The benchmark of hash collisions finds collisions, and none among a few hundred variants."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.testing.graphs import renamed, reordered
from latfarm_predictors.testing.mixed_graphs import mixed_graphs, mutations

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "hash_collisions.py"


@cache
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hash_collisions", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_no_two_variants_share_a_hash(capsys: pytest.CaptureFixture[str]) -> None:
    assert script().main(["--count", "222", "--processes", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["collisions"] == result["splits"] == []
    assert result["variants"] > 200
    assert result["distinct_networks"] > 0.9 * result["variants"]


def test_collisions_and_splits_are_found() -> None:
    row = script().Row("a", 1, "hash", "told")
    fine = script().judge([row, row, replace(row, network="other", told="another")])
    assert (fine["collisions"], fine["splits"]) == ([], [])
    found = script().judge([row, replace(row, seed=2, told="another")])
    assert found["collisions"] == [["a", 1, "a", 2]]
    found = script().judge([row, replace(row, seed=2, network="other")])
    assert found["splits"] == [["a", 1, "a", 2]]


@given(mixed_graphs(), st.integers(0, 1000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_structure_digest_depends_on_no_name_or_order(graph: Graph, seed: int) -> None:
    told = _told(graph)
    assert _told(renamed(graph, seed)) == told
    assert all(_told(changed) != told for _, changed in mutations(graph))


def test_the_structure_digest_depends_on_sharing() -> None:
    b = GraphBuilder("shared")
    x = b.input((1, 4))
    r = b.relu(x)
    shared = b.build([b.add(b.sigmoid(r), b.tanh(r))])
    twice = b.build([b.add(b.sigmoid(b.relu(x)), b.tanh(b.relu(x)))])
    assert _told(shared) != _told(twice)
    assert _told(reordered(shared, 3)) == _told(shared)


def _told(graph: Graph) -> str:
    told: str = script().told(graph)
    return told
