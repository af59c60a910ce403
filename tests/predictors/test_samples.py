"""Samples of kernels become rows of a training set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.kernel import Kernel, extract
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import LEAST_FREE, KernelSample, Measured, prepare, without_call
from latfarm_predictors.testing.synthetic import random_kernel


def kernel(seed: int = 0, family: str = "conv") -> Kernel:
    return random_kernel(np.random.default_rng(seed), family)


def reshape_kernel() -> Kernel:
    b = GraphBuilder("view")
    graph = b.build([b.reshape(b.input((1, 64, 14, 14)), (1, 64 * 14 * 14))])
    return extract(graph, graph.nodes)


def test_repeats_of_a_kernel_become_one_row_with_their_median() -> None:
    samples = [KernelSample(kernel(), ms, 0.01) for ms in (1.0, 1.2, 9.0)]
    training = prepare([*samples, KernelSample(kernel(1), 2.0, 0.02)], 0.1)
    assert len(training.table) == 2
    assert training.latency_ms.tolist() == pytest.approx([1.1, 1.9])
    # the repeats differ, which is noise too
    assert training.noise[0] > 10 * training.noise[1]


def test_the_call_overhead_is_subtracted_except_from_profiled_times() -> None:
    alone = prepare([KernelSample(kernel(), 1.0)], 0.25)
    profiled = prepare([KernelSample(kernel(), 1.0, insight="profile")], 0.25)
    assert alone.latency_ms[0] == pytest.approx(0.75)
    assert profiled.latency_ms[0] == pytest.approx(1.0)


@pytest.mark.parametrize("latency_ms", [0.004, 0.0101, 0.01])
def test_a_kernel_cheaper_than_the_call_is_kept_with_a_large_variance(latency_ms: float) -> None:
    training = prepare([KernelSample(reshape_kernel(), latency_ms, 0.0005)], 0.01)
    assert 0 < training.latency_ms[0] <= 0.0005
    assert training.noise[0] > 0.5


def test_the_doubt_of_the_call_is_no_noise_of_kernels_inside_a_network() -> None:
    """They share one call, so that what it takes wrongly from them is one error of all of them."""
    inside = KernelSample(kernel(), 0.02, 0.0001, insight="profile", network="net")
    calls = [prepare([inside], call_ms) for call_ms in (0.0, 0.05)]
    assert calls[1].latency_ms == pytest.approx(calls[0].latency_ms)
    assert calls[1].noise == pytest.approx(calls[0].noise)
    alone = KernelSample(kernel(), 0.07, 0.0001)
    assert prepare([alone], 0.05).noise[0] > 10 * calls[1].noise[0]


def test_a_kernel_inside_a_network_may_be_far_shorter_than_the_call() -> None:
    """Only where a call was subtracted is a time below a share of it the noise of that call."""
    inside = KernelSample(kernel(), 0.0005, insight="profile", network="net")
    assert prepare([inside], 0.1).latency_ms == pytest.approx([0.0005])
    assert prepare([KernelSample(kernel(), 0.1005)], 0.1).latency_ms == pytest.approx([0.002])


def test_no_call_was_subtracted_between_pads() -> None:
    """The difference of two models' times has no call in it, and so neither doubt nor floor."""
    between = [KernelSample(kernel(i), ms, 0.1 * ms, None, "padded") for i, ms in enumerate((1, 3))]
    with_call, without = (prepare(between, call_ms) for call_ms in (200.0, 0.0))
    assert with_call.latency_ms == pytest.approx([1.0, 3.0])
    assert with_call.noise == pytest.approx(without.noise)
    # A kernel that was timed alone as well is as doubtful as its call.
    alone = replace(between[0], latency_ms=201.0, mad_ms=0.0, insight="single")
    assert prepare([between[0], alone], 200.0).noise[0] > 10 * without.noise[0]


def test_the_interval_between_pads_counts_with_its_whole_deviation() -> None:
    """It is no median of runs, which would vary less than the runs do."""
    half_ms = 0.3
    training = prepare([KernelSample(kernel(), 1.0, half_ms / 2, None, "padded")], 0.0)
    assert training.padding_ms == pytest.approx([half_ms])
    assert training.noise == pytest.approx([half_ms**2 / 3])  # that of a uniform distribution
    runs = prepare([KernelSample(kernel(), 1.0, half_ms / 2)], 0.0)
    assert runs.noise == pytest.approx([(1.4826 * half_ms / 4) ** 2])


