"""Graphs -> model bytes, in batches: in this process, or as Ray tasks.

A Ray task gives its small models inside the answer and each large one as an object of its own. That
stays in the object store until a shard asks for it: the driver handles hashes and references only.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.errors import BuildError
from latfarm_controller.farm.boards.interfaces import BuiltModel, NotBuilt
from latfarm_controller.farm.scheduling.messages import ModelSpec

SMALL_BYTES = 64 << 10
"""Up to here a model travels inside its orders: that is cheaper than a look-up in the store."""
NICENESS = 10

Build = Callable[[Graph, str, str], bytes]


def build_batch(
    jobs: Sequence[tuple[ModelSpec, Graph]], build: Build | None = None
) -> list[tuple[BuiltModel, bytes] | NotBuilt]:
    """Build every model; one that cannot be built does not stop the others.

    Args:
        jobs: what to build, with the graphs.
        build: `builders.build` unless given.
    """
    if build is None:
        from latfarm_controller import builders

        build = builders.build
    answers: list[tuple[BuiltModel, bytes] | NotBuilt] = []
    for model, graph in jobs:
        try:
            data = build(graph, model.model_format, model.dtype)
        except BuildError as error:
            answers.append(NotBuilt(model, str(error)))
        except MemoryError:
            text = f"{graph.name}: not enough memory to build it as {model.model_format}"
            answers.append(NotBuilt(model, text, retryable=True))
        except Exception as error:  # a builder's own fault, the same at every try
            text = f"{graph.name}: {type(error).__name__} while building: {error}"
            answers.append(NotBuilt(model, text))
        else:
            sha256 = hashlib.sha256(data).hexdigest()
            answers.append((BuiltModel(model, sha256, len(data), None), data))
    return answers


class InlineBuilder:
    """Builds in a thread of this process; a handle is the bytes themselves."""

    def __init__(self, build: Build | None = None) -> None:
        self._build = build

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        """One answer for each job, in order."""
        answers = await asyncio.to_thread(build_batch, jobs, self._build)
        return [with_handle(answer, None) for answer in answers]


class RayBuilder:
    """Builds in Ray's workers; a handle is the bytes of a small model, or a list with its ref."""

    def __init__(self, build: Build | None = None) -> None:
        import ray

        self._build = build
        self._task = ray.remote(max_retries=0)(build_task)

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        """One answer for each job, in order; a worker that died is a retryable failure of all."""
        try:
            refs = self._task.options(num_returns=len(jobs) + 1).remote(list(jobs), self._build)
            answers: list[BuiltModel | NotBuilt] = await refs[0]
        except Exception as error:  # whatever Ray makes of a lost worker
            reason = f"the builder died: {str(error).strip().splitlines()[0]}"
            return [NotBuilt(model, reason, retryable=True) for model, _ in jobs]
        return [
            BuiltModel(answer.model, answer.sha256, answer.size_bytes, [ref])
            if isinstance(answer, BuiltModel) and answer.handle is None
            else answer
            for answer, ref in zip(answers, refs[1:], strict=True)
        ]

    async def warm_up(self, count: int) -> None:
        """Have `count` workers imported what building needs, before the first real batch."""
        import ray

        task = ray.remote(num_cpus=1, max_retries=0)(_import_builders)
        await asyncio.gather(*(task.remote() for _ in range(count)), return_exceptions=True)


def build_task(jobs: Sequence[tuple[ModelSpec, Graph]], build: Build | None) -> tuple[Any, ...]:
    """The Ray task: first all answers, then for each job the bytes of a large model or None."""
    _step_back()
    answers = build_batch(jobs, build)
    large = [
        answer[1] if isinstance(answer, tuple) and len(answer[1]) > SMALL_BYTES else None
        for answer in answers
    ]
    told = [with_handle(answer, SMALL_BYTES) for answer in answers]
    return (told, *large)


def with_handle(
    answer: tuple[BuiltModel, bytes] | NotBuilt, limit_bytes: int | None
) -> BuiltModel | NotBuilt:
    """The answer with the bytes as its handle, unless they are more than the limit."""
    if isinstance(answer, NotBuilt):
        return answer
    built, data = answer
    if limit_bytes is not None and len(data) > limit_bytes:
        return built
    return BuiltModel(built.model, built.sha256, built.size_bytes, data)


def _step_back() -> None:
    """Building never delays a driver, a shard or an agent of the same machine."""
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))


def _import_builders() -> None:
    _step_back()
    from latfarm_controller import builders  # noqa: F401
