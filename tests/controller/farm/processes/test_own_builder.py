"""A Ray that stays away: the controller says so, and builds models itself until Ray is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from latfarm_controller.farm.boards.model_builder import BuilderState, BuiltModel, NotBuilt
from latfarm_controller.farm.boards.model_on_disk import ModelOnDisk
from latfarm_controller.farm.processes.building import SMALL_BYTES
from latfarm_controller.farm.processes.child_messages import ChildOptions
from latfarm_controller.farm.processes.own_builder import OwnBuilder
from latfarm_controller.farm.processes.ray_keeper import RayKeeper
from latfarm_controller.farm.scheduling.messages import ModelSpec
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

AWAY = BuilderState(0, "Ray is away: no room")
STARTING = BuilderState(0, "Ray is started again after: no room", starting=True)
FAR_AWAY_S = 1e6
"""A patience that no test outlives."""


class OnRay:
    """Builds on Ray, as it seems."""

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        return [BuiltModel(model, "ray", 1, b"m") for model, _ in jobs]


class Scene:
    """A builder whose Ray the test plays."""

    def __init__(self, folder: Path, patience_s: float, model: bytes = b"model") -> None:
        self.told: list[BuilderState] = []
        self._keeper = RayKeeper(ChildOptions(folder, folder), lambda state: None)
        self.builder = OwnBuilder(
            self._keeper, OnRay(), folder, lambda *_: model, self.told.append, patience_s
        )

    def ray(self, state: BuilderState) -> None:
        """Ray is in another state now."""
        self._keeper.state = state
        self.builder.note(state)

    async def built(self, count: int = 1) -> list[BuiltModel | NotBuilt]:
        graph = GraphBuilder("g")
        made = graph.build([graph.relu(graph.input((1, 2, 4, 4)))])
        jobs = [(ModelSpec(f"g{number}", "onnx", "fp32"), made) for number in range(count)]
        return await self.builder.build(jobs)

    async def takes_over(self) -> None:
        while self.builder.state.slots == 0:
            await asyncio.sleep(0)


def play(folder: Path, act: Callable[[Scene], Awaitable[None]], **options: float) -> None:
    async def scenario() -> None:
        await act(Scene(folder, options.get("patience_s", 0.0)))

    asyncio.run(scenario())


def test_a_ray_that_stays_away_is_told_and_built_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(scene: Scene) -> None:
        scene.ray(AWAY)
        assert scene.told == [AWAY]
        await scene.takes_over()
        assert scene.told[-1] == BuilderState(1)
        first, second = await scene.built(2)
        assert isinstance(first, BuiltModel)
        assert isinstance(second, BuiltModel)
        assert (first.handle, first.model.graph_hash) == (b"model", "g0")
        scene.ray(STARTING)
        assert scene.told[-1] == BuilderState(1, starting=True)
        scene.ray(BuilderState(3))
        assert scene.told[-1] == BuilderState(3)
        (on_ray,) = await scene.built()
        assert isinstance(on_ray, BuiltModel)
        assert on_ray.sha256 == "ray"

    play(tmp_path, act)
    told, back = [record.getMessage() for record in caplog.records]
    assert told.startswith("Ray is away: no room; until it is back, the controller itself builds")
    assert "Ray is back" in back


def test_a_ray_that_is_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        for state in (STARTING, AWAY, STARTING, BuilderState(2), AWAY):
            scene.ray(state)
        assert scene.told == [STARTING, AWAY, STARTING, BuilderState(2), AWAY]
        (built,) = await scene.built()
        assert isinstance(built, BuiltModel)
        assert built.sha256 == "ray"

    play(tmp_path, act, patience_s=FAR_AWAY_S)


def test_large_models_are_kept_in_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path, 0.0, b"m" * (SMALL_BYTES + 1))
        scene.ray(AWAY)
        await scene.takes_over()
        (built,) = await scene.built()
        assert isinstance(built, BuiltModel)
        assert isinstance(built.handle, ModelOnDisk)
        assert await built.handle.read() == b"m" * (SMALL_BYTES + 1)
        scene = Scene(tmp_path / "missing", 0.0, b"m" * (SMALL_BYTES + 1))
        scene.ray(AWAY)
        await scene.takes_over()
        (failed,) = await scene.built()
        assert isinstance(failed, NotBuilt)
        assert failed.retryable
        assert "cannot be kept" in failed.message

    asyncio.run(scenario())


def test_nothing_is_taken_over_at_the_end(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.ray(AWAY)
        scene.builder.close()
        scene.ray(BuilderState(0, "Ray is away: the controller stops"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert scene.builder.state.slots == 0

    play(tmp_path, act)
