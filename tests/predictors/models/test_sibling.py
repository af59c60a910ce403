"""A platform that is learned from a sibling platform, or from one that only claims to be one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.learned.kernel_models import KernelModels
from latfarm_predictors.models.sibling import Sibling
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import KernelSample
from latfarm_predictors.testing.synthetic import RULES, SyntheticBoard, random_kernel

pytestmark = pytest.mark.slow

OLD_BOARD = SyntheticBoard()
NEW_BOARD = SyntheticBoard(
    kernel_ms=0.0026, macs_per_ms=1.2e7, bytes_per_ms=4.7e6, out_tile=16, in_tile=4
)
FAMILIES = ("conv", "conv", "pool")


def bent(work: Workload) -> float:
    """A factor that both boards share and that no roofline can express."""
    return math.exp(0.6 * math.sin(2.0 * math.log(work.in_channels)))


def samples(board: SyntheticBoard, count: int, seed: int) -> list[KernelSample]:
    rng = np.random.default_rng(seed)
    kernels = [random_kernel(rng, FAMILIES[place % 3]) for place in range(count)]
    found = [board.kernel_sample(kernel, rng) for kernel in kernels]
    return [replace(one, latency_ms=one.latency_ms * bent(workload(one.kernel))) for one in found]


def convs(board: SyntheticBoard, count: int, seed: int) -> tuple[Table, Array]:
    rng = np.random.default_rng(seed)
    works = [workload(random_kernel(rng, "conv")) for _ in range(count)]
    return as_table(works), np.array([board.kernel_true_ms(work) * bent(work) for work in works])


@pytest.fixture(scope="module")
def old_platform() -> PlatformPredictor:
    return fit_predictor(
        PlatformSamples(
            "old", RULES, samples(OLD_BOARD, 150, 1), [], call_overhead_ms=OLD_BOARD.call_ms
        )
    )


@pytest.fixture(scope="module")
def sibling(old_platform: PlatformPredictor) -> Sibling:
    return Sibling.of(old_platform.models)


def misses(model: Stack, table: Table, truth: Array) -> float:
    return float(np.abs(np.log(model.predict(table)[0] / truth)).mean())


def test_a_sibling_predicts_what_the_processes_of_its_platform_predict(
    old_platform: PlatformPredictor, sibling: Sibling
) -> None:
    table, _ = convs(OLD_BOARD, 40, 9)
    expected = old_platform.models.stacks["conv"].gp.predict(table)[0]
    np.testing.assert_array_equal(sibling.latency_ms(table), expected)
    again = Sibling.from_state(sibling.state())
    np.testing.assert_array_equal(again.latency_ms(table), expected)
    assert set(sibling.within(table).processes) == {"conv"}
    assert sibling.group_of("lrn", "LRN") == ""


def test_a_sibling_makes_few_measurements_go_further(sibling: Sibling) -> None:
    judge = convs(NEW_BOARD, 200, 50)
    table, latency = convs(NEW_BOARD, 24, 51)
    alone = Stack().fit(table, latency)
    helped = Stack(sibling=sibling).fit(table, latency)
    assert helped.from_sibling
    assert misses(helped, *judge) < 0.9 * misses(alone, *judge)
    kept = Stack.from_state(helped.state(), Sibling.from_state)
    np.testing.assert_array_equal(kept.predict(judge[0]), helped.predict(judge[0]))
    moved = helped.refit(table, 2.0 * latency, np.zeros(24))
    assert misses(moved, judge[0], 2.0 * judge[1]) < 1.5 * misses(helped, *judge)


def test_a_platform_that_is_no_sibling_does_no_harm() -> None:
    rng = np.random.default_rng(7)
    told = [
        replace(sample, latency_ms=float(np.exp(rng.normal(0.0, 2.0))))
        for sample in samples(OLD_BOARD, 45, 2)
    ]
    stranger = fit_predictor(PlatformSamples("stranger", RULES, told, []))
    judge = convs(NEW_BOARD, 200, 50)
    table, latency = convs(NEW_BOARD, 40, 52)
    alone = Stack().fit(table, latency)
    helped = Stack(sibling=Sibling.of(stranger.models)).fit(table, latency)
    assert misses(helped, *judge) < 1.1 * misses(alone, *judge)


def test_a_bundle_holds_the_sibling_that_it_builds_on(
    old_platform: PlatformPredictor, tmp_path: Path
) -> None:
    new = fit_predictor(
        PlatformSamples(
            "new", RULES, samples(NEW_BOARD, 36, 3), [], call_overhead_ms=NEW_BOARD.call_ms
        ),
        sibling=old_platform,
    )
    assert any(model.from_sibling for model in new.models.stacks.values())
    save_bundle(new, tmp_path / "new.zip")
    kept = load_bundle(tmp_path / "new.zip")
    table = as_table([workload(sample.kernel) for sample in samples(NEW_BOARD, 30, 4)])
    np.testing.assert_array_equal(
        kept.models.predict(table).latency_ms, new.models.predict(table).latency_ms
    )
    # the platform can be a sibling of a third one
    third = KernelModels.from_state(kept.models.state())
    assert np.isfinite(Sibling.of(third).latency_ms(table)).all()
