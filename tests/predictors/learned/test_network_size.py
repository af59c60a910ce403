"""Short networks get wider intervals than long ones, as far as measured networks show it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.intervals import conformal_quantile
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.network_figures import NetworkFigures
from latfarm_predictors.learned.network_size import NetworkSize

BASE = NetworkFigures(10.0, 10.0, 0.1, 0.4, 50.0, 5.0, 8.0, 0.5, 2.0, 7.0)


def test_a_network_sixteen_times_as_long_has_half_the_deviation() -> None:
    size = NetworkSize.of([1.0, 4.0, 64.0])
    short, usual, long = size.factor(np.array([1.0, 4.0, 16.0]))
    assert usual == 1.0
    assert short / long == pytest.approx(2.0)


def test_beyond_the_measured_networks_the_factor_stays() -> None:
    size = NetworkSize.of([1.0, 4.0, 64.0])
    below, least, most, above = size.factor(np.array([1e-6, 1.0, 64.0, 1e6]))
    assert below == least > 1.0
    assert above == most < 1.0


def test_without_networks_nothing_is_scaled() -> None:
    assert NetworkSize.of([]).factor(np.array([0.1, 1000.0])).tolist() == [1.0, 1.0]
    assert NetworkSize.from_json({}) == NetworkSize()


def test_it_is_kept_as_json() -> None:
    size = NetworkSize.of([1.0, 4.0, 64.0])
    assert NetworkSize.from_json(json.loads(json.dumps(size.to_json()))) == size


def _scaled(warm_ms: float) -> NetworkFigures:
    share = warm_ms / BASE.warm_ms
    return replace(
        BASE,
        warm_ms=warm_ms,
        cold_ms=warm_ms,
        independent_ms=BASE.independent_ms * share,
        common_ms=BASE.common_ms * share,
    )


def test_a_correction_is_surer_of_long_networks_and_keeps_that_in_its_state() -> None:
    rng = np.random.default_rng(3)
    networks = [_scaled(float(ms)) for ms in np.geomspace(0.5, 50.0, 20)]
    deviation = np.array([0.1 * (n.warm_ms / 5.0) ** -0.25 for n in networks])
    latency = np.array([n.warm_ms for n in networks]) * np.exp(deviation * rng.standard_normal(20))
    correction = NetworkCorrection().fit(networks, latency)
    asked = [_scaled(1.0), _scaled(30.0)]
    _, (short, long) = correction.predict(asked)
    assert short > 1.5 * long
    again = NetworkCorrection.from_state(correction.state())
    assert again.predict(asked)[1].tolist() == [short, long]


def test_intervals_hold_for_short_and_for_long_networks() -> None:
    held: dict[bool, list[bool]] = {True: [], False: []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = np.exp(rng.uniform(-1.0, 4.0, 220))
        networks = [_scaled(float(ms)) for ms in sizes]
        error = 0.08 * (sizes / 5.0) ** -0.25 * rng.standard_normal(220)
        latency = sizes * np.exp(error)
        correction = NetworkCorrection().fit(networks[:20], latency[:20])
        middle, sigma = correction.predict(networks[20:])
        reach = conformal_quantile(correction.scores, 0.9) * sigma
        inside = np.abs(np.log(latency[20:] / middle)) <= reach
        for short in held:
            held[short] += inside[(sizes[20:] < 5.0) == short].tolist()
    assert np.mean(held[True]) > 0.84
    assert np.mean(held[False]) > 0.84
