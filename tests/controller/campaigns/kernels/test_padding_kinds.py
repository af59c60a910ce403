"""Smart padding isolates every kind of layer: its interval contains the known time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from statistics import fmean, median

import pytest
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kernels.padding import PaddingCampaign, PaddingOptions
from latfarm_controller.testing.campaigns import drive
from latfarm_controller.zoo.transformers.attention import gelu_tanh, rms_norm
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome

from benchmarks.platforms import simulated_boards

NPU = BoardProfile.from_json(simulated_boards.profile("npu", noise=0.0))
PAIRS = [(first, second) for first, second in NPU.fused_pairs if first != "Add"]
RULES = FusionRules(pairs=dict.fromkeys(PAIRS, "fused"), multi_inbound=2)
SHAPES = 8

Maker = Callable[[GraphBuilder, Random], str]


def image(b: GraphBuilder, draw: Random, batch: int = 1) -> str:
    side = draw.choice((7, 14, 28, 56))
    return b.input((batch, draw.choice((16, 24, 64, 160)), side, side))


def tokens(b: GraphBuilder, draw: Random) -> str:
    return b.input((1, draw.choice((49, 64, 196)), draw.choice((96, 192, 384))))


def channels(draw: Random) -> int:
    return draw.choice((16, 32, 72, 128, 256))


def same_again(b: GraphBuilder, x: str) -> str:
    return b.input(b.type_of(x).shape)


def attention(b: GraphBuilder, length: int) -> str:
    query, key, value = (b.input((1, 4, length, 32)) for _ in range(3))
    scores = b.matmul(query, b.transpose(key, (0, 1, 3, 2)))
    return b.matmul(b.softmax(b.div(scores, b.scalar_like(scores, 5.6))), value)


KINDS: dict[str, Maker] = {
    "conv": lambda b, d: b.conv(image(b, d), channels(d), d.choice((1, 3, 5))),
    "conv+relu": lambda b, d: b.relu(b.conv(image(b, d), channels(d), 3)),
    "conv, batch 4": lambda b, d: b.conv(image(b, d, 4), channels(d), 3),
    "conv, strided": lambda b, d: b.conv(image(b, d), channels(d), 3, 2),
    "conv, dilated": lambda b, d: b.conv(image(b, d), channels(d), 3, dilation=2),
    "conv, grouped": lambda b, d: b.conv(image(b, d), channels(d), 3, groups=8),
    "conv, asymmetric": lambda b, d: b.conv(image(b, d), channels(d), d.choice(((1, 7), (5, 1)))),
    "conv, transposed": lambda b, d: b.conv_transpose(image(b, d), channels(d), 2, 2),
    "conv 1-D": lambda b, d: b.conv(b.input((1, channels(d), 400)), channels(d), 9, 2),
    "conv 3-D": lambda b, d: b.conv(b.input((1, 16, 8, 28, 28)), channels(d), 3),
    "depthwise": lambda b, d: b.depthwise(image(b, d), d.choice((3, 5)), d.choice((1, 2))),
    "fc": lambda b, d: b.fc(b.input((1, d.choice((256, 1024, 4096)))), d.choice((10, 1000))),
    "max pool": lambda b, d: b.max_pool(image(b, d), 3, 2, "same"),
    "average pool": lambda b, d: b.avg_pool(image(b, d), d.choice((2, 3))),
    "global pool": lambda b, d: b.global_avg_pool(image(b, d)),
    "pool 3-D": lambda b, _: b.max_pool(b.input((1, 16, 8, 28, 28)), 2),
    "add": lambda b, d: b.add(x := image(b, d), same_again(b, x)),
    "concat": lambda b, d: b.concat([x := image(b, d), same_again(b, x), same_again(b, x)]),
    "relu": lambda b, d: b.relu(image(b, d)),
    "relu of volumes": lambda b, _: b.relu(b.input((1, 16, 8, 28, 28))),
    "hard swish": lambda b, d: b.hard_swish(image(b, d)),
    "sigmoid": lambda b, d: b.sigmoid(image(b, d)),
    "gelu of tokens": lambda b, d: b.gelu(tokens(b, d)),
    "matmul": lambda b, d: b.matmul(
        b.input((1, 4, n := d.choice((49, 196)), 32)), b.input((1, 4, 32, n))
    ),
    "matmul by weights": lambda b, d: b.matmul(x := tokens(b, d), _weights(b, x, d)),
    "softmax": lambda b, d: b.softmax(tokens(b, d)),
    "layer norm": lambda b, d: b.layer_norm(tokens(b, d)),
    "softmax, channels last": lambda b, d: b.softmax(b.input((1, 28, 28, channels(d)))),
    "rms norm": lambda b, d: rms_norm(b, tokens(b, d)),
    "gelu by tanh": lambda b, d: gelu_tanh(b, tokens(b, d)),
    "softmax of scores": lambda b, d: b.softmax(b.input((1, 4, n := d.choice((49, 196)), n))),
    "attention": lambda b, d: attention(b, d.choice((49, 196))),
    "windows": lambda b, d: b.transpose(b.input((1, 4, 7, 4, 7, channels(d))), (0, 1, 3, 2, 4, 5)),
    "view": lambda b, d: b.reshape(x := tokens(b, d), (1, *b.type_of(x).shape[:0:-1])),
}


def _weights(b: GraphBuilder, x: str, draw: Random) -> str:
    return b.weight((b.type_of(x).shape[-1], draw.choice((96, 384, 768))))


def lums(kind: str, count: int = SHAPES) -> list[Kernel]:
    """Layers of one kind with different shapes."""
    draw = Random(kind)
    found: dict[str, Kernel] = {}
    for _ in range(4 * count):
        b = GraphBuilder(kind)
        kernels = split(b.build([KINDS[kind](b, draw)]), RULES)
        found[kernels[-1].kernel_id] = kernels[-1]
    return list(found.values())[:count]


def true_ms(kernel: Kernel) -> float:
    return sum(layer.latency_ms for layer in exact_layers(kernel.graph.to_json(), NPU))


def survey(kernels: list[Kernel], noise: float) -> PaddingCampaign:
    exact: dict[str, float] = {}

    def measure(request: MeasurementRequest) -> Measurement:
        graph = request.graph
        if hash_of(graph) not in exact:
            exact[hash_of(graph)] = exact_latency_ms(graph.to_json(), NPU)
        factor = max(0.2, Random(request.request_id).gauss(1.0, noise))
        return Measurement(
            request.request_id,
            hash_of(graph),
            request.platform,
            request.purpose,
            Outcome.OK,
            latency_ms=exact[hash_of(graph)] * factor,
            mad_ms=exact[hash_of(graph)] * noise * 0.5,
            board_ms=20.0,
            settings=request.settings,
        )

    options = PaddingOptions(
        graphs=[kernel.graph.to_json() for kernel in kernels], rules=RULES.to_json()
    )
    campaign = PaddingCampaign("sim-npu", options)
    drive(campaign, measure)
    return campaign


def inside(campaign: PaddingCampaign) -> list[bool]:
    found = []
    for time in campaign.times():
        assert time.interval is not None, (time.kernel.type, time.rejected)
        exact = true_ms(time.kernel)
        low, high = time.interval.lower_ms, time.interval.upper_ms
        found.append(low - 1e-9 <= exact <= high + 1e-9)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_contains_the_true_time(kind: str) -> None:
    kernels = lums(kind)
    campaign = survey(kernels, noise=0.0)
    assert all(inside(campaign))
    overhead_ms = campaign.call_overhead_ms
    assert overhead_ms is not None
    alone = campaign.single()
    if kind == "fc":
        return  # hardly any data is moved in or out
    # Alone, a layer also pays for moving its data, which takes longer than the layer here.
    excess = [(alone[k.kernel_id].latency_ms - overhead_ms) / true_ms(k) for k in kernels]
    assert median(excess) > 1.3


def test_under_noise_95_of_100_intervals_contain_the_true_time() -> None:
    kernels = [kernel for kind in KINDS for kernel in lums(kind)]
    assert len({kernel.kernel_id for kernel in kernels}) > 150
    assert fmean(inside(survey(kernels, noise=0.03))) >= 0.95
