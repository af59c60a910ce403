"""From measurements to training rows."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.graph_builder import GraphBuilder
from latfarm_predictors.kernels import Kernel, extract
from latfarm_predictors.samples import KernelSample, Measured, prepare
from latfarm_predictors.testing.synthetic import random_kernel
from latfarm_predictors.workload import workload


def kernel(seed: int = 0, family: str = "conv") -> Kernel:
    return random_kernel(np.random.default_rng(seed), family)


def reshape_kernel() -> Kernel:
    b = GraphBuilder("view")
    graph = b.build([b.reshape(b.input((1, 64, 14, 14)), (1, 64 * 14 * 14))])
    return extract(graph, graph.nodes)


def test_repeats_of_a_kernel_become_one_row_their_median() -> None:
    samples = [KernelSample(kernel(), ms, 0.01) for ms in (1.0, 1.2, 9.0)]
    training = prepare([*samples, KernelSample(kernel(1), 2.0, 0.02)], 0.1)
    assert len(training.table) == 2
    assert training.latency_ms.tolist() == pytest.approx([1.1, 1.9])
    # the repeats disagree, and that is noise too
    assert training.noise[0] > 10 * training.noise[1]


def test_the_call_is_taken_off_except_from_profiled_times() -> None:
    alone = prepare([KernelSample(kernel(), 1.0)], 0.25)
    profiled = prepare([KernelSample(kernel(), 1.0, insight="profile")], 0.25)
    assert alone.latency_ms[0] == pytest.approx(0.75)
    assert profiled.latency_ms[0] == pytest.approx(1.0)


@pytest.mark.parametrize("latency_ms", [0.004, 0.0101, 0.01])
def test_a_kernel_cheaper_than_the_call_is_kept_and_distrusted(latency_ms: float) -> None:
    training = prepare([KernelSample(reshape_kernel(), latency_ms, 0.0005)], 0.01)
    assert 0 < training.latency_ms[0] <= 0.0005
    assert training.noise[0] > 0.5


def test_what_is_no_latency_is_left_out() -> None:
    samples = [KernelSample(kernel(i), ms) for i, ms in enumerate((float("nan"), -1.0, 0.0, 2.0))]
    assert prepare(samples, 0.0).latency_ms.tolist() == [2.0]
    assert prepare([], 0.0).latency_ms.shape == (0,)


def test_cold_extra_is_told_where_measured() -> None:
    training = prepare(
        [KernelSample(kernel(0), 1.0, cold_ms=1.5), KernelSample(kernel(1), 1.0)], 0.2
    )
    assert training.cold_extra_ms[0] == pytest.approx(0.5)
    assert np.isnan(training.cold_extra_ms[1])


def test_measured_configurations_are_found_again_also_after_json() -> None:
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


def test_rows_of_another_form_are_no_measured_kernels() -> None:
    with pytest.raises(ValueError, match="identity"):
        Measured.from_json([["conv", 1.0, 0.1]])
