"""A training after new measurements keeps, to the last bit, what these do not touch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.features.table import as_table
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.predict.earlier_fit import EarlierFit, kept_of
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.kernel_estimates import estimate
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import KernelSample, NetworkSample, prepare
from latfarm_predictors.testing.synthetic import RULES, SyntheticBoard, random_kernels

BOARD = SyntheticBoard()
COUNTS = {"conv": 14, "dwconv": 10, "fc": 9, "pool": 5, "eltwise": 10}
"""Kernels of each family; five are too few for a regressor of the group."""


def samples_of(counts: dict[str, int], seed: int) -> list[KernelSample]:
    rng = np.random.default_rng(seed)
    return [BOARD.kernel_sample(kernel, rng, cold=True) for kernel in random_kernels(rng, counts)]


def platform(kernels: list[KernelSample], networks: list[NetworkSample]) -> PlatformSamples:
    return PlatformSamples("synthetic-1t", RULES, kernels, networks, call_overhead_ms=BOARD.call_ms)


@pytest.fixture(scope="module")
def kernels() -> list[KernelSample]:
    return samples_of(COUNTS, 0)


@pytest.fixture(scope="module")
def before(
    kernels: list[KernelSample],
    network_samples: list[NetworkSample],
    tmp_path_factory: pytest.TempPathFactory,
) -> PlatformPredictor:
    path = tmp_path_factory.mktemp("before") / "bundle.zip"
    save_bundle(fit_predictor(platform(kernels, network_samples[:10])), path)
    return load_bundle(path)


@pytest.fixture(scope="module")
def after(
    kernels: list[KernelSample],
    network_samples: list[NetworkSample],
    before: PlatformPredictor,
    tmp_path_factory: pytest.TempPathFactory,
) -> PlatformPredictor:
    """The same with six more convolutions, as loaded from its bundle."""
    path = tmp_path_factory.mktemp("after") / "bundle.zip"
    more = [*kernels, *samples_of({"conv": 6}, 1)]
    earlier = EarlierFit(before, frozenset({"conv"}))
    made = fit_predictor(platform(more, network_samples[:10]), earlier=earlier)
    save_bundle(made, path)
    return load_bundle(path)


def asked() -> dict[str, list[Workload]]:
    """Kernels that nobody measured, by their family."""
    rng = np.random.default_rng(5)
    found: dict[str, list[Workload]] = {}
    for kernel in random_kernels(rng, dict.fromkeys(COUNTS, 12)):
        work = workload(kernel)
        found.setdefault(work.family, []).append(work)
    return found


def test_families_without_new_samples_predict_the_same_bits(
    before: PlatformPredictor, after: PlatformPredictor, kernels: list[KernelSample]
) -> None:
    measured = Counter(workload(sample.kernel).family for sample in kernels)
    assert {"conv", "dwconv", "fc", "eltwise"} <= set(measured)
    works = asked()
    for sample in kernels:
        work = workload(sample.kernel)
        works.setdefault(work.family, []).append(work)
    for family, rows in works.items():
        first = estimate(before.models, before.measured, rows)
        second = estimate(after.models, after.measured, rows)
        same = np.array_equal(first.latency_ms, second.latency_ms)
        assert same == (family != "conv"), family
        if family != "conv":
            assert np.array_equal(first.sigma, second.sigma), family
            assert first.sources == second.sources


def test_what_is_new_is_known(
    before: PlatformPredictor, after: PlatformPredictor, network_samples: list[NetworkSample]
) -> None:
    assert before.confidence is not None
    assert after.confidence is not None
    assert len(after.confidence) == len(before.confidence) + 6
    for sample in samples_of({"conv": 6}, 1):
        work = workload(sample.kernel)
        assert before.measured.find(work) is None
        assert after.measured.find(work) is not None
    for network in network_samples[10:]:
        answer = after.predict(network.graph)
        assert answer.calibrated
        assert answer.latency_ms != before.predict(network.graph).latency_ms


def test_what_the_new_model_keeps_can_be_kept_again(
    before: PlatformPredictor,
    after: PlatformPredictor,
    kernels: list[KernelSample],
    network_samples: list[NetworkSample],
) -> None:
    """Two trainings, one after the other, keep what neither of them touches."""
    more = [*kernels, *samples_of({"conv": 6}, 1), *samples_of({"fc": 3}, 2)]
    last = fit_predictor(
        platform(more, network_samples[:10]),
        earlier=EarlierFit(after, frozenset({"fc"})),
        baselines=False,
    )
    works = asked()
    for family, kept in {"conv": after, "dwconv": before, "eltwise": before}.items():
        table = as_table(works[family])
        first, second = kept.models.predict(table), last.models.predict(table)
        assert np.array_equal(first.latency_ms, second.latency_ms), family
        assert np.array_equal(first.sigma, second.sigma), family


def test_a_kernel_that_is_gone_touches_its_group(
    before: PlatformPredictor, kernels: list[KernelSample]
) -> None:
    gone = next(sample for sample in kernels if workload(sample.kernel).family == "dwconv")
    rest = [sample for sample in kernels if sample is not gone]
    # Even if nobody says that the family has changed: its rows are not those of the bundle.
    found = kept_of(EarlierFit(before, frozenset()), prepare(rest, BOARD.call_ms), forests=False)
    assert found is not None
    assert "dwconv" not in found.groups.names
    assert "conv" in found.groups.names
    assert "dwconv" not in found.families


def test_intervals_between_pads_are_kept_with_the_latencies_that_they_are_about() -> None:
    """The same kernels may have other latencies now, as with another correction."""
    kernels = [
        replace(s, insight="padded", mad_ms=0.1 * s.latency_ms) for s in samples_of({"conv": 14}, 0)
    ]
    before = fit_predictor(platform(kernels, []), baselines=False)
    evidence = before.confidence
    assert evidence is not None
    slower = [replace(s, latency_ms=1.5 * s.latency_ms, mad_ms=1.5 * s.mad_ms) for s in kernels]
    new = prepare(slower, BOARD.call_ms)
    assert not np.isclose(new.padding_ms, evidence.padding_ms).any()
    found = kept_of(EarlierFit(before, frozenset()), new, forests=False)
    assert found is not None
    assert np.array_equal(found.training.latency_ms, evidence.latency_ms)
    assert np.array_equal(found.training.padding_ms, evidence.padding_ms)


def test_nothing_is_kept_where_all_has_changed(
    before: PlatformPredictor, kernels: list[KernelSample]
) -> None:
    training = prepare(kernels, BOARD.call_ms)
    every = frozenset(training.table.families)
    assert kept_of(EarlierFit(before, every), training, forests=False) is None
    old = replace(before, confidence=None)
    assert kept_of(EarlierFit(old, frozenset()), training, forests=False) is None


def test_equal_kernels_are_kept_in_their_order(before: PlatformPredictor) -> None:
    """Kernels that only their device tells apart are told apart by their place."""
    rng = np.random.default_rng(3)
    (kernel,) = random_kernels(rng, {"conv": 1})
    twice = [
        replace(BOARD.kernel_sample(kernel, rng), kernel=Kernel(kernel.graph, device=device))
        for device in ("cpu", "npu")
    ]
    training = prepare(twice, BOARD.call_ms)
    assert len(training.table) == 2
    assert kept_of(EarlierFit(before, frozenset()), training, forests=False) is None
