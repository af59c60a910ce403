"""Every kernel that the field predicts has a model of its own here, its batch and device included.

The kernels are nn-Meter's (Table 6) and those of newer networks: transposed, 1-D and 3-D
convolutions, matrix products, normalisations, attention's parts, and what moves data about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.groups import Router
from latfarm_predictors.features.table import as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.published.nn_meter import kernel_kinds
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.samples import KernelSample, NetworkSample, prepare
from latfarm_predictors.testing.synthetic import SyntheticBoard

BOARD = SyntheticBoard()
RULES = FusionRules(
    {
        **dict.fromkeys(
            [
                ("Conv", "BatchNormalization"),
                ("Conv", "Relu"),
                ("BatchNormalization", "Relu"),
                ("Add", "Relu"),
                ("HardSigmoid", "Mul"),
            ],
            "fused",
        )
    },
    multi_inbound=2,
    multi_outbound=2,
)
SE_RULES = RULES.replace_pairs(
    dict.fromkeys(
        [
            ("GlobalAveragePool", "Conv"),
            ("GlobalAveragePool", "Relu"),
            ("GlobalAveragePool", "HardSigmoid"),
            ("GlobalAveragePool", "Mul"),
        ],
        "fused",
    )
)

Maker = Callable[[GraphBuilder, int, int, int], str]
"""The kernel's result, given a builder, channels, height and width, and a batch."""


def image(b: GraphBuilder, c: int, s: int, n: int) -> str:
    return b.input((n, c, s, s))


def rows(b: GraphBuilder, c: int, s: int, n: int) -> str:
    return b.input((n, s, c))


