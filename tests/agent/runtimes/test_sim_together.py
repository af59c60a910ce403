"""Simulated boards whose models do not take the sum of their kernels, worked out by hand."""

from __future__ import annotations

import typing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent.runtimes.simulated.built_in import NOT_ADDITIVE, PROFILES, built_in
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.runtimes.simulated.together import makespan_ms

MakeGraph = typing.Callable[..., typing.Dict[str, Any]]
FORK = [set(), {0}, {0}, {1, 2}]
"""One kernel, two branches, and a kernel that reads both."""


def test_branches_run_beside_each_other() -> None:
    times = [1.0, 5.0, 3.0, 2.0]
    assert makespan_ms(times, FORK, 1, 0.5) == 11.0
    # the branch of 3 ms moves to the second stream; its result comes back before the other's end
    assert makespan_ms(times, FORK, 2, 0.5) == 1.0 + 5.0 + 2.0
    # two long branches: one result comes from another stream, 0.5 ms later
    assert makespan_ms([1.0, 5.0, 5.0, 2.0], FORK, 2, 0.5) == 1.0 + 0.5 + 5.0 + 2.0
    assert makespan_ms([], [], 4, 0.0) == 0.0


def test_a_chain_gains_nothing_from_streams() -> None:
    waits = [set(), {0}, {1}]
    assert makespan_ms([1.0, 2.0, 3.0], waits, 4, 0.25) == 6.0


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.sets(st.integers(0, 11))), max_size=12),
    st.integers(1, 5),
)
def test_a_model_takes_between_its_longest_chain_and_its_sum(
    kernels: list[tuple[float, set[int]]], streams: int
) -> None:
    times = [time_ms for time_ms, _ in kernels]
    waits = [{o for o in before if o < at} for at, (_, before) in enumerate(kernels)]
    chains: list[float] = []
    for at, time_ms in enumerate(times):
        chains.append(time_ms + max((chains[o] for o in waits[at]), default=0.0))
    found = makespan_ms(times, waits, streams, 0.0)
    assert max(chains, default=0.0) - 1e-9 <= found <= sum(times) + 1e-9
    assert found >= sum(times) / streams - 1e-9


PLAIN = BoardProfile("sim", peak_macs_per_ms=1e12, bandwidth_bytes_per_ms=1e3)


def forked(make_graph: MakeGraph) -> dict[str, Any]:
    shape = [1, 4, 8, 8]  # 1,024 bytes
    return make_graph(
        [
            ("a", "Relu", ["x"], ["a"]),
            ("b", "Sigmoid", ["a"], ["b"]),
            ("c", "Tanh", ["a"], ["c"]),
            ("d", "Add", ["b", "c"], ["y"]),
        ],
        {name: shape for name in ("x", "a", "b", "c", "y")},
    )


def test_a_board_with_streams(make_graph: MakeGraph) -> None:
    graph = forked(make_graph)
    one = 2 * 1024 / 1e3
    assert exact_latency_ms(graph, PLAIN) == pytest.approx(3 * one + 3 * 1024 / 1e3)
    streams = replace(PLAIN, streams=2, sync_ms=0.25)
    assert exact_latency_ms(graph, streams) == pytest.approx(one + 0.25 + one + 3 * 1024 / 1e3)
    # a profiler runs one kernel after the other: it tells each kernel by itself
    assert exact_layers(graph, streams) == exact_layers(graph, PLAIN)


def test_a_board_that_keeps_what_the_next_kernel_reads(make_graph: MakeGraph) -> None:
    graph = forked(make_graph)
    kept = replace(PLAIN, overlap=0.5)
    # b reads a right behind it, d reads c right behind it; c reads a, which b came after
    saved = 2 * 0.5 * 1024 / 1e3
    assert exact_latency_ms(graph, kept) == pytest.approx(exact_latency_ms(graph, PLAIN) - saved)
    assert exact_layers(graph, kept) == exact_layers(graph, PLAIN)


def test_which_built_in_boards_add_up(make_graph: MakeGraph) -> None:
    graph = forked(make_graph)
    for kind in (*PROFILES, *NOT_ADDITIVE):
        profile = BoardProfile.from_json(built_in(kind))
        total = sum(layer.latency_ms for layer in exact_layers(graph, profile))
        inside = exact_latency_ms(graph, replace(profile, call_overhead_ms=0.0, io_bytes_per_ms=0))
        assert (inside == pytest.approx(total)) == (kind in PROFILES), kind


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"streams": 0}, "streams"),
        ({"streams": 2.5}, "streams"),
        ({"streams": True}, "streams"),
        ({"overlap": 1.5}, "overlap"),
        ({"sync_ms": -1}, "sync_ms"),
    ],
)
def test_wrong_values_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BoardProfile.from_json({"platform": "sim", **change})
