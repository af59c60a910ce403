"""How much slower the store answers while a campaign writes into it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence

from latfarm_controller.app.question import Question
from latfarm_controller.store.base import AnswerQuery
from latfarm_controller.store.duckdb import DuckDBStore

from benchmarks.query.store import PLATFORMS, measurement, network

ROWS_PER_S = 500
"""How many rows a second the campaign writes."""
BATCH = 50
"""How many rows it writes in one transaction."""
FIRST_NEW = 1 << 24
"""Number of the first measurement that is written; those of the store are below."""


def beside_writing(store: DuckDBStore, asked: Sequence[Question]) -> dict[str, float]:
    """Median time of an answer of the store alone, and beside a campaign, in milliseconds."""
    alone_ms = _median_ms(store, asked)
    stop = threading.Event()
    written = [0]
    graphs = [network(number) for number in range(BATCH)]

    def write() -> None:
        began_s = time.monotonic()
        while not stop.is_set():
            first = FIRST_NEW + written[0]
            told = [
                (measurement(graph, first + number, PLATFORMS[0]), graph)
                for number, graph in enumerate(graphs)
            ]
            store.add_measurements("written", told)
            written[0] += BATCH
            stop.wait(max(0.0, began_s + written[0] / ROWS_PER_S - time.monotonic()))

    thread = threading.Thread(target=write)
    began_s = time.monotonic()
    thread.start()
    try:
        beside_ms = _median_ms(store, asked)
    finally:
        stop.set()
        thread.join()
    rows_per_s = written[0] / (time.monotonic() - began_s)
    return {
        "alone_ms": alone_ms,
        "beside_ms": beside_ms,
        "times": beside_ms / alone_ms,
        "rows_per_s": rows_per_s,
    }


def _median_ms(store: DuckDBStore, asked: Sequence[Question]) -> float:
    times = []
    for question in asked:
        query = AnswerQuery(question.graph_hash, question.platform, question.network_hash)
        began_s = time.perf_counter()
        (found,) = store.find_answers([query])
        times.append(1000.0 * (time.perf_counter() - began_s))
        assert found is not None
    return statistics.median(times)
