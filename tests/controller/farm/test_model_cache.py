"""Built models: one that is asked for again is not built again, and what is kept has a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from latfarm_controller.farm import model_cache
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.model_cache import ModelCache
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.scheduling.messages import ModelSpec
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


class Counting(FarmObserver):
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
def observer() -> Counting:
    return Counting()


@pytest.fixture
def models(builder: Builder, observer: Counting) -> ModelCache:
    backend: Any = SimpleNamespace(builder=builder)
    made = ModelCache(backend, observer, lambda: 0.0)
    for name in ("a", "b", "c", "bad"):
        made.need(model(name), graph())
    return made


def test_what_is_kept_is_not_built_again(
    models: ModelCache, builder: Builder, observer: Counting
) -> None:
    first = asyncio.run(models.build([model("a"), model("bad")]))
    assert {type(answer) for answer in first} == {BuiltModel, NotBuilt}
    assert models.built(model("a")).size_bytes == 40
    models.release(model("a"))
    with pytest.raises(KeyError):
        models.built(model("a"))
    asyncio.run(models.build([model("a"), model("b")]))
    assert models.built(model("a")) in first
    assert builder.asked == [model("a"), model("bad"), model("b")]
    assert observer.told == [(2, 1), (1, 0)]
    models.release(model("b"))
    asyncio.run(models.build([model("b")]))  # nothing is built: nobody is told
    assert observer.told == [(2, 1), (1, 0)]


@pytest.mark.parametrize(("bound", "most"), [("KEPT_BYTES", 80), ("KEPT_MODELS", 2)])
def test_the_oldest_that_is_kept_goes(
    bound: str, most: int, models: ModelCache, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, bound, most)
    names = ["a", "b", "c"]
    asyncio.run(models.build([model(name) for name in names]))
    for name in names:
        models.release(model(name))
    builder.asked.clear()
    asyncio.run(models.build([model(name) for name in reversed(names)]))
    assert builder.asked == [model("a")]


def test_graphs_that_nobody_needs_are_forgotten(models: ModelCache, builder: Builder) -> None:
    models.forget_graphs({model("a")})
    asyncio.run(models.build([model("a")]))
    assert [hash_of(one) for one in builder.graphs] == [hash_of(graph())]
    with pytest.raises(KeyError):
        asyncio.run(models.build([model("b")]))


class Needed(set[ModelSpec]):
    """Models that are needed; counts how often it is asked about one."""

    asked = 0

    def __contains__(self, model: object) -> bool:
        self.asked += 1
        return super().__contains__(model)


def test_a_released_model_is_forgotten_without_a_look_at_the_others(
    models: ModelCache, builder: Builder
) -> None:
    others = [model(f"m{number}") for number in range(1000)]
    for each in others:
        models.need(each, graph())
    asyncio.run(models.build([model("a")]))
    models.release(model("a"))
    needed = Needed([*others, *map(model, ("b", "c", "bad"))])
    models.forget_graphs(needed)
    assert needed.asked == 1
    models.need(model("a"), graph())  # it is asked for again: nothing is lost
    assert [answer.model for answer in asyncio.run(models.build([model("a")]))] == [model("a")]
    assert builder.asked == [model("a")]  # it was kept
