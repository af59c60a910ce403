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
    assert 0.0 <= found.shared <= 1.0
    assert found.shared_slowdown >= 1.0
    assert set(found.to_json()) >= {"cores", "spread", "shared", "hopeless", "advice"}


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


def test_a_neighbour_on_the_same_core_is_told_but_judging_goes_on() -> None:
    alone_s, beside_s = [13e-6] * 200, [20e-6] * 800
    shared, slowdown = host_now._shared(alone_s + beside_s)
    assert shared == 0.8
    assert round(slowdown, 2) == 1.54
    assert host_now._shared(alone_s) == (0.0, 1.0)
    assert host_now._shared(beside_s[:10]) == (0.0, 1.0), "too few products tell nothing"
    assert host_now._shared([0.0] * 100) == (0.0, 1.0), "a clock that stands still tells nothing"
    host = HostNow(2, 0.0, 0.0, 0.01, 0.0, shared, slowdown)
    assert not host.quiet
    assert not host.hopeless, "measurements are corrected for it"
    assert "for 80% of the time something that this machine cannot see" in host.sentence
    assert "slows arithmetic 1.5 times" in host.sentence
    assert host.advice == "use a machine that is not shared with others, or another hour"
    assert HostNow(2, 0.0, 0.0, 0.01, 0.0, 0.05, 1.3).quiet, "now and then is usual"
