"""How busy this machine is."""

from __future__ import annotations

import math

from latfarm_controller.cli.shell import host_now
from latfarm_controller.cli.shell.host_now import HostNow, look


def test_a_look_finds_numbers_of_this_machine() -> None:
    found = look(0.05)
    assert found.cores >= 1
    assert 0.0 <= found.busy_cores <= found.cores
    assert 0.0 <= found.slowed <= 1.0
    assert found.spread >= 0.0
    assert set(found.to_json()) >= {"cores", "spread", "hopeless", "advice"}


def test_equal_pieces_have_no_spread_and_slow_ones_do() -> None:
    assert host_now._spread([1.0] * 10) == (0.0, 0.0)
    spread, slowed = host_now._spread([1.0, 2.0] * 10)
    assert spread > host_now.MOST_NOISE
    assert slowed == 0.5
    assert host_now._spread([]) == (math.inf, 1.0)


def test_a_noisy_host_is_told_with_what_would_help() -> None:
    quiet = HostNow(2, 0.0, 0.0, 0.01, 0.0)
    assert quiet.quiet
    assert not quiet.hopeless
    assert quiet.advice == ""
    busy = HostNow(2, 1.6, 0.2, 0.4, 0.6)
    assert busy.hopeless
    assert "too noisy to judge" in busy.sentence
    assert "end other programs" in busy.advice
    assert "not shared" in busy.advice
    assert HostNow(2, 1.8, 0.0, 0.02, 0.1).hopeless, "no core is left to measure on"
    assert HostNow(2, 0.0, 0.0, 0.05, 0.05).sentence.startswith("this host is somewhat noisy")
