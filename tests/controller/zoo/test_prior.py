"""The prior of kernels: its shares, its limits, no kernel twice, and the same draws for a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest
from latfarm_controller import zoo
from latfarm_controller.zoo.draws.kernel_kinds import SHARES, base_of, kind_of
from latfarm_controller.zoo.draws.prior import MAX_BYTES, MAX_MACS, KernelPrior
from latfarm_controller.zoo.draws.windows import wide_windows
from latfarm_controller.zoo.family import Family
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload

FUSED = FusionRules(
    pairs={
        **{
            ("Conv", op): "fused"
            for op in ("BatchNormalization", "Relu", "Clip", "LeakyRelu", "Add", "Sigmoid")
        },
        ("Gemm", "Relu"): "fused",
    },
    multi_inbound=1,
)


def ids(kernels: list[Kernel]) -> list[str]:
    return [kernel.kernel_id for kernel in kernels]


@pytest.mark.parametrize("rules", [FusionRules.none(), FUSED], ids=["none", "fused"])
def test_each_kind_has_its_share(rules: FusionRules) -> None:
    kernels = KernelPrior(seed=1).draw(400, rules)
    assert len(kernels) == len(set(ids(kernels))) == 400
    counts = Counter(kind_of(kernel) for kernel in kernels)
    for kind, share in SHARES.items():
        # almost all are fused with other kernels, or are kernels only by other rules
        if kind not in ("norm", "move", "attention", "row_norm"):
            assert counts[kind] >= 0.9 * int(400 * share), kind
    bases = Counter(base_of(kind_of(kernel)) for kernel in kernels)
    assert bases["conv"] >= 0.4 * 400
    assert bases["dwconv"] >= 0.15 * 400
    assert set(counts) <= set(SHARES)


def test_the_same_seed_draws_the_same() -> None:
    first, second = KernelPrior(seed=7), KernelPrior(seed=7)
    drawn = [ids(first.draw(count, FUSED)) for count in (40, 15)]
    assert drawn == [ids(second.draw(count, FUSED)) for count in (40, 15)]
    assert set(ids(KernelPrior(seed=8).draw(40, FUSED))) != set(drawn[0])


def test_excluded_kernels_are_never_drawn() -> None:
    first = ids(KernelPrior(seed=3).draw(120, FUSED))
    barred = set(first[::2])
    second = ids(KernelPrior(seed=3).draw(120, FUSED, exclude=barred))
    assert not barred & set(second)
    assert len(second) == 120


def test_a_prior_never_repeats_itself() -> None:
    prior = KernelPrior(seed=4)
    drawn = [kernel for _ in range(5) for kernel in ids(prior.draw(30, FUSED))]
    assert len(set(drawn)) == 150


def test_limits_are_kept() -> None:
    kernels = KernelPrior(seed=5, max_bytes=2_000_000, max_macs=5_000_000).draw(100, FUSED)
    for kernel in kernels:
        work = workload(kernel)
        assert work.input_bytes + work.output_bytes + work.weight_bytes <= 2_000_000
        assert work.macs <= 5_000_000
    assert MAX_BYTES == 600_000_000
    assert MAX_MACS == 4_000_000_000


@pytest.mark.parametrize("shares", [SHARES, {"conv": 1.0}], ids=["all kinds", "one kind"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_lineage_is_drawn_from(
    shares: Mapping[str, float], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels of the first networks must not decide the families of all others."""
    built: Counter[str] = Counter()

    def counted(family: Family, **settings: Any) -> Graph:
        built[family.name] += 1
        return build(family, **settings)

    build = Family.build
    monkeypatch.setattr(Family, "build", counted)
    assert len(KernelPrior(seed=seed, shares=shares).draw(250, FUSED)) == 250
    families = zoo.calibration_families()
    assert len(built) >= 0.7 * len(families)
    assert {line for name in built for line in families[name].lineage} == {
        line for family in families.values() for line in family.lineage
    }
    assert max(built.values()) < 0.4 * built.total()


