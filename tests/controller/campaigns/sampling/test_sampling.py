"""All samplers satisfy the same protocol, and surveys stop when they should."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import log
from random import Random
from typing import Any

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kernels import survey as survey_module
from latfarm_controller.campaigns.kernels.survey import KernelCampaign, KernelOptions
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.campaigns.sampling.annette import AnnetteSampler
from latfarm_controller.campaigns.sampling.base import Excluded, SamplingTask
from latfarm_controller.campaigns.sampling.by_name import SamplerName, make_sampler
from latfarm_controller.campaigns.sampling.judge import Judge
from latfarm_controller.campaigns.sampling.latfarm import LatfarmSampler
from latfarm_controller.campaigns.sampling.layers import near, operations
from latfarm_controller.campaigns.sampling.nn_meter import (
    AROUND,
    PAPER_PRIOR_SHARE,
    NnMeterSampler,
    initial_count,
)
from latfarm_controller.campaigns.sampling.prior import PriorSampler
from latfarm_controller.campaigns.sampling.random import SPACE, RandomSampler
from latfarm_controller.campaigns.sampling.stopping import JudgedShare
from latfarm_controller.errors import UsageError
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.samples import KernelSample

RULES = FusionRules(
    pairs={
        ("Conv", "BatchNormalization"): "fused",
        ("Conv", "Relu"): "fused",
        ("Add", "Relu"): "fused",
    }
)
FAMILIES = ["mobilenet-v1", "resnet18", "squeezenet"]
NAMES: tuple[SamplerName, ...] = ("prior", "latfarm", "random", "annette", "nn-meter")


def platform(noise: float = 0.02) -> SimulatedPlatform:
    return SimulatedPlatform(rules=RULES, noise=noise)


def survey(sampler: SamplerName, **config: Any) -> KernelCampaign:
    families = [] if sampler in ("random", "annette") else FAMILIES
    options = {"sampler": sampler, "count": 60, "initial": 30, "batch": 15, "families": families}
    return KernelCampaign("sim", KernelOptions.model_validate({**options, **config}), RULES)


def measured(kernels: list[Kernel], board: SimulatedPlatform) -> list[KernelSample]:
    return [KernelSample(kernel, board.exact_ms(kernel.graph)) for kernel in kernels]


def run(name: SamplerName, count: int, excluded: Excluded | None = None) -> list[list[Kernel]]:
    """All batches of a sampler that sees exact latencies."""
    families = None if name in ("random", "annette") else FAMILIES
    task = SamplingTask(
        count, RULES, excluded or Excluded(), families=families, initial=30, batch=15
    )
    sampler = make_sampler(name, task)
    board, samples, batches = platform(), list[KernelSample](), []
    while batch := sampler.next_batch(samples):
        samples += measured(batch, board)
        batches.append(batch)
    assert sampler.next_batch(samples) == []
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_sampler_keeps_the_protocol(name: SamplerName) -> None:
    ids = [kernel.kernel_id for batch in run(name, 45) for kernel in batch]
    assert len(ids) == len(set(ids)) == 45
    assert [kernel.kernel_id for batch in run(name, 45) for kernel in batch] == ids
    barred = frozenset(ids[:20])
    other = {kernel.kernel_id for batch in run(name, 30, Excluded(barred)) for kernel in batch}
    assert not barred & other


def test_samplers_go_by_name() -> None:
    kinds = {name: type(make_sampler(name, SamplingTask(10, RULES))) for name in NAMES}
    assert kinds == {
        "prior": PriorSampler,
        "latfarm": LatfarmSampler,
        "random": RandomSampler,
        "annette": AnnetteSampler,
        "nn-meter": NnMeterSampler,
    }
    assert KernelOptions().sampler == "prior"


def test_stored_campaigns_that_name_the_sampler_adaptive_resume() -> None:
    config = {"sampler": "adaptive", "count": 30, "initial": 15, "batch": 10, "families": FAMILIES}
    board = platform()
    stored = make_campaign("kernels", "sim", config)
    first = drive(stored, board.measure)
    fresh = make_campaign("kernels", "sim", {**config, "sampler": "latfarm"})
    assert drive(fresh, board.measure, known=board.answered) == []
    assert len(first) > 30
    assert fresh.outcome() == stored.outcome()
    make_campaign("characterize", "sim", {"sampler": "adaptive"})
    with pytest.raises(UsageError, match="key 'sampler'"):
        make_campaign("kernels", "sim", {"sampler": "adapted"})


def test_random_draws_are_uniform_in_the_papers_space() -> None:
    kernels = [k for batch in run("random", 300) for k in batch]
    works = [workload(kernel) for kernel in kernels]
    kinds = Counter(work.family for work in works)
    assert kinds["conv"] > kinds["dwconv"] > kinds["fc"] > 0
    for work in works:
        if work.family in ("conv", "dwconv", "pool"):
            assert work.in_w in SPACE["hw"]
            assert work.kernel_w in SPACE["kernel"]
            assert work.stride_w in SPACE["stride"]
    channels = [work.in_channels for work in works if work.family == "fc"]
    assert min(channels) < 500
    assert max(channels) > 1600


def test_annette_covers_types_and_orders_of_magnitude_equally() -> None:
    kernels = [k for batch in run("annette", 210) for k in batch]
    types = Counter(kernel.type for kernel in kernels)
    assert types["MaxPool"] == types["AveragePool"] == types["Concat"] == types["Gemm"] == 30
    assert types["Add+Relu"] == 30
    assert types["Conv+Relu"] == 60
    convs = [w for k in kernels if (w := workload(k)).family == "conv"]
    works = [log(max(operations(work), 1)) for work in convs]
    low, high = min(works), max(works)
    thirds = Counter(min(int(3 * (work - low) / (high - low)), 2) for work in works)
    assert high - low > log(1e5)
    assert min(thirds.values()) >= len(convs) // 5
    everything = [workload(kernel) for kernel in kernels]
    assert max(max(work.in_w, work.in_h) for work in everything) <= 1024
    assert max(work.kernel_h for work in everything) <= 11
    assert any(work.kernel_h != work.kernel_w for work in convs)
    assert any(work.in_h != work.in_w for work in convs)


@pytest.mark.slow
def test_nn_meter_samples_around_what_its_forest_gets_wrong() -> None:
    board = platform()
    task = SamplingTask(400, RULES, families=FAMILIES, initial=120, batch=40)
    sampler = NnMeterSampler(task)
    first = sampler.next_batch([])
    assert len(first) == 120
    samples = measured(first, board)
    second = sampler.next_batch(samples)
    assert 0 < len(second) <= 40
    known = {_fixed(kernel): workload(kernel) for kernel in first}
    for kernel in second:  # it differs from a measured layer in its channels only
        assert _fixed(kernel) in known
    parents = {_fixed(kernel) for kernel in second}
    assert len(parents) <= -(-len(second) // AROUND) + 1
    # With latencies that every forest predicts well, there is nothing to sample around.
    easy = NnMeterSampler(replace(task, initial=150))
    same = [KernelSample(kernel, 1.0) for kernel in easy.next_batch([])]
    assert easy.next_batch(same) == []
    # The sampler ends where the target is met already, and goes on where it is not.
    for target, goes_on in ((0.01, False), (0.99, True)):
        other = NnMeterSampler(task, target=target)
        shown = measured(other.next_batch([]), board)
        assert bool(other.next_batch(shown)) is goes_on


@pytest.mark.parametrize("count", [48, 96])
def test_nn_meter_keeps_the_papers_proportion_at_every_count(count: int) -> None:
    """Ten draws of the prior to six fine-grained ones, however large the budget is."""
    campaign = survey("nn-meter", count=count, prior_share=PAPER_PRIOR_SHARE, passes=1)
    first = [r for r in campaign.ask(1000) if r.purpose == "kernel"]
    assert len(first) == count * 10 // 16
    assert initial_count(500, 60, PAPER_PRIOR_SHARE) == 312
    assert initial_count(500, 60, None) == 60, "as stored campaigns drew"
    task = SamplingTask(count, RULES, families=FAMILIES, initial=len(first), batch=10)
    sampler, random = NnMeterSampler(task), Random(0)
    samples, batches = list[KernelSample](), []
    while batch := sampler.next_batch(samples):
        # Latencies without any pattern, so that no forest predicts them and the iterations go on.
        samples += [KernelSample(kernel, random.uniform(0.1, 10.0)) for kernel in batch]
        batches.append(len(batch))
    assert batches[0] == len(first)
    assert sum(batches) == count


def _fixed(kernel: Kernel) -> tuple[object, ...]:
    work = workload(kernel)
    if work.family == "fc":
        return (work.family,)
    return (kernel.type, work.family, work.in_w, work.kernel_w, work.stride_w)


def test_fine_grained_channels_lie_where_the_paper_draws_them() -> None:
    random = Random(0)
    drawn = [near(24, random) for _ in range(2000)]
    assert (min(drawn), max(drawn)) == (9, 28)
    drawn = [near(64, random) for _ in range(5000)]
    assert (min(drawn), max(drawn)) == (25, 76)
    assert near(1, random) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["annette", "nn-meter", "latfarm"])
def test_a_crash_repeats_nothing_whatever_the_sampler(sampler: SamplerName) -> None:
    config: dict[str, Any] = {"target": 0.97, "board_minutes": 1.9, "count": 45}
    board = platform()
    first = drive(survey(sampler, **config), board.measure, stop_after=47)
    stored = dict(board.answered)
    resumed, shuffled = survey(sampler, **config), survey(sampler, **config)
    second = drive(resumed, board.measure, known=stored)
    assert len(first) == 47
    assert not {r.request_id for r in first} & {r.request_id for r in second}
    drive(shuffled, board.measure, shuffle=Random(2), ask=9)
    assert shuffled.outcome() == resumed.outcome()
    json.dumps(resumed.outcome(), allow_nan=False)


@pytest.mark.slow
def test_the_boards_time_is_a_budget() -> None:
    # A measurement takes a second of the board.
    campaign = survey("prior", count=400, batch=20, board_minutes=1.5)
    requests = drive(campaign, platform().measure)
    outcome = campaign.outcome()
    assert outcome["stopped"] == "board_minutes"
    assert outcome["board_ms"] == 1000.0 * len(requests)
    assert 70 < len(requests) <= 90
    assert 25 < outcome["kernels"] < 45
    plenty = survey("prior", count=30, board_minutes=60.0)
    drive(plenty, platform().measure)
    assert plenty.outcome()["stopped"] == "count"
    assert plenty.outcome()["kernels"] == 30


@pytest.mark.slow
def test_a_survey_ends_when_the_kept_share_is_predicted() -> None:
    config: dict[str, Any] = {"count": 400, "batch": 60, "held_out": 0.25}
    campaign = survey("prior", target=0.6, **config)
    drive(campaign, platform(0.005).measure)
    outcome = campaign.outcome()
    assert outcome["stopped"] == "target"
    assert outcome["accuracy"] >= 0.6
    assert outcome["kernels"] < 400
    strict = survey("random", target=1.0, count=60, batch=30)
    drive(strict, platform().measure)
    assert strict.outcome()["stopped"] == "count"
    assert strict.outcome()["accuracy"] < 1.0
    assert "accuracy" not in survey("prior").outcome()


CALL_MS = 2.0


@pytest.mark.parametrize(("own_ms", "told"), [(1.0, True), (0.01, False)])
def test_a_dear_call_makes_no_kernel_look_predicted(own_ms: float, told: bool) -> None:
    """With the call, times that nothing tells apart would all be the same within 10 %."""
    board = platform(0.0)

    def measure(request: MeasurementRequest) -> Measurement:
        apart = Random(hash_of(request.graph)).choice((0.75, 1.25))
        return replace(board.measure(request), latency_ms=CALL_MS + own_ms * apart, mad_ms=0.0)

    campaign = survey("random", target=0.9, batch=30, held_out=0.5)
    campaign.call_overhead_ms = CALL_MS
    drive(campaign, measure)
    outcome = campaign.outcome()
    assert outcome["stopped"] == "count"
    # A kernel that takes a thousandth of the call judges nothing.
    assert (outcome["judged"] > 20) == told
    assert (outcome["accuracy"] or 0.0) < 0.3


def test_a_sampler_sees_kernels_alone_without_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that were known before, as those inside networks, have no call in them either."""
    board = SimulatedPlatform(rules=RULES, overhead_ms=CALL_MS)
    kernels = run("prior", 3)[0]
    shown: list[list[KernelSample]] = []

    class Recorder:
        def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
            shown.append(list(samples))
            return kernels[1:] if len(shown) == 1 else []

    monkeypatch.setattr(survey_module, "make_sampler", lambda *_, **__: Recorder())
    own_ms = [board.exact_ms(kernel.graph) - CALL_MS for kernel in kernels]
    known = KernelSample(kernels[0], own_ms[0], insight="profile", network="net")
    options = KernelOptions.model_validate({"count": 2})
    campaign = KernelCampaign("sim", options, RULES, known=[known])
    campaign.call_overhead_ms = CALL_MS
    drive(campaign, board.measure)
    assert shown[0] == [known]
    least_ms = CALL_MS / 50
    assert [sample.latency_ms for sample in shown[1]] == pytest.approx(
        [own_ms[0], *(max(each, least_ms) for each in own_ms[1:])]
    )
    # What is handed on is as it was measured.
    assert all(sample.latency_ms > CALL_MS for sample in campaign.samples())


