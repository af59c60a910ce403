"""Bands of ops: wide where an op errs more than its group, and where few of its kernels are known.

The board of these tests computes all element-wise ops at one rate, but for one op whose kernels
differ by what no feature tells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.kernel import Kernel, extract
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.learned import kernel_models
from latfarm_predictors.learned.kernel_models import KernelModels, ignore_progress
from latfarm_predictors.learned.op_spread import op_spreads, read_spreads
from latfarm_predictors.predict.answer_kernels import kernel_intervals
from latfarm_predictors.samples import KernelSample, prepare


def eltwise(op: str, channels: int, size: int) -> Kernel:
    b = GraphBuilder(op)
    x = b.input((1, channels, size, size))
    made = {"Mul": b.mul, "Add": b.add}
    y = made[op](x, b.input((1, channels, size, size))) if op in made else b.relu(x)
    graph = b.build([y])
    return extract(graph, list(graph.nodes))


def drawn(rng: np.random.Generator, op: str, count: int) -> list[Kernel]:
    sizes = zip(rng.permutation(np.arange(8, 520))[:count], rng.integers(7, 60, count), strict=True)
    return [eltwise(op, int(channels), int(size)) for channels, size in sizes]


def true_ms(rng: np.random.Generator, kernels: list[Kernel]) -> Array:
    works = [workload(kernel) for kernel in kernels]
    base = np.array([0.01 + (w.input_bytes + w.output_bytes) / 5e6 for w in works])
    erratic = np.array([w.type == "Mul" for w in works])
    return base * np.exp(np.where(erratic, 0.15, 0.01) * rng.standard_normal(len(works)))


def fitted() -> KernelModels:
    rng = np.random.default_rng(2)
    kernels = drawn(rng, "Relu", 50) + drawn(rng, "Add", 30) + drawn(rng, "Mul", 6)
    times = true_ms(rng, kernels)
    samples = [KernelSample(k, float(t), 0.0) for k, t in zip(kernels, times, strict=True)]
    return KernelModels.fit(
        prepare(samples, 0.0), floor_ms=1e-6, seed=0, on_progress=ignore_progress, forests=False
    )


@pytest.fixture(scope="module")
def models() -> KernelModels:
    return fitted()


def covered(models: KernelModels, op: str) -> tuple[float, float]:
    """Coverage of 90 % intervals of fresh kernels of an op, and their median width in logs."""
    rng = np.random.default_rng(3)
    kernels = drawn(rng, op, 60)
    times = true_ms(rng, kernels)
    found = models.predict(as_table([workload(kernel) for kernel in kernels]))
    low, high = kernel_intervals(
        models.scores, found.latency_ms, found.sigma, list(found.labels), 0.9
    )
    return float(np.mean((low <= times) & (times <= high))), float(np.median(np.log(high / low)))


def test_the_band_of_an_erratic_op_widens_and_those_of_others_do_not(
    models: KernelModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    coverage, width = covered(models, "Mul")
    others, narrow = covered(models, "Relu")
    assert coverage >= 0.75
    assert others >= 0.85
    assert narrow < 0.5 * width
    # without factors of their own, the few kernels of this op change no quantile of their group
    monkeypatch.setattr(kernel_models, "op_spreads", lambda *_: {})
    plain = fitted()
    assert covered(plain, "Mul")[0] < coverage - 0.2
    assert covered(plain, "Relu")[1] > 0.5 * narrow


def test_factors_survive_in_the_state(models: KernelModels) -> None:
    assert models.op_spread["eltwise", "Mul"] > models.op_spread["eltwise", "Relu"] >= 1.0
    state = models.state()
    assert KernelModels.from_state(state).op_spread == models.op_spread
    values = {name: value for name, value in state.values.items() if name != "op_spread"}
    assert KernelModels.from_state(replace(state, values=values)).op_spread == {}


def test_a_bundle_holds_sound_factors() -> None:
    assert read_spreads([["conv", "Conv", 1.5]]) == {("conv", "Conv"): 1.5}
    assert read_spreads(()) == {}
    for wrong in ([["conv", "Conv", 0.0]], [["conv", "Conv", float("nan")]], [["conv", 2.0]]):
        with pytest.raises(ValueError, match=r"factor of an op|unpack"):
            read_spreads(wrong)


def test_factors_by_hand() -> None:
    many = [("eltwise", "Relu")] * 100
    usual = np.ones(100)
    # one op: it is its group
    assert op_spreads(usual, many, ["memory"] * 100)["eltwise", "Relu"] == pytest.approx(
        np.sqrt(1.01)
    )
    few = [*many, ("eltwise", "Mul"), ("eltwise", "Mul")]
    found = op_spreads(np.concatenate([usual, [5.0, 5.0]]), few, ["memory"] * 102)
    # beside the other op, whose usual score is 1
    assert found["eltwise", "Mul"] == pytest.approx(np.sqrt((4 + 2 * 25) / 6 * 1.5))
    assert found["eltwise", "Relu"] == pytest.approx(np.sqrt(1.01))
    # a glitch counts as at most ten usual scores, and an op that errs less narrows nothing
    wild = op_spreads(np.concatenate([usual, [5e3, 0.0]]), few, ["memory"] * 102)
    assert wild["eltwise", "Mul"] == pytest.approx(np.sqrt((4 + 100) / 6 * 1.5))
    calm = op_spreads(np.concatenate([usual, [0.0, 0.0]]), few, ["memory"] * 102)
    assert calm["eltwise", "Mul"] == pytest.approx(np.sqrt(1.5))
    assert op_spreads(np.zeros(0), [], []) == {}
