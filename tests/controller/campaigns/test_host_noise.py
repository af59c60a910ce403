"""What can be trusted on a host, in comparison with the host's own noise."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from latfarm_controller.agents.statistics import UNSTABLE_SESSIONS, UNSTABLE_SPREAD
from latfarm_controller.campaigns.host_noise import (
    CONDITION,
    MOST_NOISE,
    HostNoise,
    counted,
    grades,
    noise_of,
    trusted,
)
from latfarm_predictors.measurement import Measurement, Outcome


def measured(model: int, latency_ms: float, scatter: float, number: int = 0) -> Measurement:
    """A measurement whose runs and sessions differ by this share of its latency."""
    sessions = tuple(latency_ms * (1.0 + scatter * part) for part in (-0.5, 0.0, 0.5))
    unstable = scatter > UNSTABLE_SPREAD or scatter > UNSTABLE_SESSIONS
    return Measurement(
        f"m{model}-{number}",
        f"g{model}",
        "p",
        "kernel",
        Outcome.OK,
        board_id="b",
        fingerprint="f",
        latency_ms=latency_ms,
        mad_ms=scatter * latency_ms,
        session_ms=sessions,
        unstable=unstable,
        measured_at_s=float(2 * model + number),
    )


def host(noise: float, scatter: float, models: int = 150) -> list[Measurement]:
    """Each model twice on a host whose repeats differ by `noise`; short ones scatter more."""
    draw = random.Random(3)
    found = []
    for model in range(models):
        true_ms = math.exp(draw.uniform(math.log(0.05), math.log(50.0)))
        own = scatter * (1.5 if true_ms < 0.5 else 1.0)
        for number in (0, 1):
            latency_ms = true_ms * math.exp(draw.gauss(0.0, noise))
            found.append(measured(model, latency_ms, own * draw.lognormvariate(0.0, 0.25), number))
    return found


def test_on_a_quiet_host_only_the_unstable_ones_stand_out() -> None:
    found = host(0.004, 0.005)
    odd = replace(found[10], mad_ms=0.1 * (found[10].latency_ms or 0.0), unstable=True)
    found[10] = odd
    noise = noise_of(found)
    assert noise.noise == pytest.approx(0.004, rel=0.3)
    counts = counted(grades(found, noise))
    assert counts == {"steady": len(found) - 1, "usual": 0, "doubtful": 1}
    assert not noise.hopeless


def test_on_a_shared_host_most_are_usual_and_the_disturbed_ones_are_doubtful() -> None:
    found = host(0.03, 0.08)
    assert sum(m.unstable for m in found) > 0.97 * len(found), "the flag selects nothing here"
    disturbed = range(0, 60, 6)
    for place in disturbed:
        m = found[place]
        wide = 0.7 * (m.latency_ms or 0.0)
        found[place] = replace(m, mad_ms=wide, latency_ms=(m.latency_ms or 0.0) + wide)
    noise = noise_of(found)
    assert noise.noise == pytest.approx(0.03, rel=0.35)
    told = grades(found, noise)
    assert all(told[place] == "doubtful" for place in disturbed)
    others = [grade for place, grade in enumerate(told) if place not in disturbed]
    assert others.count("doubtful") < 0.05 * len(others)


def test_of_two_repeats_that_disagree_the_more_scattered_one_is_doubtful() -> None:
    found = host(0.02, 0.06)
    first, second = found[40], found[41]
    far = 1.5 * (first.latency_ms or 0.0)
    found[41] = replace(second, latency_ms=far, mad_ms=0.08 * far, session_ms=(far,))
    told = grades(found, noise_of(found))
    assert told[41] == "doubtful"
    assert told[40] in ("usual", "steady")


def test_a_host_that_is_too_noisy_says_that_nothing_can_be_trusted() -> None:
    found = host(1.5 * MOST_NOISE, 0.2)
    noise = noise_of(found)
    assert noise.hopeless
    assert "nothing that is unstable here can be trusted" in noise.sentence
    told = grades(found, noise)
    assert told.count("usual") == 0
    assert all((grade == "steady") != m.unstable for grade, m in zip(told, found, strict=True))


def test_sentinels_count_and_too_few_measurements_tell_nothing() -> None:
    few = host(0.05, 0.05, models=3)
    assert noise_of(few) == HostNoise(repeats=3)
    assert noise_of(few).sentence == ""
    marks = [measured(999, math.exp(0.05 * (-1) ** n), 0.01, n) for n in range(30)]
    told = noise_of(few, marks)
    assert told.sentinel_noise is not None
    assert told.repeats == 3 + 29
    assert not told.known
    unstable = measured(1, 1.0, 0.3)
    assert told.steadiness(unstable) == "doubtful", "nothing is known that would excuse it"
    assert told.noted(unstable) is unstable


def test_the_noise_is_kept_and_told_beside_a_measurement() -> None:
    noise = noise_of(host(0.03, 0.08))
    again = HostNoise.from_json(noise.to_json())
    assert again == noise
    assert HostNoise.from_json(None) == HostNoise()
    wild = measured(1, 1.0, 5.0)
    assert noise.noted(wild).conditions[CONDITION] == "doubtful"
    assert noise.noted(measured(1, 1.0, 0.001)).conditions[CONDITION] == "steady"
    failed = replace(wild, outcome=Outcome.MODEL_ERROR, latency_ms=None)
    assert noise.noted(failed) is failed


def test_what_can_be_trusted_depends_on_the_noise_of_the_host() -> None:
    found = host(0.03, 0.05)
    steady = replace(found[0], unstable=False)
    found = [steady, *found[1:-1], replace(found[-1], mad_ms=found[-1].latency_ms)]
    told = trusted(found, noise_of(found))
    assert steady in told
    assert found[-1] not in told
    assert len(told) > 0.9 * len(found)
    alone = [replace(m, graph_hash=str(n)) for n, m in enumerate(found)]
    assert trusted(alone, noise_of(alone)) == alone[:1]  # nothing was repeated