@pytest.mark.parametrize("latency_ms", [1.0, 0.26, 0.2])
def test_a_sample_without_the_call_is_as_it_is_learned_from(latency_ms: float) -> None:
    sample = KernelSample(kernel(), latency_ms, 0.03, 1.5)
    own, learned = prepare([without_call(sample, 0.25)], 0.0), prepare([sample], 0.25)
    assert own.latency_ms == pytest.approx(learned.latency_ms)
    assert own.noise == pytest.approx(learned.noise)
    assert own.cold_extra_ms == pytest.approx(learned.cold_extra_ms)


def test_samples_that_have_no_call_in_them_stay() -> None:
    for ms, insight, network in (
        (1.0, "profile", ""),
        (1.0, "padded", ""),
        (1.0, "single", "net"),
        (0.0, "single", ""),
        (float("inf"), "single", ""),
    ):
        sample = KernelSample(kernel(), ms, 0.1, None, insight, network)  # type: ignore[arg-type]
        assert without_call(sample, 0.25) is sample
    sample = KernelSample(kernel(), 1.0, 0.1)
    assert without_call(sample, 0.0) is sample


def test_samples_without_a_valid_latency_are_left_out() -> None:
    samples = [KernelSample(kernel(i), ms) for i, ms in enumerate((float("nan"), -1.0, 0.0, 2.0))]
    assert prepare(samples, 0.0).latency_ms.tolist() == [2.0]
    assert prepare([], 0.0).latency_ms.shape == (0,)


def test_the_latency_that_cold_caches_add_is_known_where_measured() -> None:
    training = prepare(
        [KernelSample(kernel(0), 1.0, cold_ms=1.5), KernelSample(kernel(1), 1.0)], 0.2
    )
    assert training.cold_extra_ms[0] == pytest.approx(0.5)
    assert np.isnan(training.cold_extra_ms[1])


def test_measured_workloads_are_found_again_also_after_json() -> None:
    training = prepare([KernelSample(kernel(i), 1.0 + i, 0.01) for i in range(5)], 0.0)
    measured = Measured.of(training)
    again = Measured.from_json(measured.to_json())
    assert len(measured) == len(again) == 5
    for i in range(5):
        found = again.find(workload(kernel(i)))
        assert found == measured.find(workload(kernel(i)))
        assert found is not None
        assert found[0] == pytest.approx(1.0 + i)
    assert measured.find(workload(kernel(99))) is None


def test_moves_that_older_bundles_measured_are_found_again() -> None:
    """Older bundles do not tell the pieces that a move copies, the last value of a workload."""

    def turned(*perm: int) -> Kernel:
        b = GraphBuilder("turned")
        graph = b.build([b.transpose(b.input((1, 4, 6, 8)), perm)])
        return extract(graph, graph.nodes)

    training = prepare([KernelSample(turned(0, 2, 1, 3), 1.0, 0.01)], 0.0)
    rows: list[Any] = Measured.of(training).to_json()
    older_rows = [[key[:-1], *told] for key, *told in rows]
    older = Measured.from_json(older_rows)
    assert older.find(workload(turned(0, 2, 1, 3))) == pytest.approx((1.0, rows[0][2]))
    assert older.find(workload(turned(0, 2, 3, 1))) is None  # its result has another shape
    assert older.to_json() == older_rows
    newer = Measured.from_json(rows)
    assert newer.find(workload(turned(0, 2, 1, 3))) is not None
    assert newer.keeping(older, {"move"}).to_json() == rows


def test_rows_of_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match="identity"):
        Measured.from_json([["conv", 1.0, 0.1]])


def timeless(seed: int, family: str, network: str = "net") -> KernelSample:
    return KernelSample(kernel(seed, family), 0.0, insight="profile", network=network)


def test_ops_that_networks_run_in_no_time_are_free() -> None:
    conv = KernelSample(kernel(), 1.0)
    found = prepare([conv, *(timeless(seed, "lrn") for seed in range(LEAST_FREE))], 0.0)
    assert found.free == {("lrn", "LRN")}
    assert len(found.table) == 1
    assert found.left_out == 0


def test_an_op_that_took_time_once_or_was_seen_rarely_is_not_free() -> None:
    several = [timeless(seed, "lrn") for seed in range(LEAST_FREE)]
    assert not prepare([KernelSample(kernel(9, "lrn"), 0.2), *several], 0.0).free
    assert not prepare([KernelSample(kernel(), 1.0), *several[1:]], 0.0).free


def test_a_latency_of_0_outside_a_network_is_left_out() -> None:
    alone = [timeless(seed, "lrn", network="") for seed in range(LEAST_FREE)]
    found = prepare([KernelSample(kernel(), 1.0), *alone], 0.0)
    assert not found.free
    assert found.left_out == LEAST_FREE
