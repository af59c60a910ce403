"""Latencies of kernels that were measured alone, corrected to what they are inside networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.features.table import Array
from latfarm_predictors.learned.isolation import LEAST_ROWS, corrected_for_isolation
from latfarm_predictors.samples import KernelSample, Training, prepare
from latfarm_predictors.testing.synthetic import SyntheticBoard, random_kernel

pytestmark = pytest.mark.slow

PLATFORM = SyntheticBoard()
SLOWER, GROWTH = 1.4, 1.04
"""Log effect of being inside a network: of a kernel of 1 ms, and per factor e of latency."""


def samples(families: Sequence[str], alone: int, inside: int, seed: int) -> list[KernelSample]:
    """Kernels that take longer inside networks, by a factor that grows with their latency."""
    rng = np.random.default_rng(seed)
    found = []
    for family in families:
        for number in range(alone + inside):
            kernel = random_kernel(rng, family)
            sample = PLATFORM.kernel_sample(kernel, rng)
            factor = SLOWER * sample.latency_ms ** np.log(GROWTH) if number >= alone else 1.0
            network = f"network {number % 7}" if number >= alone else ""
            sample = replace(sample, network=network, insight="profile")
            found.append(replace(sample, latency_ms=sample.latency_ms * factor))
    return found


def errors(training: Training) -> Array:
    """Log errors of kernels measured alone, against their latency inside networks."""
    alone = ~training.in_network
    raw = np.array([PLATFORM.kernel_true_ms(w) + PLATFORM.call_ms for w in training.workloads])
    truth = raw * SLOWER * raw ** np.log(GROWTH)
    return np.asarray(np.log(training.latency_ms / truth)[alone])


@pytest.fixture(scope="module")
def training() -> Training:
    return prepare(samples(["conv"], 80, 80, 1), 0.0)


def test_latencies_alone_become_those_inside_networks(training: Training) -> None:
    before, after = errors(training), errors(corrected_for_isolation(training))
    assert abs(np.median(before)) > 0.1
    assert abs(np.median(after)) < 0.04
    assert np.abs(after).mean() < 0.4 * np.abs(before).mean()


def test_latencies_inside_networks_stay_and_the_others_become_less_sure(training: Training) -> None:
    found, inside = corrected_for_isolation(training), training.in_network
    assert np.array_equal(found.latency_ms[inside], training.latency_ms[inside])
    assert np.array_equal(found.noise[inside], training.noise[inside])
    assert (found.noise[~inside] > training.noise[~inside]).all()
    assert found.table is training.table


@pytest.mark.parametrize(("alone", "inside"), [(60, 0), (0, 60), (60, LEAST_ROWS - 1)])
def test_too_few_kernels_of_one_kind_change_nothing(alone: int, inside: int) -> None:
    training = prepare(samples(["conv"], alone, inside, 2), 0.0)
    assert np.array_equal(corrected_for_isolation(training).latency_ms, training.latency_ms)


def test_each_group_has_an_effect_of_its_own() -> None:
    plain = samples(["conv"], 60, 60, 3)
    level = [replace(s, network="") for s in samples(["pool"], 60, 0, 4)]
    level += [replace(s, network="n") for s in samples(["pool"], 60, 0, 5)]
    training = prepare(plain + level, 0.0)
    found = corrected_for_isolation(training)
    pools = np.array([w.family == "pool" for w in training.workloads])
    change = np.abs(np.log(found.latency_ms / training.latency_ms))
    assert change[pools].max() < 0.1
    assert np.median(change[~pools & ~training.in_network]) > 0.1


def test_a_kernel_measured_both_ways_has_its_latency_inside_networks() -> None:
    rng = np.random.default_rng(0)
    kernel = random_kernel(rng, "conv")
    alone = KernelSample(kernel, 1.0, 0.0, None, "profile")
    inside = KernelSample(kernel, 1.5, 0.0, None, "profile", network="n")
    training = prepare([alone, inside, alone], 0.0)
    assert training.latency_ms.tolist() == [1.5]
    assert training.in_network.tolist() == [True]


def test_the_same_data_and_seed_give_the_same_latencies() -> None:
    training = prepare(samples(["conv"], 300, 300, 6), 0.0)
    assert np.array_equal(
        corrected_for_isolation(training, 1).latency_ms,
        corrected_for_isolation(training, 1).latency_ms,
    )


def test_intervals_between_pads_are_corrected_as_their_latencies_are() -> None:
    found = [
        s if s.network else replace(s, insight="padded", mad_ms=0.1 * s.latency_ms)
        for s in samples(["conv"], 60, 60, 7)
    ]
    training = prepare(found, 0.0)
    corrected = corrected_for_isolation(training)
    padded = ~training.in_network
    assert np.abs(np.log(corrected.latency_ms / training.latency_ms))[padded].min() > 0.1
    assert np.allclose(corrected.padding_ms[padded], 0.2 * corrected.latency_ms[padded])
    assert not corrected.padding_ms[~padded].any()


def test_a_rare_family_takes_as_many_milliseconds_longer_as_others_of_its_size() -> None:
    """A dear kernel is not slowed down by the factor of cheap ones that it shares a group with."""
    rng = np.random.default_rng(8)
    found = samples(["eltwise"], 60, 60, 8)
    rare = [random_kernel(rng, "lrn") for _ in range(6)]
    dear = [PLATFORM.kernel_sample(kernel, rng) for kernel in rare]
    dear = [replace(s, latency_ms=20 * s.latency_ms, insight="profile") for s in dear]
    training = prepare(found + dear, 0.0)
    change = np.log(corrected_for_isolation(training).latency_ms / training.latency_ms)
    lrn = np.array([w.family == "lrn" for w in training.workloads])
    alone = ~lrn & ~training.in_network
    assert np.median(change[alone]) > 0.15
    assert lrn.sum() == 6
    assert (change[lrn] > 0.0).all()
    assert (change[lrn] < 0.08).all()
