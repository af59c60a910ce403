"""Builds models in the controller's own process while Ray has been away for long.

Ray usually comes back within ten seconds, and building models beside the event loop delays boards.
So it is waited for first. A Ray that cannot be started at all must not stop the farm, though.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.farm.boards.model_builder import Builder, BuilderState, BuiltModel, NotBuilt
from latfarm_controller.farm.boards.model_on_disk import ModelOnDisk, write_model
from latfarm_controller.farm.processes.building import (
    SMALL_BYTES,
    Build,
    build_batch,
    with_handle,
)
from latfarm_controller.farm.processes.ray_keeper import RayKeeper
from latfarm_controller.farm.scheduling.messages import ModelSpec

PATIENCE_S = 60.0
"""How long Ray may be away before models are built without it, in seconds.

A start of Ray takes up to 30 s on a busy host. A death of Ray costs ten seconds.
"""

logger = logging.getLogger(__name__)


class OwnBuilder:
    """Builds on Ray, and in a thread of this process while Ray has been away for long.

    Implements `interfaces.Builder`. Use it from one event loop.

    Args:
        keeper: knows whether Ray runs.
        remote: builds on Ray.
        models_dir: the folder for large models.
        build: makes a model; by default, `builders.build_files`.
        tell: called each time `state` may have changed.
        patience_s: how long Ray may be away before, in seconds.
    """

    def __init__(
        self,
        keeper: RayKeeper,
        remote: Builder,
        models_dir: Path,
        build: Build | None,
        tell: Callable[[BuilderState], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._keeper = keeper
        self._remote = remote
        self._models_dir = models_dir
        self._build = build
        self._tell = tell
        self._patience_s = patience_s
        self._waiting: asyncio.TimerHandle | None = None
        self._own = False
        self._closed = False

    @property
    def state(self) -> BuilderState:
        """Whether models can be built now, in whatever way."""
        ray = self._keeper.state
        return BuilderState(1, starting=ray.starting) if self._own else ray

    def note(self, ray: BuilderState) -> None:
        """The state of Ray has changed."""
        if ray.slots:
            self._stop_waiting()
            if self._own:
                logger.warning("Ray is back: models are built there again")
            self._own = False
        elif not self._closed and not self._own and self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.call_later(self._patience_s, self._take_over)
        self._tell(self.state)

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        """One answer for each job, in order."""
        if not self._own:
            return await self._remote.build(jobs)
        loop = asyncio.get_running_loop()
        answers: asyncio.Future[list[BuiltModel | NotBuilt]] = loop.create_future()
        thread = threading.Thread(
            target=self._build_here,
            args=(list(jobs), loop, answers),
            name="builder",
            daemon=True,  # the end of the controller must not wait for a model that takes minutes
        )
        thread.start()
        return await answers

    def close(self) -> None:
        """Take over no more."""
        self._closed, self._own = True, False
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()

    def _take_over(self) -> None:
        self._waiting = None
        self._own = True
        logger.warning(
            "%s; until it is back, the controller itself builds models, one batch at a time",
            self._keeper.state.away,
        )
        self._tell(self.state)

    def _build_here(
        self,
        jobs: Sequence[tuple[ModelSpec, Graph]],
        loop: asyncio.AbstractEventLoop,
        answers: asyncio.Future[list[BuiltModel | NotBuilt]],
    ) -> None:
        """Build models in a thread of its own, and write large ones into files."""
        found: list[BuiltModel | NotBuilt] = []
        for answer in build_batch(jobs, self._build):
            if isinstance(answer, NotBuilt) or answer[0].size_bytes <= SMALL_BYTES:
                found.append(with_handle(answer, None))
                continue
            built, data = answer
            path = self._models_dir / f"{built.sha256[:16]}-{secrets.token_hex(4)}"
            try:
                handle = ModelOnDisk(path, write_model(path, data))
            except OSError as error:
                reason = f"the model of {built.size_bytes} bytes cannot be kept: {error}"
                found.append(NotBuilt(built.model, reason, retryable=True))
            else:
                found.append(replace(built, handle=handle))

        def give() -> None:
            if not answers.done():  # nobody waits any more
                answers.set_result(found)

        try:
            loop.call_soon_threadsafe(give)
        except RuntimeError:  # the controller has ended meanwhile
            logger.info("models were built too late")
