"""Convolutions on images have a model of their own only where it predicts better."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.learned.kernel_models import KernelModels, ignore_progress
from latfarm_predictors.models import image_split
from latfarm_predictors.models.base import Observations
from latfarm_predictors.models.image_split import fit_apart, on_image
from latfarm_predictors.models.sibling import Sibling
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.samples import Training, prepare
from latfarm_predictors.testing.synthetic import SyntheticBoard, random_kernel

pytestmark = pytest.mark.slow

BOARD = SyntheticBoard()
OTHERS, IMAGES = 55, 50
WINDOWS = (1, 3, 5, 7, 9)


def convolution(rng: np.random.Generator, channels: int | None) -> Workload:
    """A convolution; with `channels`, on a map with that many channels and as large as an image."""
    work = workload(random_kernel(rng, "conv"))
    if channels is None:
        return work._replace(in_channels=16 * int(rng.integers(1, 16)))
    side, window, out = int(rng.integers(6, 17)) * 16, int(rng.choice(WINDOWS)), work.out_channels
    return work._replace(
        in_h=side,
        in_w=side,
        in_channels=channels,
        kernel_h=window,
        kernel_w=window,
        stride_h=2,
        stride_w=2,
        out_h=side // 2,
        out_w=side // 2,
        macs=channels * window**2 * out * (side // 2) ** 2,
        input_bytes=4 * channels * side**2,
        output_bytes=4 * out * (side // 2) ** 2,
    )


def fetched_ms(work: Workload) -> float:
    """Latency of a convolution that fetches its image several times, as its window demands."""
    passes = work.out_channels**0.3 * {1: 1.0, 3: 1.1, 5: 3.0, 7: 2.0, 9: 9.0}[work.kernel_h]
    return float(1e-6 * passes * work.in_h**2 * (2.0 + math.sin(work.out_channels / 9.0)))


def training() -> Training:
    """Kernels of which those on images follow a law of their own."""
    rng = np.random.default_rng(3)
    works = [convolution(rng, None) for _ in range(OTHERS)]
    works += [convolution(rng, 3) for _ in range(IMAGES)]
    samples = [BOARD.kernel_sample(random_kernel(rng, "conv"), rng) for _ in works]
    made = prepare(samples, 0.0)
    latency = np.array([latency_of(work) for work in works])
    return replace(
        made,
        workloads=tuple(works),
        table=as_table(works),
        latency_ms=latency,
        noise=np.full(len(works), 1e-6),
        cold_extra_ms=np.full(len(works), np.nan),
        padding_ms=np.zeros(len(works)),
        networks=tuple([f"network {row % 30}" for row in range(len(works))]),
        devices=("",) * len(works),
    )


def latency_of(work: Workload) -> float:
    return fetched_ms(work) if work.in_channels == 3 else BOARD.kernel_true_ms(work)


def fit(given: Training) -> KernelModels:
    return KernelModels.fit(
        given, floor_ms=1e-6, seed=0, on_progress=ignore_progress, forests=False
    )


@pytest.fixture(autouse=True, scope="module")
def few_are_enough() -> Iterator[None]:
    """Splits groups with few kernels, because a fit with as many as usual would take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_split, "LEAST_ROWS", 40)
        yield


@pytest.fixture(scope="module")
def unlike() -> tuple[KernelModels, Training]:
    given = training()
    return fit(given), given


def images(count: int, seed: int) -> tuple[Table, Array]:
    """Convolutions on images that no model was trained on, and their latencies in ms."""
    rng = np.random.default_rng(seed)
    works = [convolution(rng, 3) for _ in range(count)]
    return as_table(works), np.array([fetched_ms(work) for work in works])


def test_images_have_few_channels_and_a_map() -> None:
    rng = np.random.default_rng(0)
    image, deep = convolution(rng, 3), convolution(rng, None)
    table = as_table(
        [
            deep,
            image,
            image._replace(in_channels=5),
            image._replace(in_channels=1),
            image._replace(in_h=1, kernel_h=1),
            image._replace(family="dwconv"),
        ]
    )
    assert on_image(table).tolist() == [1, 3]


