"""What a question costs that the store cannot answer, and how often it is measured.

A simulated board measures. It takes a fixed time for each measurement, so what a miss takes beyond
that is the work of the farm: the search, the model, the way to the board and back, and the write.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.app.question import Found, Question
from latfarm_controller.config import load_config
from latfarm_controller.errors import UsageError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

PLATFORM = "miss-sim1.0-fp32-1t"
"""The platform of the simulated board."""
BOARD = "miss"
"""Name of the simulated board."""
ASKERS = 100
"""How many ask the same at the same time."""
SHARE = 1.1
"""A miss may take this many times as long as the board, and `EXTRA_S` more."""
EXTRA_S = 0.3
"""What a miss may take besides, in seconds."""

Client = Callable[[], AbstractContextManager[ControllerClient]]
"""Opens a client of the running server."""


@contextmanager
def board(folder: Path, measure_ms: float) -> Iterator[None]:
    """A simulated board in the inventory, which takes that long for each measurement."""
    folder.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile.json"
    profile.write_text(
        json.dumps(
            {
                "platform": PLATFORM,
                "peak_macs_per_ms": 2e6,
                "bandwidth_bytes_per_ms": 4e6,
                "overhead_ms": 0.01,
                "noise": 0.01,
                "measure_ms": measure_ms,
            }
        )
    )
    options = LocalAgentOptions(folder / "state", folder / "log", BOARD, simulate=profile)
    with LocalAgent(options) as agent:
        config = load_config()
        config.make_dirs()
        registry = Registry(config.boards_file)
        with suppress(UsageError):  # the board of a run that was stopped had another port
            registry.remove(BOARD)
        registry.add(BOARD, agent.address)
        yield


def export(number: int, *, batch_norm: bool = False) -> Graph:
    """A network, as one of two tools exports it: with its batch norm, or folded into the bias."""
    builder = GraphBuilder(f"miss{number}")
    x = builder.conv(builder.input((1, 3, 32, 32)), 8 + number, 3, bias=not batch_norm)
    return builder.build([builder.relu(builder.batch_norm(x) if batch_norm else x)])


def costs(client: Client, count: int) -> dict[str, float]:
    """What misses cost one after the other, beyond the time of the board.

    The first one is told apart: it starts Ray, which builds models.
    """
    found: list[tuple[float, float]] = []
    with client() as one:
        first = _measured(one)  # a run that was stopped has measured some networks
        for number in range(first, first + count + 1):
            question = Question.about(export(number), PLATFORM)
            began_s = time.perf_counter()
            answer = one.query(question)
            took_s = time.perf_counter() - began_s
            assert not answer.hit
            assert answer.measurement.ok, answer.measurement.error_message
            found.append((took_s, answer.measurement.board_ms / 1000.0))
    over_s = [took_s - SHARE * board_s for took_s, board_s in found[1:]]
    return {
        "misses": count,
        "first_miss_s": found[0][0],
        "miss_median_s": statistics.median(took_s for took_s, _ in found[1:]),
        "miss_board_median_s": statistics.median(board_s for _, board_s in found[1:]),
        "miss_over_median_s": statistics.median(over_s),
        "miss_over_most_s": max(over_s),
    }


def together(client: Client) -> dict[str, float]:
    """How often a network is measured that many ask about at once, through two exports of it."""
    with client() as one:
        first = _measured(one)
    exports = [export(first), export(first, batch_norm=True)]
    assert len({hash_of(graph) for graph in exports}) == len(exports)
    assert len({network_hash_of(graph) for graph in exports}) == 1
    found: list[Found] = []
    ready = threading.Barrier(ASKERS)

    def ask(graph: Graph) -> None:
        question = Question.about(graph, PLATFORM)
        with client() as one:
            ready.wait()
            found.append(one.query(question))

    hashes = {hash_of(graph) for graph in exports}
    with client() as one:
        before = _rows(one, hashes)
        threads = [
            threading.Thread(target=ask, args=(exports[number % len(exports)],))
            for number in range(ASKERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        measured = _rows(one, hashes) - before
    assert len(found) == ASKERS
    assert len({answer.measurement.request_id for answer in found}) == 1
    return {"asked_together": ASKERS, "measured_for_them": measured}


def _rows(client: ControllerClient, hashes: set[str]) -> int:
    """How many measurements of some graphs the store has on the platform of the board."""
    return sum(m.graph_hash in hashes for m in client.results(platform=PLATFORM))


def _measured(client: ControllerClient) -> int:
    """How many measurements the store has on the platform of the board."""
    try:
        return sum(1 for _ in client.results(platform=PLATFORM))
    except UsageError:  # nothing yet
        return 0