@pytest.mark.slow
def test_kernels_that_judge_are_not_shown_to_the_sampler() -> None:
    kernels = [k for k in run("prior", 150)[0] if workload(k).family in ("conv", "fc")]
    judge = Judge(0.25, "forest")
    samples = measured(kernels, platform())
    kept = [sample for sample in samples if judge.keeps(sample.kernel)]
    assert 12 < len(kept) < 35
    assert {s.kernel.kernel_id for s in judge.shown(samples)} == {
        s.kernel.kernel_id for s in samples
    } - {s.kernel.kernel_id for s in kept}
    forest, roofline = judge.judged(samples), Judge(0.25, "roofline-gp").judged(samples)
    assert forest is not None
    assert roofline is not None
    assert forest.count == roofline.count == len(kept)
    assert 0.0 < forest.share < roofline.share <= 1.0
    assert judge.judged(samples[:8]) is None
    spoilt = [
        KernelSample(s.kernel, bad) for s, bad in zip(samples, (0.0, float("nan")), strict=False)
    ]
    assert judge.judged([*spoilt, *samples[2:]]) == judge.judged(samples[2:])
    lonely = [s for s in samples if judge.keeps(s.kernel)]
    assert judge.judged(lonely) == JudgedShare(0, len(lonely))  # nothing to learn from


