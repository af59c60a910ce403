"""Notices imports whose latencies are in another unit, such as seconds instead of milliseconds.

Nothing is corrected: an import with a warning is looked at by a person.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.measurement import Measurement

from latfarm_controller.store.duckdb_file import DuckDBFile

FASTEST_MACS_PER_MS = 1e12
"""More multiply-adds in a millisecond than any single device does: 1e15 a second."""
SLOWEST_MACS_PER_MS = 1e2
"""Fewer multiply-adds in a millisecond than any device does: 1e5/s."""
FACTOR = 300.0
"""Two latencies of one network on one platform that differ by more than this are of two units."""
LEAST_ROWS = 3
"""Least number of rows of a platform from which its unit is judged."""


class UnitCheck:
    """Gathers what tells the unit of latencies, platform by platform.

    Args:
        file: the database, whose own measurements the new ones are compared with.
    """

    def __init__(self, file: DuckDBFile) -> None:
        self._file = file
        self._macs: dict[str, int] = {}
        self._rates: defaultdict[str, list[float]] = defaultdict(list)
        self._latencies: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def graph(self, graph_hash: str, graph: Graph) -> None:
        """Note a graph."""
        self._macs[graph_hash] = graph_totals(graph).macs

    def measurement(self, measurement: Measurement) -> None:
        """Note a measurement."""
        latency_ms = measurement.latency_ms
        if not measurement.ok or not latency_ms or measurement.layers:
            return
        self._latencies[measurement.platform][measurement.graph_hash] = latency_ms
        macs = self._macs.get(measurement.graph_hash, 0)
        if macs:
            self._rates[measurement.platform].append(macs / latency_ms)

    def warnings(self) -> list[str]:
        """A sentence for each platform whose latencies look like another unit."""
        found = []
        for platform, rates in sorted(self._rates.items()):
            rate = statistics.median(rates)
            if len(rates) >= LEAST_ROWS and not SLOWEST_MACS_PER_MS <= rate <= FASTEST_MACS_PER_MS:
                found.append(
                    f"{platform}: {rate * 1e3:.2g} multiply-adds a second are not plausible; are "
                    "its latencies in milliseconds?"
                )
        for platform, latencies in sorted(self._latencies.items()):
            ratios = self._ratios(platform, latencies)
            ratio = statistics.median(ratios) if ratios else 1.0
            if ratio > FACTOR or ratio < 1.0 / FACTOR:
                found.append(
                    f"{platform}: the same networks take {ratio:.3g} times as long as in the "
                    "measurements that were here before; are the latencies in milliseconds?"
                )
        return found

    def _ratios(self, platform: str, latencies: dict[str, float]) -> list[float]:
        """The new latency of each network over the median of those that are stored."""
        columns = "graph_hash, latency_ms, platform, ok, layers"
        stored = self._file.all(
            f"SELECT graph_hash, median(latency_ms) FROM (SELECT {columns} FROM measurements "
            f"UNION ALL SELECT {columns} FROM foreign_measurements) WHERE platform = ? AND ok "
            "AND latency_ms > 0 AND layers = '[]' GROUP BY graph_hash",
            [platform],
        )
        return [
            latencies[graph_hash] / latency_ms
            for graph_hash, latency_ms in stored
            if graph_hash in latencies
        ]
