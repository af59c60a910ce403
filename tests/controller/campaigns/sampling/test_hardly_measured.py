"""Ops that hardly any measured kernel has get kernels before uncertain layers do."""

from __future__ import annotations

from collections import Counter

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.sampling.base import Excluded, SamplingTask
from latfarm_controller.campaigns.sampling.hardly_measured import hardly_measured
from latfarm_controller.campaigns.sampling.latfarm import LatfarmSampler
from latfarm_controller.campaigns.sampling.zoo_kernels import network_layers
from latfarm_controller.testing.campaigns import SimulatedPlatform
from latfarm_controller.zoo.draws.kernel_kinds import op_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.samples import KernelSample

RULES = FusionRules(pairs={("Conv", "BatchNormalization"): "fused", ("Conv", "Relu"): "fused"})
GATE = ("eltwise", "HardSigmoid")
FAMILIES = {name: zoo.find(name)[0] for name in ("resnet18", "mobilenet-v3-large")}
LAYERS = network_layers(FAMILIES, RULES)


def bytes_of(kernel: Kernel) -> float:
    work = next(layer.workload for layer in LAYERS if layer.kernel == kernel)
    return work.input_bytes + work.output_bytes


def test_an_op_without_kernels_gets_the_largest_and_one_in_the_middle() -> None:
    known = [layer.kernel for layer in LAYERS if op_of(layer.kernel) != GATE]
    found = hardly_measured(LAYERS, known, 10)
    assert [op_of(kernel) for kernel in found] == [GATE, GATE]
    sizes = sorted(bytes_of(layer.kernel) for layer in LAYERS if op_of(layer.kernel) == GATE)
    assert bytes_of(found[0]) == sizes[-1]
    assert sizes[0] < bytes_of(found[1]) < sizes[-1]


def test_an_op_with_one_kernel_gets_one_more_and_one_with_two_none() -> None:
    gates = [layer.kernel for layer in LAYERS if op_of(layer.kernel) == GATE]
    known = [layer.kernel for layer in LAYERS if op_of(layer.kernel) != GATE]
    others = [layer for layer in LAYERS if layer.kernel not in gates[:1]]
    assert len(hardly_measured(others, [*known, gates[0]], 10)) == 1
    assert hardly_measured(LAYERS, [*known, *gates[:2]], 10) == []


def test_ops_of_more_networks_come_first() -> None:
    found = hardly_measured(LAYERS, [], 100)
    assert len(set(map(op_of, found))) == len({op_of(layer.kernel) for layer in LAYERS})
    assert max(Counter(map(op_of, found)).values()) == 2
    few = hardly_measured(LAYERS, [], 3)
    assert few == found[:3]
    assert GATE not in map(op_of, few)  # only one of the two families has it
    assert hardly_measured(LAYERS, [], 0) == hardly_measured(LAYERS, [], -1) == []


@pytest.mark.slow
def test_the_sampler_measures_an_op_that_profiled_networks_did_not_show() -> None:
    shown = FAMILIES["resnet18"].build(seed=5)
    board = SimulatedPlatform(rules=RULES)
    samples = [KernelSample(k, board.exact_ms(k.graph)) for k in split(shown, RULES)]
    task = SamplingTask(
        60, RULES, Excluded(), families=list(FAMILIES), initial=10, batch=50,
        known=[sample.kernel for sample in samples],
    )  # fmt: skip
    sampler = LatfarmSampler(task)
    first = sampler.next_batch(samples)
    samples += [KernelSample(k, board.exact_ms(k.graph)) for k in first]
    second = sampler.next_batch(samples)
    assert sum(op_of(kernel) == GATE for kernel in (*first, *second)) >= 2
