"""Builds models from graphs in batches, in this process or as Ray tasks.

A Ray task returns small models inside its answer, and each large model as a Ray object of its own.
The Ray process writes large models into files, which outlive Ray and do not fill the controller's
memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.errors import BuildError
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.scheduling.messages import ModelSpec

SMALL_BYTES = 64 << 10
"""A model up to this size travels inside its orders, which is cheaper than a look-up in Ray."""
NICENESS = 10
"""The niceness of building processes (`man 7 sched`): they yield to what measures and drives."""

Build = Callable[[Graph, str, str], bytes | ModelFiles]
"""Makes a model, given the graph, the model format and the data type."""

Built = tuple[BuiltModel, bytes | ModelFiles]
"""What is told of a model, and the model: the bytes of its only file, or all of its files."""


def build_batch(
    jobs: Sequence[tuple[ModelSpec, Graph]], build: Build | None = None
) -> list[Built | NotBuilt]:
    """Build models; one that cannot be built does not stop the others.

    Args:
        jobs: the models, each with its graph.
        build: makes a model; by default, `builders.build_files`.
    """
    if build is None:
        from latfarm_controller import builders

        build = builders.build_files
    answers: list[Built | NotBuilt] = []
    for model, graph in jobs:
        try:
            files = ModelFiles.of(build(graph, model.model_format, model.dtype))
        except BuildError as error:
            answers.append(NotBuilt(model, str(error)))
        except MemoryError:
            text = f"{graph.name}: not enough memory to build it as {model.model_format}"
            answers.append(NotBuilt(model, text, retryable=True))
        except Exception as error:  # an error of the builder itself, the same at every try
            text = f"{graph.name}: {type(error).__name__} while building: {error}"
            answers.append(NotBuilt(model, text))
        else:
            answers.append(_described(model, files))
    return answers


def _described(model: ModelSpec, files: ModelFiles) -> Built:
    """A model that was built, with the hashes of its files and without a handle."""
    companions = {name: _sha256(data) for name, data in files.companions.items()}
    built = BuiltModel(model, _sha256(files.model), files.size_bytes, None, companions)
    return built, files if companions else files.model


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class InlineBuilder:
    """Builds in a thread of this process; the handle of a model is the model itself."""

    def __init__(self, build: Build | None = None) -> None:
        self._build = build

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        """One answer for each job, in order."""
        answers = await asyncio.to_thread(build_batch, jobs, self._build)
        return [with_handle(answer, None) for answer in answers]


class RayBuilder:
    """Builds in Ray's workers.

    The handle of a small model is the model; that of a large one is a list with a Ray reference.
    """

    def __init__(self, build: Build | None = None) -> None:
        import ray

        self._build = build
        self._task = ray.remote(max_retries=0)(build_task)
        self._cancel = ray.cancel

    async def build_texts(
        self, jobs: Sequence[tuple[ModelSpec, str]]
    ) -> list[BuiltModel | NotBuilt]:
        """One answer for each job, in order; if the worker died, all failed and may be retried.

        Args:
            jobs: the models, each with its graph as JSON text.
        """
        refs = self._task.options(num_returns=len(jobs) + 1).remote(list(jobs), self._build)
        try:
            answers: list[BuiltModel | NotBuilt] = await refs[0]
        except asyncio.CancelledError:  # it took too long
            with contextlib.suppress(Exception):  # Ray has several exceptions for what is gone
                self._cancel(refs[0], force=True)
            raise
        except Exception as error:  # Ray has several exceptions for a worker that was lost
            reason = f"the builder died: {str(error).strip().splitlines()[0]}"
            return [NotBuilt(model, reason, retryable=True) for model, _ in jobs]
        return [
            replace(answer, handle=[ref])
            if isinstance(answer, BuiltModel) and answer.handle is None
            else answer
            for answer, ref in zip(answers, refs[1:], strict=True)
        ]

    async def warm_up(self, count: int) -> None:
        """Have `count` workers import what building needs, before the first models are needed."""
        import ray

        task = ray.remote(num_cpus=1, max_retries=0)(_import_builders)
        await asyncio.gather(*(task.remote() for _ in range(count)), return_exceptions=True)


def graph_text(graph: Graph) -> str:
    """A graph as JSON text, for another process. Weights may be infinite there."""
    return json.dumps(graph.to_json(), separators=(",", ":"))


def build_task(jobs: Sequence[tuple[ModelSpec, str]], build: Build | None) -> tuple[Any, ...]:
    """The Ray task that builds models.

    Args:
        jobs: the models, each with its graph as `graph_text` wrote it.
        build: makes a model; by default, `builders.build_files`.

    Returns:
        all answers, followed for each job by its model if that is large, else None.
    """
    _step_back()
    graphs = [(model, Graph.from_json(json.loads(text))) for model, text in jobs]
    answers = build_batch(graphs, build)
    large = [
        answer[1] if isinstance(answer, tuple) and answer[0].size_bytes > SMALL_BYTES else None
        for answer in answers
    ]
    told = [with_handle(answer, SMALL_BYTES) for answer in answers]
    return (told, *large)


def with_handle(answer: Built | NotBuilt, limit_bytes: int | None) -> BuiltModel | NotBuilt:
    """The answer with the model as its handle, unless the model exceeds the limit."""
    if isinstance(answer, NotBuilt):
        return answer
    built, data = answer
    if limit_bytes is not None and built.size_bytes > limit_bytes:
        return built
    return replace(built, handle=data)


def _step_back() -> None:
    """Lower the priority of this process, so that it delays no driver, shard or agent."""
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))


def _import_builders() -> None:
    _step_back()
    from latfarm_controller import builders  # noqa: F401
