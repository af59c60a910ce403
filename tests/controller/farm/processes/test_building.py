"""Building in batches: one bad model harms no other, and what failed says how."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import replace

import pytest
from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.errors import BuildError
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.processes.building import (
    NICENESS,
    SMALL_BYTES,
    InlineBuilder,
    build_batch,
    build_task,
    graph_text,
)
from latfarm_controller.farm.scheduling.messages import ModelSpec
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph


@pytest.fixture
def priorities(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The priorities that a task would have given its process, which runs these tests here."""
    found: list[int] = []
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, niceness: found.append(niceness))
    return found


def graph(name: str) -> Graph:
    builder = GraphBuilder(name)
    x = builder.input((1, 2, 4, 4))
    return builder.build([builder.relu(x)])


def job(name: str) -> tuple[ModelSpec, Graph]:
    return ModelSpec(name, "onnx", "fp32"), graph(name)


def build(graph: Graph, model_format: str, dtype: str) -> bytes:
    if graph.name == "refused":
        raise BuildError("node r0 (Relu): no such op")
    if graph.name == "huge":
        raise MemoryError
    if graph.name == "broken":
        raise KeyError("axis")
    size = SMALL_BYTES + 1 if graph.name == "large" else 10
    return graph.name.encode().ljust(size, b".")


def test_each_job_has_its_own_answer() -> None:
    names = ["good", "refused", "huge", "broken", "large"]
    answers = asyncio.run(InlineBuilder(build).build([job(name) for name in names]))
    good, refused, huge, broken, large = answers
    assert isinstance(good, BuiltModel)
    assert good.model.graph_hash == "good"
    assert good.sha256 == hashlib.sha256(good.handle).hexdigest()
    assert good.size_bytes == len(good.handle) == 10
    assert refused == NotBuilt(refused.model, "node r0 (Relu): no such op", retryable=False)
    assert isinstance(huge, NotBuilt)
    assert huge.retryable
    assert broken == NotBuilt(broken.model, "broken: KeyError while building: 'axis'")
    assert isinstance(large, BuiltModel)


def test_a_large_model_stays_out_of_the_answer(priorities: list[int]) -> None:
    jobs = [(model, graph_text(graph)) for model, graph in map(job, ("good", "large", "refused"))]
    told, *objects = build_task(jobs, build)
    assert [bool(getattr(answer, "handle", None)) for answer in told] == [True, False, False]
    assert objects[0] is None
    assert len(objects[1]) == SMALL_BYTES + 1 == told[1].size_bytes
    assert objects[2] is None
    assert priorities == [NICENESS], "it delays no driver, shard or agent"


def test_the_real_builders_are_the_default() -> None:
    ((built, data),) = [a for a in build_batch([job("g")]) if isinstance(a, tuple)]
    assert isinstance(data, bytes)
    assert built.size_bytes == len(data) > 0


@pytest.mark.usefixtures("priorities")
def test_a_model_of_several_files_is_told_with_all_its_hashes() -> None:
    def in_two(graph: Graph, model_format: str, dtype: str) -> ModelFiles:
        return ModelFiles(build(graph, model_format, dtype), {"weights": b"w" * SMALL_BYTES})

    (inline,) = asyncio.run(InlineBuilder(in_two).build([job("good")]))
    assert isinstance(inline, BuiltModel)
    assert inline.companions == {"weights": hashlib.sha256(b"w" * SMALL_BYTES).hexdigest()}
    assert inline.sha256 == hashlib.sha256(inline.handle.model).hexdigest()
    assert inline.size_bytes == inline.handle.size_bytes == 10 + SMALL_BYTES
    model, graph = job("good")
    told, apart = build_task([(model, graph_text(graph))], in_two)
    assert told[0] == replace(inline, handle=None), "together they are large"
    assert apart == inline.handle