def test_images_with_a_law_of_their_own_get_a_model_of_their_own(
    unlike: tuple[KernelModels, Training],
) -> None:
    models, given = unlike
    assert set(models.images) == {"conv"}
    table, truth = images(60, 11)
    together = Stack().fit(given.table, given.latency_ms, given.noise)

    def miss(found: Array) -> float:
        return float(np.abs(np.log(found / truth)).mean())

    assert miss(models.predict(table).latency_ms) < 0.9 * miss(together.predict(table)[0])
    (summary,) = models.summaries
    assert (summary.group, summary.rows) == ("conv", OTHERS + IMAGES)


def test_each_kind_is_predicted_by_its_own_model(unlike: tuple[KernelModels, Training]) -> None:
    models, given = unlike
    mixed = given.table.take(np.array([0, OTHERS, 1, OTHERS + 1]))
    found = models.predict(mixed)
    others = models.stacks["conv"].predict(mixed.take(np.array([0, 2])))
    own = models.images["conv"].predict(mixed.take(np.array([1, 3])))
    sigma = found.sigma / models.op_spread["conv", "Conv"]
    for mine, theirs, told in zip(others, own, (found.latency_ms, sigma), strict=True):
        assert np.allclose(told, [mine[0], theirs[0], mine[1], theirs[1]], rtol=1e-12)
    alone, _ = images(5, 3)
    only = models.predict(alone)
    assert np.array_equal(only.latency_ms, models.images["conv"].predict(alone)[0])


def test_left_out_rows_are_predicted_by_the_model_of_their_kind(
    unlike: tuple[KernelModels, Training],
) -> None:
    models, _ = unlike
    assert np.array_equal(models.unseen_ms[:OTHERS], models.stacks["conv"].unseen_ms)
    assert np.array_equal(models.unseen_ms[OTHERS:], models.images["conv"].unseen_ms)


def test_a_split_reads_back_equal(unlike: tuple[KernelModels, Training]) -> None:
    models, given = unlike
    again = KernelModels.from_state(models.state())
    ours, theirs = models.predict(given.table), again.predict(given.table)
    assert np.array_equal(ours.latency_ms, theirs.latency_ms)
    assert np.array_equal(ours.sigma, theirs.sigma)


def test_a_state_of_an_older_version_has_no_split(unlike: tuple[KernelModels, Training]) -> None:
    models, given = unlike
    state = models.state()
    values = {name: value for name, value in state.values.items() if name != "images"}
    again = KernelModels.from_state(replace(state, values=values))
    assert not again.images
    found = again.predict(given.table).latency_ms
    assert np.array_equal(found, models.stacks["conv"].predict(given.table)[0])


def test_a_sibling_platform_keeps_the_split(unlike: tuple[KernelModels, Training]) -> None:
    models, given = unlike
    sibling = Sibling.from_state(Sibling.of(models).within(given.table).state())
    found = sibling.latency_ms(given.table)
    parts = (models.stacks, given.table.take(np.arange(OTHERS)), found[:OTHERS])
    own = (models.images, given.table.take(np.arange(OTHERS, OTHERS + IMAGES)), found[OTHERS:])
    for stacks, table, told in (parts, own):
        assert np.allclose(told, stacks["conv"].gp.predict(table)[0], rtol=1e-9)


def test_a_group_is_not_split_if_one_model_predicts_it_better() -> None:
    given = training()
    table, latency, noise, sources = given.table, given.latency_ms, given.noise, given.networks
    known = latency * np.exp(np.resize([0.01, -0.01], len(latency)))
    assert fit_apart(Observations(table, latency, noise, sources), known, seed=0) is None
    unknown = latency * np.exp(np.resize([0.5, -0.5], len(latency)))
    found = fit_apart(Observations(table, latency, noise, sources), unknown, seed=0)
    assert found is not None
    assert np.array_equal(found.unseen_ms[OTHERS:], found.images.unseen_ms)
    assert np.array_equal(found.unseen_sigma[:OTHERS], found.others.unseen_sigma)


@pytest.mark.parametrize("few", ["images", "others"])
def test_a_group_with_few_of_either_kind_is_not_split(few: str) -> None:
    given = training()
    least = image_split.LEAST_ROWS
    others = np.arange(OTHERS if few == "images" else least - 1)
    of_images = np.arange(OTHERS, OTHERS + (least - 1 if few == "images" else IMAGES))
    rows = np.concatenate([others, of_images])
    latency, noise = given.latency_ms[rows], given.noise[rows]
    far = np.full(len(rows), 1e3)
    table, sources = given.table.take(rows), [""] * len(rows)
    assert fit_apart(Observations(table, latency, noise, sources), far, seed=0) is None