def test_an_exhausted_prior_stops() -> None:
    only = {"nin-cifar": zoo.families()["nin-cifar"]}
    # The limit is so small that only softmaxes over 10, 11 and 12 classes fit.
    prior = KernelPrior(only, shares={"softmax": 0.5, "lrn": 1.0}, max_bytes=96)
    kernels = prior.draw(100, FusionRules.none())
    assert 1 <= len(kernels) <= 3
    assert {workload(kernel).family for kernel in kernels} == {"softmax"}


def test_only_the_given_families_are_drawn_from() -> None:
    family = zoo.families()["darknet19"]
    kernels = KernelPrior({"darknet19": family}, shares={"conv": 1.0}).draw(30, FusionRules.none())
    for kernel in kernels:
        weight = kernel.graph.type_of(kernel.main.inputs[1]).shape
        assert weight[2] == weight[3]
        assert kernel.main.attrs["group"] == 1


def test_heavy_kernels_are_not_rare() -> None:
    """Most kernels of mobile networks are tiny, but at least a tenth of the draws has much work."""
    kernels = KernelPrior(seed=2).draw(300, FUSED)
    macs = sorted(w.macs for w in map(workload, kernels) if w.family == "conv")
    assert macs[len(macs) * 9 // 10] > 5e7
    assert macs[len(macs) // 2] > 2e6


def test_drawn_kernels_are_those_of_networks() -> None:
    family = zoo.families()["squeezenet"]
    network = {k.kernel_id for k in split(zoo.build("squeezenet"), FUSED)}
    drawn = ids(KernelPrior({"squeezenet": family}, seed=1).draw(60, FUSED))
    assert len(drawn) == 60
    # Widths and resolutions are drawn, so that few kernels are exactly the published ones.
    assert len(network & set(drawn)) < 30


def test_whole_networks_are_drawn_like_kernels() -> None:
    macs = (5e7, 1e9)
    found = list(islice(KernelPrior(seed=3).networks(macs=macs), 25))
    assert len({hash_of(graph) for graph in found}) == 25
    assert all(macs[0] <= graph_totals(graph).macs <= macs[1] for graph in found)
    assert len({graph.name.split("-")[0] for graph in found}) >= 8
    again = list(islice(KernelPrior(seed=3).networks(macs=macs), 25))
    assert [hash_of(graph) for graph in again] == [hash_of(graph) for graph in found]
    assert not list(KernelPrior(seed=3).networks(macs=(1.0, 2.0)))


def test_a_prior_needs_something_to_draw() -> None:
    with pytest.raises(ValueError, match="families and shares"):
        KernelPrior({}, 0)
    with pytest.raises(ValueError, match="families and shares"):
        KernelPrior(shares={"conv": 0.0})


def test_a_share_of_networks_has_wide_windows_of_stride_1() -> None:
    def wide(graph: Graph) -> int:
        kinds = [kind_of(kernel) for kernel in split(graph, FusionRules.none())]
        return kinds.count("unit_wide_conv")

    macs = (6e7, 6e9)
    found = list(islice(KernelPrior(seed=3).networks(macs=macs, wide=0.25), 20))
    assert all(wide(graph) >= 3 for graph in found[3::4])
    assert len({hash_of(graph) for graph in found}) == 20
    # families without windows take their turn, too: nothing waits for what they cannot have
    only = {"mobilenet-v1": zoo.families()["mobilenet-v1"]}
    assert len(list(islice(KernelPrior(only, seed=3).networks(macs=macs, wide=0.5), 6))) == 6


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sixty_networks_show_every_lineage_however_large_most_of_its_networks_are(
    seed: int,
) -> None:
    families = zoo.calibration_families()
    macs = (3e7, 2e9)
    found = list(islice(KernelPrior(families, seed).networks(macs=macs, wide=0.25), 60))
    names = {graph.name for graph in found}
    shown = {
        family.lineage
        for name, family in families.items()
        if any(drawn.startswith(name) for drawn in names)
    }
    assert {family.lineage for family in families.values()} == shown
    assert sum(wide_windows(graph) >= 3 for graph in found) >= 15


def test_wide_windows_of_stride_1_are_convolutions_to_users() -> None:
    assert base_of("unit_wide_conv") == base_of("wide_conv") == base_of("unaligned_conv") == "conv"
