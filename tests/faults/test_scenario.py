"""Scenarios follow from their seeds, and all faults are drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import pytest

from tests.faults import scenario as kinds
from tests.faults.scenario import FULL, QUICK, Scenario, Sizes, drawn

SEEDS = range(1, 201)
"""The seeds of `make test-faults`."""

ALL_KINDS = {
    value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str)
} - {kinds.RACK, kinds.AGENTS}


@pytest.mark.parametrize("sizes", [FULL, QUICK])
def test_a_seed_always_gives_the_same_scenario(sizes: Sizes) -> None:
    assert [drawn(seed, sizes) for seed in SEEDS] == [drawn(seed, sizes) for seed in SEEDS]


def test_half_of_the_runs_are_on_ray_and_every_fault_is_drawn_several_times() -> None:
    made = [drawn(seed) for seed in SEEDS]
    assert sum(scenario.ray for scenario in made) == 100
    count = Counter(kind for scenario in made for kind in scenario.kinds)
    assert set(count) == ALL_KINDS
    assert min(count.values()) >= 5, count
    assert {scenario.boards for scenario in made} == {kinds.RACK, kinds.AGENTS}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scenario_can_be_played(seed: int) -> None:
    scenario = drawn(seed)
    assert 1 <= len(scenario.faults) <= FULL.most_faults
    assert [fault.after for fault in scenario.faults] == sorted(
        fault.after for fault in scenario.faults
    )
    for fault in scenario.faults:
        assert 0 <= fault.board < scenario.count
        assert fault.after < scenario.requests
        assert scenario.ray or fault.kind not in kinds.RAY_KILLS
        assert (scenario.boards == kinds.AGENTS) or fault.kind not in kinds.AGENT_FAULTS
        if fault.kind in kinds.BOARD_FAULTS:
            assert scenario.boards == kinds.RACK
            assert (fault.after, fault.board > 0) == (0, True), "one board is sound"


def test_quick_runs_need_no_ray_and_are_short() -> None:
    for seed in SEEDS:
        scenario = drawn(seed, QUICK, ray=False)
        assert not scenario.ray
        assert not set(scenario.kinds) & set(kinds.RAY_KILLS)
        assert all(abs(f.seconds) <= 3 for f in scenario.faults if f.kind != kinds.CLOCK_JUMPS)


def test_a_report_names_what_is_drawn() -> None:
    told = drawn(7).to_json()
    assert told["seed"] == 7
    assert set(told) == {"seed", "ray", "boards", "requests", "faults"}
    assert {field.name for field in fields(Scenario)} >= {"seed", "ray", "requests", "faults"}