def test_a_family_of_few_kernels_gets_enough_for_a_roofline() -> None:
    """Local response normalisations are rare in draws, and take up to half of some networks' time.

    Of six to eight of them, a roofline of their own can be told from chance.
    """
    families = ["synthetic", "resnet18"]
    drawn = {name: zoo.find(name)[0] for name in families}
    known = KernelPrior(drawn, 1).draw(300, RULES)
    others = [kernel for kernel in known if workload(kernel).family != "lrn"]
    task = SamplingTask(160, RULES, Excluded(), families=families, initial=160, known=others)
    first = LatfarmSampler(task, guide="spread").next_batch([])
    assert len(first) == 160
    assert Counter(workload(kernel).family for kernel in first)["lrn"] >= 6
    enough = KernelPrior(drawn, 2, shares={"lrn": 1.0}).draw(8, RULES)
    task = replace(task, known=[*others, *enough])
    again = LatfarmSampler(task, guide="spread").next_batch([])
    assert Counter(workload(kernel).family for kernel in again)["lrn"] < 4


def test_configurations_are_checked() -> None:
    make_campaign("kernels", "sim", {"sampler": "nn-meter", "board_minutes": 5, "target": 0.9})
    make_campaign("characterize", "sim", {"sampler": "annette"})
    with pytest.raises(UsageError, match="'random' cannot draw from families"):
        make_campaign("kernels", "sim", {"sampler": "random", "families": ["vgg16"]})
    with pytest.raises(UsageError, match="key 'sampler'"):
        make_campaign("kernels", "sim", {"sampler": "nnmeter"})
    with pytest.raises(UsageError, match="key 'target'"):
        make_campaign("kernels", "sim", {"target": 90})
    with pytest.raises(UsageError, match="initial 100 exceeds count 50"):
        make_campaign("kernels", "sim", {"sampler": "nn-meter", "count": 50})
    assert "vgg16" in zoo.families()
