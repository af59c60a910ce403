"""Benches of simulated boards: what they offer, and failures that their profile asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.testing.runtime_suite import QUICK, changed, measure, worker_pids

pytestmark = pytest.mark.usefixtures("no_process_left")

PROFILE = {
    "platform": "sim-npu-int8",
    "peak_macs_per_ms": 1e6,
    "bandwidth_bytes_per_ms": 1e6,
    "crash_ops": ["Celu"],
    "hang_ops": ["Selu"],
}


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes simulated boards, and closes them."""
    made: list[Bench] = []

    def bench(name: str = "one", **values: object) -> Bench:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(dict(PROFILE, **values)))
        made.append(simulated_bench(BenchOptions(name, None, tmp_path / f"work-{name}"), path))
        return made[-1]

    yield bench
    for each in made:
        each.close()


def test_a_simulated_board_offers_itself_alone(simulate: Callable[..., Bench]) -> None:
    board, runtimes = simulate().describe()
    assert [entry.name for entry in runtimes] == ["simulated"]
    (platform,) = runtimes[0].platforms
    assert platform.name == "sim-npu-int8"
    assert platform.model_format == "graph-json"
    assert not platform.real_time
    assert board.conditions["core_mask"] == "any"


def test_boards_of_one_profile_are_two_boards_and_one_platform(
    simulate: Callable[..., Bench],
) -> None:
    one, two, other = simulate("one"), simulate("two"), simulate("other", noise=0.1)
    ids = {bench.describe()[0].board_id for bench in (one, two, other)}
    assert len(ids) == 3
    prints = [b.describe()[1][0].platforms[0].fingerprint for b in (one, two, other)]
    assert prints[0] == prints[1] != prints[2]


def test_simulated_failures(
    simulate: Callable[..., Bench], tmp_path: Path, conv_graph: Callable[..., Path]
) -> None:
    bench = simulate(throttle={"every": 4, "length": 1}, crash_rate=0.0, measure_ms=1.0)
    good = conv_graph(tmp_path / "good.json")
    assert measure(bench, "sim-npu-int8", good).outcome == "ok"
    crash = measure(bench, "sim-npu-int8", conv_graph(tmp_path / "celu.json", ["Celu"]))
    assert (crash.outcome, crash.error_code) == ("model_error", "MODEL_CRASHED")
    settings = changed(QUICK, compile_timeout_ms=300.0)
    hang = measure(
        bench, "sim-npu-int8", conv_graph(tmp_path / "s.json", ["Selu"]), settings=settings
    )
    assert (hang.outcome, hang.error_code) == ("model_error", "MODEL_TIMEOUT")
    hot = measure(bench, "sim-npu-int8", good)
    assert (hot.outcome, hot.error_code) == ("infrastructure_error", "THROTTLED")


def test_a_profile_that_is_none_is_a_usage_error(simulate: Callable[..., Bench]) -> None:
    with pytest.raises(AgentUsageError, match="speed"):
        simulate(speed=3)


def test_restarted_runtimes_are_found_anew_with_empty_caches(
    simulate: Callable[..., Bench], tmp_path: Path, conv_graph: Callable[..., Path]
) -> None:
    bench = simulate()
    model = conv_graph(tmp_path / "conv.json")
    assert measure(bench, "sim-npu-int8", model).outcome == "ok"
    before, cache = worker_pids(), tmp_path / "work-one" / "cache" / "simulated"
    assert before
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "broken").write_bytes(b"0")
    offered = bench.describe()[1]
    assert "the next measurement starts a new one" in bench.restart("worker")
    assert not worker_pids() & before
    assert (cache / "broken").exists(), "a new worker may use what the old one has compiled"
    assert bench.restart("runtime").endswith("with empty caches: simulated")
    assert not (cache / "broken").exists()
    assert bench.describe()[1] == offered
    assert measure(bench, "sim-npu-int8", model).outcome == "ok"
