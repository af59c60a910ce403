"""A family of few kernels has a roofline of its own only where it predicts better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.kernel import Kernel, extract
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.learned.kernel_models import KernelModels, ignore_progress
from latfarm_predictors.models.base import Observations
from latfarm_predictors.models.few_kernels import LEAST_ROWS, fit_few
from latfarm_predictors.samples import KernelSample, Training, prepare
from latfarm_predictors.testing.synthetic import random_kernel

PER_ELEMENT_MS = 27e-6
"""A local response normalisation takes this long for each element."""


def normalisation(rng: np.random.Generator, most_side: int = 40) -> Kernel:
    b = GraphBuilder("lrn")
    side = int(rng.integers(most_side // 4, most_side))
    x = b.input((1, 8 * int(rng.integers(2, 20)), side, side))
    graph = b.build([b.lrn(x, 5)])
    return extract(graph, graph.nodes)


def elements(work: Workload) -> int:
    return work.in_channels * work.in_h * work.in_w


def training(few: int, network: str = "") -> Training:
    """Few normalisations beside many element-wise operators that scatter."""
    rng = np.random.default_rng(3)
    samples = []
    for _ in range(60):
        kernel = random_kernel(rng, "eltwise")
        latency_ms = 1e-6 * elements(workload(kernel)) * np.exp(0.7 * rng.standard_normal()) + 0.01
        samples.append(KernelSample(kernel, latency_ms, 0.01 * latency_ms))
    for _ in range(few):
        kernel = normalisation(rng)
        latency_ms = PER_ELEMENT_MS * elements(workload(kernel)) * np.exp(0.02 * rng.normal())
        samples.append(KernelSample(kernel, latency_ms, 0.01 * latency_ms, network=network))
    return prepare(samples, 0.0)


def fitted(given: Training) -> KernelModels:
    return KernelModels.fit(
        given, floor_ms=1e-6, seed=0, on_progress=ignore_progress, forests=False
    )


def judged() -> tuple[list[Workload], Array]:
    """Normalisations that are up to ten times as large as the measured ones, and their times."""
    rng = np.random.default_rng(5)
    works = [workload(normalisation(rng, 110)) for _ in range(20)]
    return works, np.array([PER_ELEMENT_MS * elements(work) for work in works])


@pytest.fixture(scope="module")
def models() -> KernelModels:
    return fitted(training(6))


def test_times_that_follow_from_sizes_are_told_beyond_all_measured_ones(
    models: KernelModels,
) -> None:
    assert {group: set(few) for group, few in models.few.items()} == {"memory": {"lrn"}}
    works, truth_ms = judged()
    found = models.predict(as_table(works))
    assert np.abs(found.latency_ms / truth_ms - 1).max() < 0.1
    assert found.sigma.max() < 0.2
    _, shared_sigma = models.stacks["memory"].predict(works)
    assert shared_sigma.min() > 1.5 * found.sigma.max()


def test_the_others_of_the_group_are_predicted_as_before(models: KernelModels) -> None:
    work = workload(random_kernel(np.random.default_rng(1), "eltwise"))
    found = models.predict(as_table([work]))
    assert found.latency_ms == pytest.approx(models.stacks["memory"].predict([work])[0], rel=1e-12)


def test_unseen_latencies_are_those_of_the_rooflines(models: KernelModels) -> None:
    rows = [row for row, work in enumerate(training(6).workloads) if work.family == "lrn"]
    truth_ms = training(6).latency_ms[rows]
    assert np.median(np.abs(np.log(models.unseen_ms[rows] / truth_ms))) < 0.05
    assert (
        models.unseen_ms[rows].tolist()
        != models.predict(as_table(training(6).table.take(np.array(rows)))).latency_ms.tolist()
    )


def test_a_state_reads_back_equal_and_older_ones_have_no_such_family(models: KernelModels) -> None:
    works, _ = judged()
    table = as_table(works)
    again = KernelModels.from_state(models.state())
    assert again.predict(table).latency_ms.tolist() == models.predict(table).latency_ms.tolist()
    assert again.predict(table).sigma.tolist() == models.predict(table).sigma.tolist()
    state = models.state()
    values = {name: value for name, value in state.values.items() if name != "few"}
    older = KernelModels.from_state(replace(state, values=values))
    assert not older.few
    expected = models.stacks["memory"].predict(table)[0]
    assert older.predict(table).latency_ms == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("few", "network"), [(LEAST_ROWS - 1, ""), (3, "one network")])
def test_too_few_kernels_share_the_regressor_of_others(few: int, network: str) -> None:
    assert not fitted(training(few, network)).few


def test_a_family_that_shares_a_good_regressor_keeps_it() -> None:
    rng = np.random.default_rng(2)
    works = [workload(normalisation(rng)) for _ in range(6)]
    truth_ms = np.array([PER_ELEMENT_MS * elements(work) for work in works])
    scattered_ms = truth_ms * np.exp(0.3 * rng.standard_normal(6))
    seen = Observations(as_table(works), scattered_ms, np.full(6, 1e-4))
    good, bad = np.full(6, 0.05), np.full(6, 2.0)
    assert fit_few(seen, 1.05 * scattered_ms, good, seed=0) is None
    assert fit_few(seen, 9.0 * scattered_ms, good, seed=0) is not None
    assert fit_few(seen, 1.05 * scattered_ms, bad, seed=0) is not None
    # without the network that most of them are of, too few are left to learn from
    most = replace(seen, sources=["net"] * 4 + ["", ""])
    assert fit_few(most, 9.0 * scattered_ms, good, seed=0) is None
