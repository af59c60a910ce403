"""Makes the store that `bench` asks: many measurements of many small networks.

The networks are chains of two convolutions whose widths count up, so that each has a hash of its
own. Their graphs are real and hashed by the project's own code. A part of the rows, by default a
tenth, goes through `DuckDBStore.add_measurements`, as campaigns write them. The other rows are
copies of these with other request ids, networks, platforms and latencies, and are made inside the
database: writing a million rows one by one would take hours and would show nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import NETWORK, PUBLISH, Measurement, Outcome

PLATFORMS = tuple(f"board{number}-sim1.0-fp32-1t" for number in range(5))
"""Names of the platforms, on each of which every network is measured once."""
BATCH = 500
"""How many measurements a campaign writes at a time."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is in the store.

    Attributes:
        networks: number of different networks.
        rows: number of measurements.
        through_api: how many of them are written through the interface of the store.
    """

    networks: int
    rows: int
    through_api: int


FULL = Size(200_000, 1_000_000, 100_000)
"""What the figures in the documentation are from."""
QUICK = Size(400, 2_000, 200)
"""Enough to see that the benchmark works."""


def network(number: int) -> Graph:
    """The network with that number; each number gives another network."""
    first, second = divmod(number, 500)
    builder = GraphBuilder(f"net{number}")
    x = builder.conv(builder.input((1, 3, 8, 8)), 1 + first, 3)
    x = builder.conv(builder.relu(x), 1 + second, 1)
    return builder.build([builder.relu(x)])


def measurement(graph: Graph, number: int, platform: str) -> Measurement:
    """A measurement as a board gives it, with conditions of usual length."""
    latency_ms = 1.0 + number % 1000 / 100.0
    return Measurement(
        request_id=f"{number:016x}{PLATFORMS.index(platform):016x}",
        graph_hash=hash_of(graph),
        platform=platform,
        purpose="query",
        outcome=Outcome.OK,
        board_id=platform[:6],
        fingerprint="f" * 32,
        latency_ms=latency_ms,
        mad_ms=0.01,
        min_ms=latency_ms - 0.1,
        p90_ms=latency_ms + 0.1,
        p99_ms=latency_ms + 0.2,
        runs=100,
        session_ms=(latency_ms,) * 5,
        board_ms=2000.0,
        measured_at_s=1.7e9 + number,
        received_at_s=1.7e9 + number,
        settings=PUBLISH if number % 2 else NETWORK,
        conditions={"governor": "performance", "slowdown": "1.02", "temperature": "45.0"},
    )


def make(path: Path, size: Size) -> float:
    """Make the store, or go on where its making was stopped; returns the seconds that it took."""
    began_s = time.monotonic()
    direct = min(size.networks, size.through_api)
    known = _rows_by_platform(path)
    done = known.get(PLATFORMS[0], 0)  # each batch is written as a whole
    with DuckDBStore(path) as store:
        for first in range(min(done, direct), direct, BATCH):
            told = [
                (measurement(graph, number, PLATFORMS[0]), graph)
                for number, graph in _networks(first, min(direct, first + BATCH))
            ]
            store.add_measurements(f"api{first}", told)
        # The graphs of the other networks come with one measurement each.
        for first in range(max(done, direct), size.networks, 10 * BATCH):
            told = [
                (measurement(graph, number, PLATFORMS[0]), graph)
                for number, graph in _networks(first, min(size.networks, first + 10 * BATCH))
            ]
            store.add_measurements(f"bulk{first}", told)
    file = DuckDBFile(path)
    try:
        for platform in PLATFORMS[1 : size.rows // size.networks]:
            if platform in known:
                continue
            first = file.number("SELECT max(seq) FROM measurements")
            with file.transaction("make rows") as cursor:
                cursor.execute(
                    f"INSERT INTO measurements SELECT * REPLACE (seq + {first} AS seq, "
                    "campaign_id || $platform AS campaign_id, $platform AS platform, "
                    "latency_ms * (1 + random()) AS latency_ms) FROM measurements "
                    "WHERE platform = $first",
                    {"platform": platform, "first": PLATFORMS[0]},
                )
            # The numbers that these rows have are taken.
            file.take_seq(2 * first)
    finally:
        file.close()
    return time.monotonic() - began_s


def _rows_by_platform(path: Path) -> dict[str, int]:
    """How many rows there are of each platform; none if there is no store yet."""
    if not path.exists():
        return {}
    file = DuckDBFile(path)
    try:
        rows = file.all("SELECT platform, count(*) FROM measurements GROUP BY platform")
    finally:
        file.close()
    return {str(platform): int(count) for platform, count in rows}


def _networks(first: int, stop: int) -> Iterator[tuple[int, Graph]]:
    return ((number, network(number)) for number in range(first, stop))


def some(size: Size, count: int) -> Iterator[tuple[int, Graph]]:
    """Networks spread over the whole store, in an order that no cache likes."""
    step = 7919  # a prime, so that the numbers repeat only after all networks
    return ((n, network(n)) for n in itertools.islice(_cycle(size.networks, step), count))


def _cycle(count: int, step: int) -> Iterator[int]:
    number = 0
    while True:
        yield number
        number = (number + step) % count


def main() -> None:
    """Make a store in a file, to look at."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    print(f"made in {make(given.path, QUICK if given.quick else FULL):.0f} s")


if __name__ == "__main__":
    main()
