"""The correction of a sum of kernels: its choice, its residuals, the coverage of intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.intervals import widened_quantile
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.network_figures import (
    MEGABYTE,
    NetworkFigures,
    column_figures,
    figures,
)
from latfarm_predictors.testing.synthetic import random_kernels

pytestmark = pytest.mark.slow


def draw(
    rng: np.random.Generator, count: int, *, effect: str = "none", noise: float = 0.04
) -> tuple[list[NetworkFigures], Array]:
    """Figures of random networks, and latencies that differ from the sum by one `effect`."""
    networks, latency = [], np.empty(count)
    for index in range(count):
        warm = float(np.exp(rng.uniform(np.log(1.0), np.log(80.0))))
        weights = float(np.exp(rng.uniform(np.log(0.5), np.log(60.0))))
        kernels = float(rng.integers(8, 120))
        cold = warm + 0.12 * weights
        networks.append(
            NetworkFigures(
                warm_ms=warm,
                cold_ms=cold,
                independent_ms=0.02 * warm,
                common_ms=0.08 * warm,
                kernels=kernels,
                weight_mb=weights,
                interior_mb=float(rng.uniform(1, 30)),
                small_ms=warm * float(rng.uniform(0, 0.3)),
                weighty_ms=warm * float(rng.uniform(0, 0.6)),
                conv_ms=warm * float(rng.uniform(0.4, 0.95)),
            )
        )
        ratio = {
            "none": 1.0,
            "scale": 1.25,
            "cold": networks[-1].blended_ms / warm,
            "calls": 1.0 + 0.03 * kernels / warm,
        }[effect]
        latency[index] = warm * ratio * np.exp(noise * rng.standard_normal())
    return networks, latency


def test_without_networks_it_is_the_sum() -> None:
    networks, _ = draw(np.random.default_rng(0), 3)
    correction = NetworkCorrection().fit([], np.zeros(0))
    latency, sigma = correction.predict(networks)
    np.testing.assert_allclose(latency, [n.warm_ms for n in networks])
    assert (sigma > 0.03).all()
    assert correction.chosen == "none"


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_few_networks_give_a_correction_that_is_near_the_sum(count: int) -> None:
    rng = np.random.default_rng(count)
    networks, latency = draw(rng, count, effect="calls")
    correction = NetworkCorrection().fit(networks, latency)
    predicted, _ = correction.predict(draw(rng, 50)[0])
    assert correction.scores.shape == (count,)
    assert correction.chosen.split("+")[0] in ("none", "scale")
    assert np.isfinite(predicted).all()


def test_a_plain_sum_is_left_alone() -> None:
    kept = 0
    for seed in range(12):
        networks, latency = draw(np.random.default_rng(seed), 20)
        kept += NetworkCorrection().fit(networks, latency).chosen == "none"
    assert kept >= 8


@pytest.mark.parametrize("effect", ["scale", "cold", "calls"])
def test_an_effect_is_found_and_corrected(effect: str) -> None:
    plain, corrected = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        networks, latency = draw(rng, 25, effect=effect)
        correction = NetworkCorrection().fit(networks, latency)
        fresh, truth = draw(rng, 100, effect=effect)
        plain.append(np.mean(np.abs(np.log(truth / [n.warm_ms for n in fresh]))))
        corrected.append(np.mean(np.abs(np.log(truth / correction.predict(fresh)[0]))))
    assert np.mean(corrected) < 0.7 * np.mean(plain)


@pytest.mark.parametrize(("count", "effect"), [(12, "none"), (20, "calls"), (40, "cold")])
def test_intervals_hold_and_residuals_are_as_large_as_new_errors(count: int, effect: str) -> None:
    hits, told, true = [], [], []
    for seed in range(600 // count):
        rng = np.random.default_rng(1000 + seed)
        networks, latency = draw(rng, count, effect=effect, noise=0.06)
        correction = NetworkCorrection().fit(networks, latency)
        fresh, truth = draw(rng, 60, effect=effect, noise=0.06)
        predicted, sigma = correction.predict(fresh)
        factor, promised = widened_quantile(correction.scores, 0.9)
        assert promised
        errors = np.abs(np.log(truth / predicted))
        hits.append(np.mean(errors <= factor * sigma))
        told.append(np.mean(np.abs(correction.residuals)))
        true.append(np.mean(errors))
    assert 0.87 <= np.mean(hits) <= 0.97
    # choosing the correction must not make the residuals look better than new networks are
    assert np.mean(told) >= 0.93 * np.mean(true)


def test_networks_far_from_the_fit_get_a_bounded_correction_and_wider_intervals() -> None:
    rng = np.random.default_rng(0)
    networks, latency = draw(rng, 30, effect="calls")
    correction = NetworkCorrection().fit(networks, latency)
    seen = np.log(correction.predict(networks)[0] / [n.warm_ms for n in networks])
    far = NetworkFigures(0.05, 30.0, 0.001, 0.004, 900.0, 550.0, 400.0, 0.04, 0.01, 0.0)
    predicted, sigma = correction.predict([far])
    assert abs(np.log(predicted[0] / far.warm_ms)) < 3 * np.abs(seen).max() + 1.0 or (
        predicted[0] <= 1.5 * far.blended_ms
    )
    assert sigma[0] > correction.predict(networks)[1].mean()


@pytest.mark.parametrize(("count", "effect"), [(0, "none"), (5, "scale"), (20, "calls")])
def test_state_gives_back_the_same_bits(count: int, effect: str) -> None:
    rng = np.random.default_rng(3)
    networks, latency = draw(rng, count, effect=effect)
    correction = NetworkCorrection().fit(networks, latency)
    again = NetworkCorrection.from_state(correction.state())
    fresh, _ = draw(rng, 20)
    for ours, theirs in zip(correction.predict(fresh), again.predict(fresh), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(correction.scores, again.scores)
    assert correction.chosen == again.chosen


def test_a_gp_state_gives_back_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    networks, latency = draw(rng, 40)
    # an effect that is not linear
    bend = np.array([np.sin(3.0 * np.log(n.warm_ms)) for n in networks])
    correction = NetworkCorrection().fit(networks, latency * np.exp(0.2 * bend))
    again = NetworkCorrection.from_state(correction.state())
    np.testing.assert_array_equal(correction.predict(networks)[0], again.predict(networks)[0])


def test_figures_are_sums_over_kernels() -> None:
    rng = np.random.default_rng(0)
    works = [workload(k) for k in random_kernels(rng, {"conv": 4, "fc": 2})]
    table = as_table(works)
    latency, cold = np.linspace(0.1, 1.0, 6), np.linspace(0.2, 2.0, 6)
    found = figures(table, latency, cold, np.full(6, 0.1), overhead_ms=0.5, small_ms=0.2)
    assert found.warm_ms == pytest.approx(latency.sum() + 0.5)
    assert found.cold_ms == pytest.approx(cold.sum() + 0.5)
    assert found.common_ms == pytest.approx(0.1 * latency.sum())
    assert found.small_ms == pytest.approx(0.1)
    assert found.conv_ms == pytest.approx(latency[:4].sum())
    assert found.weight_mb == pytest.approx(sum(w.weight_bytes for w in works) / 1e6)
    assert found.warm_ms <= found.blended_ms <= found.cold_ms


def weighty(count: int, seed: int) -> tuple[list[NetworkFigures], Array]:
    """Figures and latencies of networks that pay for weights beyond a cache of 16 MB."""
    rng = np.random.default_rng(seed)
    found, latency = [], np.empty(count)
    for index in range(count):
        kernels = int(rng.integers(4, 30))
        weights = float(np.exp(rng.uniform(-1.5, 1.0)))  # megabytes of each kernel
        columns = np.zeros((8, kernels))
        columns[0] = columns[1] = rng.uniform(0.2, 1.0, kernels)
        columns[2], columns[3] = 0.05, weights * MEGABYTE
        columns[4] = columns[5] = 2e4
        columns[6] = columns[7] = 1.0
        found.append(column_figures(columns, overhead_ms=0.01, small_ms=0.05))
        lost = weights * kernels if weights * kernels > 16.0 else 0.0
        latency[index] = found[-1].warm_ms + 0.3 * lost
    return found, latency * np.exp(0.02 * rng.standard_normal(count))


def test_weights_that_a_cache_loses_inside_a_network_only() -> None:
    columns = np.zeros((8, 3))
    columns[0] = columns[1] = 1.0
    columns[3] = np.array([3.0, 2.0, 15.0]) * MEGABYTE
    columns[4] = columns[5] = 0.5 * MEGABYTE
    found = column_figures(columns, overhead_ms=0.1, small_ms=0.05)
    # 21.5 MB in all; the kernels by themselves take 4, 3 and 16 MB
    assert found.evicted_mb == (0.0, 5.0, 20.0, 0.0)
    empty = column_figures(np.zeros((8, 0)), overhead_ms=0.1, small_ms=0.05)
    assert empty.evicted_mb == (0.0, 0.0, 0.0, 0.0)


def test_a_cost_of_evicted_weights_is_found() -> None:
    networks, latency = weighty(24, 1)
    correction = NetworkCorrection().fit(networks, latency)
    fresh, truth = weighty(60, 2)
    errors = np.abs(np.log(correction.predict(fresh)[0] / truth))
    blind = [replace(network, evicted_mb=()) for network in networks]
    without = NetworkCorrection().fit(blind, latency)
    assert correction.chosen.startswith("ridge")
    assert errors.mean() < 0.7 * np.abs(np.log(without.predict(fresh)[0] / truth)).mean()
    again = NetworkCorrection.from_state(correction.state())
    np.testing.assert_array_equal(again.predict(fresh)[0], correction.predict(fresh)[0])
    # a correction of an older bundle has eight features, and goes on to predict with these
    assert len(without.state().arrays["fit_centre"]) == 8
    older = NetworkCorrection.from_state(without.state())
    np.testing.assert_array_equal(older.predict(blind)[0], older.predict(networks)[0])
