"""The port behind `latfarm serve --metrics-port`, on loopback: /metrics and /-/healthy.

Prometheus runs beside the controller, so that nothing of this leaves the machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from latfarm_protos.trust.http_port import HttpPort, Page
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.farm.observer import FarmState
from latfarm_controller.metrics.metrics import ControllerMetrics
from latfarm_controller.metrics.state import ControllerCertificateCollector, StoreCollector

LOOPBACK = "127.0.0.1"
LOOK_S = 2.0
COUNT_EVERY = 5
"""Looks between two counts of the store's rows."""

logger = logging.getLogger(__name__)


class WatchedFarm(Protocol):
    """What is looked at of a farm."""

    def state(self) -> FarmState:
        """Queues and boards now."""
        ...

    def timing_here(self) -> bool:
        """Whether a board measures that shares this host, and needs it quiet."""
        ...


class CountedStore(Protocol):
    """What is looked at of a store."""

    path: Path

    def counts(self) -> Mapping[str, int]:
        """Rows by table."""
        ...


class Observer:
    """Looks at farm and store now and then, and compares predictions while no board here times."""

    def __init__(
        self,
        config: ControllerConfig,
        metrics: ControllerMetrics,
        farm: WatchedFarm,
        store: CountedStore,
    ) -> None:
        self._bundles_dir = config.bundles_dir
        self._metrics = metrics
        self._farm = farm
        self._store = store
        self._rows = StoreCollector(store.path)
        metrics.registry.register(self._rows)
        metrics.registry.register(ControllerCertificateCollector(config))

    async def run(self) -> None:
        """Until cancelled."""
        looks = 0
        while True:
            self._metrics.farm.saw(self._farm.state())
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
            logger.warning("the store's rows cannot be counted: %s", error)


class MetricsPort:
    """Serves the metrics from `open` to `close`; the observer looks as long.

    Args:
        port: 0: any free one.
        metrics: what is served.
        observer: keeps it fresh.
        healthy: what /-/healthy says: 200 or 503.
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
        """Where Prometheus scrapes."""
        return f"http://{LOOPBACK}:{self._server.port if self._server else 0}/metrics"

    def open(self) -> None:
        """Listen. Called in the controller's event loop.

        Raises:
            UsageError: the port cannot be had.
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
        """Free the port; a second time is no change."""
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
        logger.error("metrics are not kept fresh any more", exc_info=task.exception())
