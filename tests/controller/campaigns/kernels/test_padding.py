"""Smart padding on a simulated NPU whose inputs and outputs cost more than its layers do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from statistics import fmean
from typing import Any

import pytest
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile, SimulatedTiles
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.prior import prior_rules
from latfarm_controller.campaigns.kernels.padding import PaddingCampaign, PaddingOptions
from latfarm_controller.campaigns.kernels.padding_results import PaddedTime, padded_samples
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.campaigns.pads.models import Pad, padded, padding_only
from latfarm_controller.errors import UsageError
from latfarm_controller.testing.campaigns import drive
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer
from latfarm_predictors.samples import prepare

PAIRS = [("Conv", "BatchNormalization"), ("Conv", "Relu"), ("Conv", "Clip"), ("Gemm", "Relu")]
NPU = BoardProfile(
    "sim-npu",
    peak_macs_per_ms=5e8,
    vector_ops_per_ms=2e7,
    bandwidth_bytes_per_ms=2e7,
    overhead_ms=0.005,
    call_overhead_ms=0.05,
    io_bytes_per_ms=4e6,
    tiles=SimulatedTiles(out_channels=32, in_channels=8, width=4),
    fused_pairs=frozenset(PAIRS),
)
RULES = FusionRules(pairs=dict.fromkeys(PAIRS, "fused"))
FAMILIES = ["mobilenet-v1", "resnet18", "squeezenet", "googlenet"]


class Board:
    """Answers like the simulated NPU; the noise depends on nothing but the request."""

    def __init__(self, noise: float = 0.0, broken: str = "", profile: BoardProfile = NPU) -> None:
        self._noise = noise
        self._profile = profile
        self._broken = broken
        self._exact: dict[str, float] = {}
        self.answered: dict[str, Measurement] = {}

    def measure(self, request: MeasurementRequest) -> Measurement:
        graph = request.graph
        if hash_of(graph) not in self._exact:
            self._exact[hash_of(graph)] = exact_latency_ms(graph.to_json(), self._profile)
        exact = self._exact[hash_of(graph)]
        factor = max(0.2, Random(request.request_id).gauss(1.0, self._noise))
        bad = self._broken and any(node.op == self._broken for node in graph.nodes)
        answer = Measurement(
            request_id=request.request_id,
            graph_hash=hash_of(graph),
            platform=request.platform,
            purpose=request.purpose,
            outcome=Outcome.MODEL_ERROR if bad else Outcome.OK,
            error_code="UNSUPPORTED_OP" if bad else "",
            latency_ms=None if bad else exact * factor,
            mad_ms=None if bad else exact * self._noise * 0.5,
            board_ms=20.0,
            settings=request.settings,
        )
        self.answered[request.request_id] = answer
        return answer


def true_ms(kernel: Kernel, profile: BoardProfile = NPU) -> float:
    return sum(layer.latency_ms for layer in exact_layers(kernel.graph.to_json(), profile))


def survey(**config: Any) -> PaddingCampaign:
    options = {"count": 40, "families": FAMILIES, **config}
    return PaddingCampaign("sim-npu", PaddingOptions.model_validate(options), RULES)


def inside(time: PaddedTime, profile: BoardProfile = NPU) -> bool:
    assert time.interval is not None
    exact = true_ms(time.kernel, profile)
    return time.interval.lower_ms - 1e-9 <= exact <= time.interval.upper_ms + 1e-9


def kernel_of(make: Callable[[GraphBuilder], str]) -> Kernel:
    b = GraphBuilder("lum")
    return split(b.build([make(b)]), RULES)[-1]


@cache
def lums() -> dict[str, Kernel]:
    """One layer of each kind that padding has to isolate."""

    def image(b: GraphBuilder) -> str:
        return b.input((1, 32, 28, 28))

    made: dict[str, Callable[[GraphBuilder], str]] = {
        "conv": lambda b: b.relu(b.conv(image(b), 48, 3)),
        "strided": lambda b: b.conv(image(b), 64, 3, 2),
        "dilated": lambda b: b.conv(image(b), 32, 3, dilation=2),
        "grouped": lambda b: b.conv(image(b), 64, 3, groups=4),
        "asymmetric": lambda b: b.conv(image(b), 48, (1, 7)),
        "transposed": lambda b: b.conv_transpose(image(b), 16, 2, 2),
        "conv 1-D": lambda b: b.conv(b.input((1, 32, 400)), 64, 9, 2),
        "conv 3-D": lambda b: b.conv(b.input((1, 8, 8, 28, 28)), 16, 3),
        "depthwise": lambda b: b.depthwise(image(b), 5, 2),
        "fc": lambda b: b.fc(b.input((1, 2048)), 1000),
        "max pool": lambda b: b.max_pool(image(b), 3, 2, "same"),
        "avg pool": lambda b: b.avg_pool(image(b), 2),
        "global pool": lambda b: b.global_avg_pool(image(b)),
        "add": lambda b: b.add(image(b), image(b)),
        "concat": lambda b: b.concat([image(b), b.input((1, 96, 28, 28)), image(b)]),
        "relu": lambda b: b.relu(image(b)),
        "clip, batch 4": lambda b: b.clip(b.input((4, 32, 14, 14)), 0.0, 6.0),
        "tanh of tokens": lambda b: b.tanh(b.input((1, 128, 256))),
        "matmul": lambda b: b.matmul(b.input((1, 4, 64, 32)), b.input((1, 4, 32, 64))),
        "softmax": lambda b: b.softmax(b.input((1, 64, 256))),
    }
    return {name: kernel_of(make) for name, make in made.items()}


def test_padded_models_contain_the_unchanged_layer_and_small_inputs() -> None:
    for name, kernel in lums().items():
        model = padded(kernel)
        whole = model.graph
        elements = [whole.type_of(t).elements for t in (*whole.inputs, *whole.outputs)]
        own_tensors = (*kernel.graph.inputs, *kernel.graph.outputs)
        wide = sum(kernel.graph.type_of(t).elements for t in own_tensors)
        assert sum(elements) < wide / 6, name
        own = [node for node in whole.nodes if node.name in model.own]
        assert [node.op for node in own] == [node.op for node in kernel.graph.nodes], name
        if not model.fuses(RULES):
            ids = {found.kernel_id for found in split(whole, RULES)}
            assert {found.kernel_id for found in split(kernel.graph, RULES)} <= ids, name


def test_padding_only_models_differ_by_one_pad() -> None:
    pad = Pad((1, 32, 28, 28), "float32")
    base, fork, twin = (padding_only(pad, form) for form in ("base", "fork", "twin"))
    assert [node.op for node in base.nodes] == ["Conv", "Relu", "Conv", "Relu"]
    assert (len(base.inputs), len(base.outputs)) == (1, 1)
    assert (len(fork.inputs), len(fork.outputs)) == (1, 2)
    assert (len(twin.inputs), len(twin.outputs)) == (2, 2)
    assert macs_of(base) == 2 * 32 * 28 * 28
    assert padded(lums()["conv"]).graph.type_of("input").shape == (1, 1, 28, 28)


@pytest.mark.parametrize("bounds", ["paper", "split"])
def test_every_kind_of_layer_is_isolated(bounds: str) -> None:
    graphs = [kernel.graph.to_json() for kernel in lums().values()]
    campaign = survey(graphs=graphs, bounds=bounds, widest=10.0)
    drive(campaign, Board().measure)
    times = dict(zip(lums(), campaign.times(), strict=True))
    assert not {name: time.rejected for name, time in times.items() if time.rejected}
    for name, time in times.items():
        assert inside(time), name
        assert time.interval is not None
        if bounds == "split" or name in ("add", "concat", "matmul", "softmax", "dilated"):
            assert time.interval.middle_ms == pytest.approx(true_ms(time.kernel), rel=1e-6), name
        alone = campaign.single()[time.kernel.kernel_id]
        assert alone.latency_ms > time.interval.upper_ms, name
    # A clamp would be fused with the pad's convolution, so that a pooling stands between them.
    assert {name for name, time in times.items() if time.separated} == {"relu", "clip, batch 4"}


@pytest.mark.slow
def test_padding_is_close_to_the_truth_where_single_layers_are_far_from_it() -> None:
    campaign, board = survey(count=60), Board()
    drive(campaign, board.measure)
    overhead_ms = campaign.call_overhead_ms
    assert overhead_ms is not None
    accepted = [time for time in campaign.times() if not time.rejected]
    assert len(accepted) > 40
    errors, errors_alone = [], []
    for time in accepted:
        exact = true_ms(time.kernel)
        assert time.interval is not None
        alone = campaign.single()[time.kernel.kernel_id].latency_ms - overhead_ms
        errors.append(abs(time.interval.middle_ms / exact - 1))
        errors_alone.append(abs(alone / exact - 1))
    assert fmean(errors) < 0.02
    assert fmean(errors_alone) > 1.0
    assert all(map(inside, accepted))


@pytest.mark.slow
@pytest.mark.parametrize("bounds", ["paper", "split"])
def test_under_noise_the_interval_contains_the_truth(bounds: str) -> None:
    campaign = survey(count=200, bounds=bounds, single=False)
    drive(campaign, Board(noise=0.03).measure)
    times = [time for time in campaign.times() if time.interval is not None]
    assert len(times) >= 195
    assert fmean(map(inside, times)) >= 0.95
    accepted = [time for time in times if not time.rejected]
    assert len(accepted) > 120
    assert fmean(map(inside, accepted)) >= 0.95
    errors = [
        abs(time.interval.middle_ms / true_ms(time.kernel) - 1)
        for time in accepted
        if time.interval is not None
    ]
    assert fmean(errors) < 0.08


@pytest.mark.slow
def test_pads_may_cost_more_at_inputs_than_at_outputs() -> None:
    # Activations are slow: a pad at an input has a large one, a pad at an output a tiny one.
    profile = replace(NPU, vector_ops_per_ms=1e7, bandwidth_bytes_per_ms=1e9)
    covered: dict[str, list[bool]] = {}
    for bounds in ("paper", "split"):
        campaign = survey(count=100, bounds=bounds, repeats=2, most_repeats=2, single=False)
        drive(campaign, Board(profile=profile).measure)
        covered[bounds] = [inside(time, profile) for time in campaign.times()]
    # Equation 4 assumes that a tensor whose pad costs more at an input costs more at an output too.
    assert fmean(covered["paper"]) >= 0.95
    assert all(covered["split"])


@pytest.mark.slow
def test_noisy_kernels_are_measured_more_often_up_to_a_limit() -> None:
    quiet, noisy = survey(count=20, single=False), survey(count=20, single=False, most_repeats=5)
    drive(quiet, Board().measure)
    requests = drive(noisy, Board(noise=0.05).measure)
    counts: dict[str, int] = {}
    for request in requests:
        counts[hash_of(request.graph)] = counts.get(hash_of(request.graph), 0) + 1
    assert quiet.outcome()["measurements"] == 3 * len(counts)
    assert set(counts.values()) > {5}
    assert max(counts.values()) == 5


def test_a_layer_that_fuses_with_its_pads_or_has_none_is_rejected_with_the_reason() -> None:
    pairs = [*PAIRS, ("MaxPool", "Relu"), ("AveragePool", "Relu"), ("Conv", "MaxPool")]
    rules = FusionRules(pairs=dict.fromkeys(pairs, "fused"))
    b = GraphBuilder("ids")
    ids = b.op("Gather", [b.weight((100, 64)), b.input((1, 16), "int64")], {"axis": 0})
    graphs = [lums()["relu"].graph.to_json(), b.build([ids]).to_json()]
    campaign = PaddingCampaign("sim", PaddingOptions(graphs=graphs, rules=rules.to_json()))
    drive(campaign, Board().measure)
    relu, gather = campaign.times()
    assert relu.rejected == "fuses with a pad"
    assert gather.rejected.startswith("cannot be padded: ")
    assert "int64" in gather.rejected
    assert [s.insight for s in campaign.samples()] == ["single", "single"]
    assert campaign.outcome()["rejected"] == {"cannot be padded": 1, "fuses with a pad": 1}
    b = GraphBuilder("rank")
    vector = Kernel(b.build([b.relu(b.input((4,)))]))
    with pytest.raises(GraphError, match="1 axes"):
        padded(vector)


def test_a_layer_faster_than_its_pads_is_rejected() -> None:
    # The board is slow for the padding-only model, as if it fused what the rules do not know.
    board = Board()
    slow = {hash_of(padding_only(Pad((1, 32, 28, 28), "float32"), "base"))}

    def measure(request: MeasurementRequest) -> Measurement:
        answer = board.measure(request)
        assert answer.latency_ms is not None
        if hash_of(request.graph) not in slow:
            return answer
        data = answer.to_json()
        return Measurement.from_json({**data, "latency_ms": answer.latency_ms * 20})

    campaign = survey(graphs=[lums()["dilated"].graph.to_json()])
    drive(campaign, measure)
    assert [time.rejected for time in campaign.times()] == ["faster than its pads alone"]
    assert [sample.insight for sample in campaign.samples()] == ["single"]


def test_what_a_board_cannot_run_is_tried_once() -> None:
    campaign = survey(graphs=[lums()[name].graph.to_json() for name in ("conv", "max pool")])
    requests = drive(campaign, Board(broken="MaxPool").measure)
    pools = [r for r in requests if any(node.op == "MaxPool" for node in r.graph.nodes)]
    assert len(pools) == 2  # padded and alone
    conv, pool = campaign.times()
    assert conv.rejected == ""
    assert pool.rejected == "model error: UNSUPPORTED_OP"
    assert [sample.kernel.type for sample in campaign.samples()] == ["Conv+Relu"]


def test_a_crash_repeats_nothing_and_order_does_not_matter() -> None:
    board = Board(noise=0.05)
    config = {"count": 8, "seed": 3}
    first = drive(survey(**config), board.measure, stop_after=40)
    stored = dict(board.answered)
    resumed, shuffled = survey(**config), survey(**config)
    second = drive(resumed, board.measure, known=stored)
    assert not {r.request_id for r in first} & {r.request_id for r in second}
    drive(shuffled, board.measure, shuffle=Random(1), ask=7)
    assert resumed.outcome() == shuffled.outcome()
    assert resumed.outcome()["measurements"] == len(first) + len(second)


def test_samples_are_the_best_known_times_without_the_call_overhead() -> None:
    campaign = survey(widest=0.02)
    requests = drive(campaign, Board().measure)
    times = {time.kernel.kernel_id: time for time in campaign.times()}
    wide = [time for time in times.values() if time.rejected == "interval too wide"]
    assert wide
    samples = campaign.samples()
    assert len(samples) == len(times)
    for sample in samples:
        time = times[sample.kernel.kernel_id]
        assert time.interval is not None
        assert sample.insight == "padded"  # the time alone is longer than the interval's end
        assert sample.mad_ms == pytest.approx(time.interval.half_ms / 2)
    training = prepare(samples, campaign.call_overhead_ms or 0.0)
    assert list(training.latency_ms) == pytest.approx([s.latency_ms for s in samples])
    outcome = json.loads(json.dumps(campaign.outcome(), allow_nan=False))
    graphs: dict[str, Graph] = {key: time.kernel.graph for key, time in times.items()}
    again = padded_samples(outcome, graphs.get)
    assert [(s.kernel.kernel_id, s.latency_ms, s.mad_ms, s.insight) for s in again] == [
        (s.kernel.kernel_id, s.latency_ms, s.mad_ms, s.insight) for s in samples
    ]
    pads = {hash_of(r.graph) for r in requests if r.label == "padding_only"}
    assert outcome["padding_only_models"] == len(pads)
    assert outcome["board_ms"]["padding_only"] == 3 * 20.0 * outcome["padding_only_models"]


def test_the_outcome_has_times_alone_and_by_the_profiler_beside_padded_ones() -> None:
    board = Board()

    def measure(request: MeasurementRequest) -> Measurement:
        answer = board.measure(request)
        if not request.profile:
            return answer
        rows = exact_layers(request.graph.to_json(), NPU)
        return replace(
            answer, layers=tuple(ProfiledLayer(r.name, r.op, r.latency_ms) for r in rows)
        )

    graphs = [lums()[name].graph.to_json() for name in ("conv", "add")]
    campaign = survey(graphs=graphs, profile=True)
    requests = drive(campaign, measure)
    assert sum(request.profile for request in requests) == 2  # alone, in the first pass
    for key, row in campaign.outcome()["times"].items():
        exact = true_ms(next(t.kernel for t in campaign.times() if t.kernel.kernel_id == key))
        assert row["profile"]["latency_ms"] == pytest.approx(exact, rel=0.01)
        assert row["single"]["latency_ms"] > 2 * exact
    plain = survey(graphs=graphs)
    drive(plain, board.measure)
    assert all("profile" not in row for row in plain.outcome()["times"].values())


def test_configurations_are_checked() -> None:
    campaign = make_campaign("padding", "some-npu", {"count": 3, "families": ["squeezenet"]})
    assert campaign.outcome()["rules"] == prior_rules("some-npu").to_json()
    with pytest.raises(UsageError, match="most_repeats 2 is below repeats 3"):
        make_campaign("padding", "some-npu", {"most_repeats": 2})
    with pytest.raises(UsageError, match=r"graphs\.0"):
        make_campaign("padding", "some-npu", {"graphs": [{"nodes": 1}]})
