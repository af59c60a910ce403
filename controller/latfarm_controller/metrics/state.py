"""Metrics that are read when they are scraped: queues, boards, store, disk and certificates."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from latfarm_protos.trust.expiry import expires_at_s
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from latfarm_controller.agents.registry import Registry
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import ControllerError
from latfarm_controller.farm.observer import BOARD_STATES, FarmState, QueueState
from latfarm_controller.metrics.labels import OTHER, BoundedLabel
from latfarm_controller.store.log_file import log_of

PREFIX = "latfarm_controller"


def gauge_family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """A metric of the controller whose values are read when it is scraped."""
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)


class FarmCollector(Collector):
    """Queues and boards as last seen. A queue or board that is gone has no series any more."""

    def __init__(self) -> None:
        self._state = FarmState()
        self._platform, self._board = BoundedLabel(), BoundedLabel()

    def saw(self, state: FarmState) -> None:
        """Remember the farm's present state."""
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Three gauges for each platform, and one for each state of each board."""
        state = self._state
        waiting = gauge_family("queue_length", "Requests that wait for a board.", "platform")
        at_boards = gauge_family("requests_at_boards", "Requests given to a board.", "platform")
        oldest = gauge_family(
            "queue_oldest_seconds", "How long the oldest open request is unanswered.", "platform"
        )
        for name, queue in self._queues(state).items():
            waiting.add_metric([name], queue.waiting)
            at_boards.add_metric([name], queue.at_boards)
            oldest.add_metric([name], queue.oldest_s)
        boards = gauge_family(
            "board_state", "1 for the state that the farm has a board in.", "board", "state"
        )
        for board, now in state.boards.items():
            name = self._board(board)
            if name != OTHER:
                for one in BOARD_STATES:
                    boards.add_metric([name, one], float(one == now))
        yield from (waiting, at_boards, oldest, boards)

    def _queues(self, state: FarmState) -> dict[str, QueueState]:
        found: dict[str, QueueState] = {}
        for platform, queue in state.queues.items():
            name = self._platform(platform)
            before = found.get(name, QueueState())
            found[name] = QueueState(
                before.waiting + queue.waiting,
                before.at_boards + queue.at_boards,
                max(before.oldest_s, queue.oldest_s),
            )
        return found


class StoreCollector(Collector):
    """Size of the store's file, its rows as last counted, and the free space of its disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: Mapping[str, int] = {}

    def saw(self, rows: Mapping[str, int]) -> None:
        """Remember how many rows each table has."""
        self._rows = dict(rows)

    def collect(self) -> Iterator[Metric]:
        """The sizes, read from the file system now, and the rows."""
        size = gauge_family(
            "store_size_bytes", "The store on disk, its log of late writes included."
        )
        found = [self._path, log_of(self._path)]
        size.add_metric([], sum(path.stat().st_size for path in found if path.exists()))
        yield size
        rows = gauge_family("store_rows", "Rows of the store by table.", "table")
        for table, count in self._rows.items():
            rows.add_metric([table], count)
        yield rows
        try:
            usage = shutil.disk_usage(self._path.parent)
        except OSError:
            return
        free = gauge_family("disk_free_bytes", "Free for the store on its file system.")
        free.add_metric([], usage.free)
        total = gauge_family("disk_size_bytes", "Size of the store's file system.")
        total.add_metric([], usage.total)
        yield from (free, total)


class ControllerCertificateCollector(Collector):
    """When the controller's certificates expire, read from their files."""

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config

    def collect(self) -> Iterator[Metric]:
        """One gauge for each kind of certificate: the first expiry of its files."""
        family = gauge_family(
            "certificate_expiry_timestamp_seconds",
            "When a certificate of the controller ends: of several of one kind, the first.",
            "certificate",
        )
        ends: dict[str, float] = {}
        for kind, path in self._files():
            try:
                moment_s = expires_at_s(path)
            except (OSError, ValueError):
                continue
            ends[kind] = min(moment_s, ends.get(kind, moment_s))
        for kind, moment_s in ends.items():
            family.add_metric([kind], moment_s)
        yield family

    def _files(self) -> set[tuple[str, Path]]:
        folder = self._config.home / "tls"
        found = {("controller", folder / "controller.crt"), ("authority", folder / "ca.crt")}
        try:
            entries = Registry(self._config.boards_file).list()
        except ControllerError:  # commands that use the inventory report that it is damaged
            return found
        for entry in entries:
            if entry.tls is not None:
                found |= {("controller", entry.tls.cert), ("authority", entry.tls.ca)}
        return found
