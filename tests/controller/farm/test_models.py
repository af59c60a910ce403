"""Built models: one that is asked for again is not built again, and what is kept has a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from latfarm_controller.farm import models as farm_models
from latfarm_controller.farm.boards.links import BuiltModel, NotBuilt
from latfarm_controller.farm.models import Models
from latfarm_controller.farm.scheduling.messages import ModelSpec
from latfarm_controller.farm.watch import FarmWatch
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of


class Builder:
    def __init__(self) -> None:
        self.asked: list[ModelSpec] = []
        self.graphs: list[Graph] = []

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        self.asked += [model for model, _ in jobs]
        self.graphs += [graph for _, graph in jobs]
        return [
            NotBuilt(model, "no")
            if model.graph_hash == "bad"
            else BuiltModel(model, "ab", 40, None)
            for model, _ in jobs
        ]


class Counting(FarmWatch):
    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def built(self, models: int, failed: int, took_s: float) -> None:
        self.told.append((models, failed))


def graph() -> Graph:
    b = GraphBuilder("g")
    return b.build([b.relu(b.input((1, 4, 8, 8)))])


def model(name: str) -> ModelSpec:
    return ModelSpec(name, "onnx", "fp32")


@pytest.fixture
def builder() -> Builder:
    return Builder()


@pytest.fixture
def watch() -> Counting:
    return Counting()


@pytest.fixture
def models(builder: Builder, watch: Counting) -> Models:
    backend: Any = SimpleNamespace(builder=builder)
    made = Models(backend, watch, lambda: 0.0)
    for name in ("a", "b", "c", "bad"):
        made.need(model(name), graph())
    return made


def test_what_is_kept_is_not_built_again(models: Models, builder: Builder, watch: Counting) -> None:
    first = asyncio.run(models.build([model("a"), model("bad")]))
    assert {type(answer) for answer in first} == {BuiltModel, NotBuilt}
    assert models.built(model("a")).size_bytes == 40
    models.release(model("a"))
    with pytest.raises(KeyError):
        models.built(model("a"))
    asyncio.run(models.build([model("a"), model("b")]))
    assert models.built(model("a")) in first
    assert builder.asked == [model("a"), model("bad"), model("b")]
    assert watch.told == [(2, 1), (1, 0)]
    models.release(model("b"))
    asyncio.run(models.build([model("b")]))  # nothing is built: nobody is told
    assert watch.told == [(2, 1), (1, 0)]


@pytest.mark.parametrize(("bound", "most"), [("KEPT_BYTES", 80), ("KEPT_MODELS", 2)])
def test_the_oldest_that_is_kept_goes(
    bound: str, most: int, models: Models, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farm_models, bound, most)
    names = ["a", "b", "c"]
    asyncio.run(models.build([model(name) for name in names]))
    for name in names:
        models.release(model(name))
    builder.asked.clear()
    asyncio.run(models.build([model(name) for name in reversed(names)]))
    assert builder.asked == [model("a")]


def test_graphs_that_nobody_needs_are_forgotten(models: Models, builder: Builder) -> None:
    models.forget_graphs({model("a")})
    asyncio.run(models.build([model("a")]))
    assert [hash_of(one) for one in builder.graphs] == [hash_of(graph())]
    with pytest.raises(KeyError):
        asyncio.run(models.build([model("b")]))