def squeeze_excite(b: GraphBuilder, c: int, s: int, n: int) -> str:
    x = image(b, c, s, n)
    y = b.relu(b.conv(b.global_avg_pool(x), max(c // 4, 1), 1))
    return b.mul(x, b.hard_sigmoid(b.conv(y, c, 1)))


def channel_shuffle(b: GraphBuilder, c: int, s: int, n: int) -> str:
    y = b.reshape(image(b, c, s, n), (n, 4, c // 4, s, s))
    return b.reshape(b.transpose(y, (0, 2, 1, 3, 4)), (n, c, s, s))


def conv_1d(b: GraphBuilder, c: int, s: int, n: int) -> str:
    return b.conv(b.input((n, c, s * s)), c, 3)


def conv_3d(b: GraphBuilder, c: int, s: int, n: int) -> str:
    return b.conv(b.input((n, c, 4, s, s)), c, 3)


def attention_product(b: GraphBuilder, c: int, s: int, n: int) -> str:
    return b.matmul(b.input((n, 4, s, c)), b.input((n, 4, c, s)))


KERNELS: dict[str, Maker] = {
    "conv+bn+relu": lambda b, c, s, n: b.relu(b.batch_norm(b.conv(image(b, c, s, n), c, 3))),
    "dwconv+bn+relu": lambda b, c, s, n: b.relu(b.batch_norm(b.depthwise(image(b, c, s, n), 3))),
    "grouped conv": lambda b, c, s, n: b.conv(image(b, c, s, n), c, 3, groups=4),
    "fc": lambda b, c, s, n: b.fc(b.input((n, c * s)), 10 * c),
    "maxpool": lambda b, c, s, n: b.max_pool(image(b, c, s, n), 3, 2),
    "avgpool": lambda b, c, s, n: b.avg_pool(image(b, c, s, n), 3, 2),
    "global pool": lambda b, c, s, n: b.global_avg_pool(image(b, c, s, n)),
    "se": squeeze_excite,
    "hswish": lambda b, c, s, n: b.hard_swish(image(b, c, s, n)),
    "channelshuffle": channel_shuffle,
    "bn+relu": lambda b, c, s, n: b.relu(b.batch_norm(image(b, c, s, n))),
    "add+relu": lambda b, c, s, n: b.relu(b.add(image(b, c, s, n), image(b, c, s, n))),
    "concat": lambda b, c, s, n: b.concat([image(b, c, s, n), image(b, 2 * c, s, n)]),
    "transposed conv": lambda b, c, s, n: b.conv_transpose(image(b, c, s, n), c, 2, stride=2),
    "conv 1-D": conv_1d,
    "conv 3-D": conv_3d,
    "matmul": attention_product,
    "layer-norm": lambda b, c, s, n: b.layer_norm(rows(b, c, s * s, n)),
    "softmax": lambda b, c, s, n: b.softmax(rows(b, c, s * s, n)),
    "gelu": lambda b, c, s, n: b.gelu(rows(b, c, s * s, n)),
    "sigmoid": lambda b, c, s, n: b.sigmoid(image(b, c, s, n)),
    "leaky relu": lambda b, c, s, n: b.leaky_relu(image(b, c, s, n)),
    "lrn": lambda b, c, s, n: b.lrn(image(b, c, s, n), 5),
    "resize": lambda b, c, s, n: b.resize(image(b, c, s, n), 2.0),
    "split": lambda b, c, s, n: b.split(image(b, c, s, n), (c // 2, c - c // 2))[0],
    "slice": lambda b, c, s, n: b.slice(image(b, c, s, n), (0,), (c // 2,), (1,)),
    "pad": lambda b, c, s, n: b.pad(image(b, c, s, n), (0, 0, 1, 1, 0, 0, 1, 1)),
    "reduce": lambda b, c, s, n: b.reduce_mean(image(b, c, s, n), (2, 3)),
    "transpose": lambda b, c, s, n: b.transpose(image(b, c, s, n), (0, 2, 3, 1)),
}


def graph_of(name: str, c: int, s: int, n: int = 1) -> Graph:
    b = GraphBuilder(name)
    return b.build([KERNELS[name](b, c, s, n)])


def measured(graph: Graph, rules: FusionRules, rng: np.random.Generator) -> list[KernelSample]:
    return [BOARD.kernel_sample(kernel, rng) for kernel in split(graph, rules)]


SIZES = [(c, s) for c in (8, 24, 64, 136) for s in (7, 26)]


@pytest.fixture(scope="module")
def fitted() -> PlatformPredictor:
    rng = np.random.default_rng(0)
    samples = [
        sample
        for name in KERNELS
        for i, (c, s) in enumerate(SIZES)
        for sample in measured(graph_of(name, c, s, n=4 if i % 3 == 2 else 1), RULES, rng)
    ]
    networks = [
        NetworkSample(graph, BOARD.network_true_ms(graph, RULES))
        for graph in [graph_of(name, 32, 20) for name in list(KERNELS)[::2]]
    ]
    return fit_predictor(
        PlatformSamples("all-1t", RULES, samples, networks, call_overhead_ms=BOARD.call_ms),
        baselines=False,
    )


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_has_a_model_of_its_own(name: str, fitted: PlatformPredictor) -> None:
    graph = graph_of(name, 48, 18)
    answer = fitted.predict(graph)
    assert answer.unsupported == ()
    for kernel, work in zip(answer.kernels, split(graph, RULES), strict=True):
        assert kernel.source in ("gp", "stack", "measured", "fallback:view"), kernel
        assert kernel.configuration["family"] != "other"
        truth = BOARD.kernel_true_ms(workload(work))
        assert kernel.latency_ms == pytest.approx(truth, rel=0.5, abs=0.002)


def test_kernels_of_all_kinds_are_predicted_well(fitted: PlatformPredictor) -> None:
    graphs = [graph_of(name, 48, 18) for name in KERNELS]
    works = [workload(kernel) for graph in graphs for kernel in split(graph, RULES)]
    truth = [BOARD.kernel_true_ms(work) for work in works]
    shown = [k.latency_ms for answer in fitted.predict_many(graphs) for k in answer.kernels]
    kept = [i for i, ms in enumerate(truth) if ms > 0]  # views take no time
    scores = evaluate(np.array(shown)[kept], np.array(truth)[kept])
    assert scores.within10 > 0.8


@pytest.mark.parametrize("name", KERNELS)
def test_a_batch_is_part_of_a_kernel(name: str, fitted: PlatformPredictor) -> None:
    one, four = (fitted.predict(graph_of(name, 48, 18, n)) for n in (1, 4))
    assert four.latency_ms > one.latency_ms
    assert [k.configuration for k in one.kernels] != [k.configuration for k in four.kernels]


def test_a_block_that_is_one_kernel_is_one_kind_of_nn_meter() -> None:
    kinds = {}
    for name in ("se", "hswish", "channelshuffle", "bn+relu", "add+relu", "concat", "maxpool"):
        found = split(graph_of(name, 48, 18), SE_RULES)
        table = as_table([workload(kernel) for kernel in found])
        kinds[name] = set(kernel_kinds(table))
    assert "se" in kinds["se"]
    assert kinds["hswish"] == {"hswish"}
    assert "channelshuffle" in kinds["channelshuffle"]
    assert kinds["bn+relu"] == {"bn"}
    assert kinds["add+relu"] == {"add"}
    assert kinds["concat"] == {"concat"}
    assert kinds["maxpool"] == {"maxpool"}


def on(kernel: Kernel, device: str) -> Kernel:
    return replace(kernel, device=device) if kernel.graph else kernel


def test_a_device_is_part_of_a_kernel() -> None:
    """A delegate leaves softmax to a CPU ten times as slow; each device has models of its own."""
    rng = np.random.default_rng(1)
    samples = []
    for c, s in SIZES:
        for name, device, times in (("bn+relu", "npu", 1.0), ("softmax", "cpu", 10.0)):
            for sample in measured(graph_of(name, c, s), RULES, rng):
                kernel = on(sample.kernel, device)
                samples.append(KernelSample(kernel, times * sample.latency_ms))
    fitted = fit_predictor(PlatformSamples("npu-1t", RULES, samples, []), baselines=False)
    assert {group.group for group in fitted.groups} == {"memory", "memory@cpu"}
    again = predictor_of(state_of(fitted))
    for name, times in (("bn+relu", 1.0), ("softmax", 10.0)):
        graph = graph_of(name, 48, 18)
        truth = times * (BOARD.call_ms + BOARD.kernel_true_ms(workload(split(graph, RULES)[0])))
        answer = fitted.predict(graph)
        assert answer.kernels[0].latency_ms == pytest.approx(truth, rel=0.25)
        assert again.predict(graph) == answer


def test_the_same_kernel_on_two_devices_is_two_rows() -> None:
    rng = np.random.default_rng(2)
    sample = measured(graph_of("softmax", 24, 14), RULES, rng)[0]
    twice = [sample, replace(sample, kernel=on(sample.kernel, "npu"), latency_ms=1.0)]
    training = prepare([*twice, *twice], 0.0)
    assert training.devices == ("cpu", "npu")
    assert len(training.workloads) == 2
    router, groups = Router.of(training.table, training.devices)
    assert Router.from_json(router.to_json()) == router
    assert sum(len(found) for found in groups.values()) == 2
