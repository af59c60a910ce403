"""The HTTP port of `latfarm serve --metrics-port`: /metrics and /-/healthy on 127.0.0.1.

Prometheus runs on the same machine, so nothing of this leaves the machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from latfarm_protos.trust.http_port import HttpPort, Page
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import ControllerError, StoreError, UsageError
from latfarm_controller.farm.observer import FarmState
from latfarm_controller.metrics.metrics import ControllerMetrics
from latfarm_controller.metrics.state import ControllerCertificateCollector, StoreCollector
from latfarm_controller.store.base import CampaignRecord

LOOPBACK = "127.0.0.1"
LOOK_S = 2.0
"""Pause between two looks at the farm, in seconds."""
COUNT_EVERY = 5
"""The rows of the store and its campaigns are read at each fifth look, because that is slower."""

logger = logging.getLogger(__name__)


class WatchedFarm(Protocol):
    """The part of a farm that metrics need."""

    def state(self) -> FarmState:
        """The state of the queues and boards now."""
        ...

    def timing_here(self) -> bool:
        """Whether a board on this host measures now, so that the host must be quiet."""
        ...


class CountedStore(Protocol):
    """The part of a store that metrics need."""

    path: Path

    def counts(self) -> Mapping[str, int]:
        """Number of rows of each table."""
        ...


class ListedCampaigns(Protocol):
    """The part of the campaigns that metrics need."""

    async def all(self) -> Sequence[CampaignRecord]:
        """All campaigns that people see in the list."""
        ...


class UnusedBoards(Protocol):
    """Knows the boards that the farm has not connected to; see `app.unused_boards`."""

    def states(self) -> Mapping[str, str]:
        """The state of each of them, by name, as it is known now."""
        ...

    async def run(self) -> None:
        """Ask the boards again and again, until cancelled."""
        ...


@dataclass(frozen=True)
class Watched:
    """What metrics read regularly."""

    farm: WatchedFarm
    store: CountedStore
    campaigns: ListedCampaigns
    unused: UnusedBoards


class Observer:
    """Reads farm and store regularly; compares predictions while no board on this host measures.

    Args:
        config: the settings, which name the folder of bundles.
        metrics: the metrics to update.
        watched: what is read.
    """

    def __init__(
        self, config: ControllerConfig, metrics: ControllerMetrics, watched: Watched
    ) -> None:
        self._bundles_dir = config.bundles_dir
        self._metrics = metrics
        self._farm = watched.farm
        self._store = watched.store
        self._campaigns = watched.campaigns
        self._unused = watched.unused
        self._rows = StoreCollector(watched.store.path)
        metrics.registry.register(self._rows)
        metrics.registry.register(ControllerCertificateCollector(config))

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._unused.run(), name="unused boards")
            tasks.create_task(self._look(), name="look at the farm")

    async def _look(self) -> None:
        looks = 0
        while True:
            state = self._farm.state()
            # The farm knows better: it holds the boards that it is connected to.
            boards = {**self._unused.states(), **state.boards}
            self._metrics.farm.saw(replace(state, boards=boards))
            if looks % COUNT_EVERY == 0:
                await self._count()
            if self._metrics.accuracy.waiting and not self._farm.timing_here():
                await asyncio.to_thread(self._metrics.accuracy.settle, self._bundles_dir)
            looks += 1
            await asyncio.sleep(LOOK_S)

    async def _count(self) -> None:
        try:
            self._rows.saw(await asyncio.to_thread(self._store.counts))
        except StoreError as error:
            logger.warning("the rows of the store cannot be counted: %s", error)
        try:
            self._metrics.campaigns.saw(await self._campaigns.all())
        except ControllerError as error:
            logger.warning("the campaigns cannot be read: %s", error)


class MetricsPort:
    """Serves the metrics from `open` to `close`; the observer runs during that time.

    Args:
        port: the port; 0: any free port.
        metrics: the metrics to serve.
        observer: keeps the metrics up to date.
        healthy: whether /-/healthy answers 200; else it answers 503.
    """

    def __init__(
        self, port: int, metrics: ControllerMetrics, observer: Observer, healthy: Callable[[], bool]
    ) -> None:
        self._asked = port
        self._metrics = metrics
        self._observer = observer
        self._healthy = healthy
        self._server: HttpPort | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The address that Prometheus scrapes."""
        return f"http://{LOOPBACK}:{self._server.port if self._server else 0}/metrics"

    def open(self) -> None:
        """Start to listen. Call this in the controller's event loop.

        Raises:
            UsageError: the port cannot be used.
        """
        pages = {"/metrics": self._page, "/-/healthy": self._health}
        try:
            self._server = HttpPort(LOOPBACK, self._asked, pages)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"cannot serve metrics on {LOOPBACK}:{self._asked}: "
                f"{getattr(error, 'strerror', None) or error}; give another --metrics-port"
            ) from error
        self._task = asyncio.create_task(self._observer.run(), name="metrics")
        self._task.add_done_callback(_tell)

    async def close(self) -> None:
        """Stop listening. Closing again does nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.close)

    def _page(self) -> Page:
        return Page(generate_latest(self._metrics.registry), CONTENT_TYPE_LATEST)

    def _health(self) -> Page:
        return Page(b"healthy\n") if self._healthy() else Page(b"stopping\n", status=503)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error(
            "metrics are not updated any more, because of an error", exc_info=task.exception()
        )
