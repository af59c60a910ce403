"""What a farm's measurements tell about a platform that was only probed.

The rows are the platforms of the farm, the columns are the networks that were measured whole.
Platforms of one board, by its name, are its configurations. Only own measurements are used: those
of other farms train nothing unasked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement
from latfarm_predictors.slow_core import SlowCore
from latfarm_predictors.transfer.left_out import LeaveOut, configurations_of
from latfarm_predictors.transfer.model import LEAST_PROBES, LEAST_ROWS
from latfarm_predictors.transfer.new_board import BoardAnswers, NewBoard, TransferOptions
from latfarm_predictors.transfer.table import LatencyTable

from latfarm_controller.platform_name import PlatformName

MOST_NETWORKS = 5000
"""Largest number of networks of a table; those that most platforms have measured are kept."""
CPU, ACCELERATOR = "cpu", "accelerator"
"""Kinds of platforms whose names tell no device: with and without a number of threads."""


@dataclass(frozen=True)
class KnownRows:
    """What was measured of whole networks, on all platforms.

    Attributes:
        table: the latencies; a network is named by the exact hash of its graph.
        names: the names of the networks by these hashes.
    """

    table: LatencyTable
    names: dict[str, str]

    def place(self, platform: str) -> int | None:
        """The row of a platform; None if nothing was measured on it."""
        found = self.table.platforms
        return found.index(platform) if platform in found else None

    def probes_ms(self, platform: str) -> dict[str, float]:
        """The latencies of a platform in milliseconds, by hash."""
        row = self.place(platform)
        if row is None:
            return {}
        latencies = zip(self.table.networks, self.table.latencies_ms[row].tolist(), strict=True)
        return {name: value for name, value in latencies if value == value}


@dataclass(frozen=True)
class PlatformTransfer:
    """Predicts the networks of a farm on one platform of it, from probes.

    Attributes:
        platform: the platform.
        board: fitted to the rows of other boards.
        configurations: latencies of other platforms of the same board in milliseconds, shape
            (c, P).
        probes_ms: what was measured on the platform, in milliseconds by hash.
        others: number of platforms that it rests on.
    """

    platform: str
    board: NewBoard
    configurations: Array
    probes_ms: dict[str, float]
    others: int

    def plan(self, count: int) -> list[str]:
        """The hashes of the networks to measure, the most telling one first."""
        return self.board.plan(count, configurations=self.configurations)

    def predict(self, coverage: float = 0.9) -> BoardAnswers:
        """The latencies of all networks.

        Raises:
            NotEnoughDataError: too few probes were measured.
        """
        known = {name: self.probes_ms[name] for name in self.probes_ms if name in self._networks}
        return self.board.predict(known, coverage, self.configurations)

    @property
    def _networks(self) -> frozenset[str]:
        return frozenset(self.board.table.networks)


def rows_of(measurements: Iterable[tuple[Measurement, str]]) -> KnownRows:
    """The table of measurements of whole networks, each with the name of its network.

    Args:
        measurements: the newest first. Failed ones and those under a profiler are left out. Of
            several for one network and platform the newest stable one counts.
    """
    chosen: dict[tuple[str, str], Measurement] = {}
    names: dict[str, str] = {}
    for measurement, name in measurements:
        key = (measurement.platform, measurement.graph_hash)
        kept = chosen.get(key)
        if not _usable(measurement) or (kept is not None and not kept.unstable):
            continue
        if kept is None or not measurement.unstable:
            chosen[key] = measurement
            names[measurement.graph_hash] = name
    counts: dict[str, int] = {}
    for _, graph_hash in chosen:
        counts[graph_hash] = counts.get(graph_hash, 0) + 1
    networks = sorted(counts, key=lambda each: (-counts[each], each))[:MOST_NETWORKS]
    platforms = sorted({platform for platform, _ in chosen})
    columns = {name: place for place, name in enumerate(networks)}
    rows = {name: place for place, name in enumerate(platforms)}
    latencies = np.full((len(platforms), len(networks)), np.nan)
    for (platform, graph_hash), measurement in chosen.items():
        if graph_hash in columns:
            latency = SlowCore.told_by(measurement).latency(measurement)
            if latency is not None:
                latencies[rows[platform], columns[graph_hash]] = latency.corrected_ms
    boards = tuple(board_of(platform) for platform in platforms)
    kinds = tuple(kind_of(platform) for platform in platforms)
    table = LatencyTable(tuple(platforms), boards, boards, kinds, tuple(networks), latencies)
    return KnownRows(table, names)


def transfer_to(rows: KnownRows, platform: str, probes: int) -> PlatformTransfer:
    """Learn from other boards of the farm what to expect of a platform.

    Where the farm has too few other boards, each other platform of the same board counts as a
    board of its own.

    Args:
        rows: what the farm has measured.
        platform: to predict; nothing need be known about it.
        probes: number of probes, with which boards are left out to calibrate the intervals.

    Raises:
        NotEnoughDataError: the farm has measured the same networks on too few other platforms.
    """
    table, kind, board = rows.table, kind_of(platform), board_of(platform)
    other = np.array([name != platform for name in table.platforms], dtype=bool)
    beyond = other & np.array([name != board for name in table.boards], dtype=bool)
    same = np.array([name == kind for name in table.kinds], dtype=bool)
    row = rows.place(platform)
    if (beyond & same).sum() >= LEAST_ROWS:
        known = table.kept(beyond)
        mine = other & same & ~beyond
        configurations = table.latencies_ms[mine] if row is None else configurations_of(table, row)
    else:
        kept = table.kept(other)
        known = LatencyTable(
            kept.platforms,
            kept.platforms,
            kept.platforms,
            kept.kinds,
            kept.networks,
            kept.latencies_ms,
        )
        configurations = table.latencies_ms[:0]
    if sum(name == kind for name in known.kinds) < LEAST_ROWS:
        raise NotEnoughDataError(
            f"{platform}: a transfer needs networks that were measured on {LEAST_ROWS} other "
            f"platforms of the kind {kind}; measure the same models there with latfarm query"
        )
    # boards that are left out need networks beside their probes, by which they are judged
    fewer = min(probes, max(LEAST_PROBES, len(known.networks) // 2))
    how = LeaveOut(probes=fewer, siblings=True)
    fitted = NewBoard.fit(known, kind, TransferOptions(how))
    others = len(known.platforms) + len(configurations)
    return PlatformTransfer(platform, fitted, configurations, rows.probes_ms(platform), others)


def kind_of(platform: str) -> str:
    """The kind of a platform, by its name: its device, or else `CPU` or `ACCELERATOR`."""
    parts = PlatformName.parse(platform)
    return parts.device or (ACCELERATOR if parts.threads is None else CPU)


def board_of(platform: str) -> str:
    """The board of a platform, by its name: its hardware, or else the whole name."""
    return PlatformName.parse(platform).hardware or platform


def _usable(measurement: Measurement) -> bool:
    """Whether a measurement tells how long a network takes."""
    latency = measurement.latency_ms
    return (
        measurement.ok
        and latency is not None
        and 0.0 < latency < float("inf")
        and not measurement.layers
        and measurement.protocol_version == PROTOCOL_VERSION
    )
