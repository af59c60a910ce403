"""nn-Meter's marginal prior: from the zoo, from nn-Meter's files, and the two compared."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

import pytest
from latfarm_controller import zoo
from latfarm_controller.errors import UsageError
from latfarm_controller.zoo.draws.marginal_prior import SHARES, MarginalPrior, kernel_graph
from latfarm_controller.zoo.draws.marginals import (
    DIMENSIONS,
    Marginals,
    configuration,
    csv_marginals,
    distances,
    quantile,
    zoo_marginals,
)
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.workload import workload

FUSED = FusionRules(pairs={("Conv", op): "fused" for op in ("BatchNormalization", "Relu")})
SMALL = ("alexnet", "mobilenet-v2", "resnet18")
DATA = (
    Path(os.environ.get("LATFARM_BENCH_DATA", Path(__file__).parents[4] / "shared" / "data"))
    / "nn_meter_prior"
)
with_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"{DATA}: nn-Meter's prior is not there; set LATFARM_BENCH_DATA"
)
COLUMNS = {"hw": "input_h", "cin": "cin", "cout": "cout", "kernel": "ks", "stride": "stride"}
# nn-Meter's names of models and ours, for models that both have with the same layers. In nn-Meter,
# MobileNetV1 and V3 have other classifiers, Inception-v3 is for 224 pixels, Inception-v1 has no 5x5
# kernels, and EfficientNet-B0 has no classifier.
SAME = {
    **{name: name for name in ("alexnet", "vgg11", "vgg16", "vgg19", "densenet121")},
    **{name: name for name in ("resnet18", "resnet34", "resnet50", "googlenet")},
    "squeezenet": "squeezenet1.0",
    "mobilenetv2": "mobilenet-v2",
    "mnasnet": "mnasnet-b1",
    "shufflenetv2x1-0": "shufflenet-v2",
}


@pytest.fixture(scope="module")
def marginals() -> Marginals:
    return zoo_marginals({name: zoo.families()[name] for name in SMALL})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Four small tables in the form of nn-Meter's files."""
    window = "model,input_h,input_w,cin,cout,ks,stride,groups"
    (tmp_path / "conv.csv").write_text(
        f"{window}\na,224,224,3,64,7,2,1\na,56,56,64,64,3,1,1\na,56,56,64,64,3,1,32\n"
    )
    (tmp_path / "dwconv.csv").write_text(f"{window}\na,112,112,32,32,3,1,32\n")
    (tmp_path / "fc.csv").write_text("model,cin,cout\na,512,1000\na,512,10\n")
    (tmp_path / "pooling.csv").write_text(f"{window[:-7]}\na,112,112,64,64,3,2\n")
    return tmp_path


def test_configurations_are_those_of_layers() -> None:
    b = GraphBuilder("layers")
    x = b.input((1, 3, 32, 32))
    x = b.conv(x, 16, 3, 2)
    x = b.depthwise(x, 5)
    x = b.conv(x, 24, 1, groups=2)
    x = b.conv(x, 24, (1, 7))
    x = b.relu(b.max_pool(x, 2))
    x = b.avg_pool(x, 3, 1, "same")
    graph = b.build([b.fc(b.flatten(x), 10)])
    assert [configuration(graph, node) for node in graph.nodes] == [
        ("conv", (32, 3, 16, 3, 2)),
        ("dwconv", (16, 16, 5, 1)),
        None,  # grouped
        None,  # not square
        ("pool", (16, 24, 2, 2)),
        None,
        ("pool", (8, 24, 3, 1)),
        None,
        ("fc", (24 * 64, 10)),
    ]


def test_marginals_count_every_layer_once(marginals: Marginals) -> None:
    wanted: Counter[str] = Counter()
    for name in SMALL:
        graph = zoo.build(name)
        wanted += Counter(f[0] for node in graph.nodes if (f := configuration(graph, node)))
    for kind, dimensions in DIMENSIONS.items():
        for name in dimensions:
            values = marginals[kind][name]
            assert len(values) == wanted[kind]
            assert list(values) == sorted(values)
    assert marginals["fc"]["cin"] == (512, 1280, 4096, 4096, 9216)


def test_draws_follow_the_marginals(marginals: Marginals) -> None:
    prior = MarginalPrior(seed=1, marginals=marginals)
    drawn = [prior.configuration("conv") for _ in range(4000)]
    seen: Marginals = {
        "conv": {name: tuple(sorted(one[name] for one in drawn)) for name in DIMENSIONS["conv"]}
    }
    # With 4,000 draws of few values, 0.03 is several standard deviations.
    for name, distance in distances(seen, marginals)["conv"].items():
        assert distance < 0.12 if name in ("cin", "cout") else distance < 0.03, name
    assert {one["kernel"] for one in drawn} == set(marginals["conv"]["kernel"])
    between = [one["cin"] for one in drawn if one["cin"] not in marginals["conv"]["cin"]]
    assert between
    assert min(marginals["conv"]["cin"]) <= min(between) <= max(between) <= 2208


def test_dimensions_are_independent(marginals: Marginals) -> None:
    """No network has 3 channels on small maps, but independent draws have."""
    prior = MarginalPrior(seed=2, marginals=marginals)
    drawn = [prior.configuration("conv") for _ in range(6000)]
    few = sum(1 for one in drawn if one["cin"] < 16) / len(drawn)
    small = sum(1 for one in drawn if one["hw"] <= 14) / len(drawn)
    both = sum(1 for one in drawn if one["cin"] < 16 and one["hw"] <= 14) / len(drawn)
    layers = [
        found[1]
        for name in SMALL
        for graph in [zoo.build(name)]
        for node in graph.nodes
        if (found := configuration(graph, node)) and found[0] == "conv"
    ]
    assert not [layer for layer in layers if layer[1] < 16 and layer[0] <= 14]
    assert both == pytest.approx(few * small, rel=0.25)


def test_kernels_are_drawn_in_the_papers_shares(marginals: Marginals) -> None:
    kernels = MarginalPrior(seed=3, marginals=marginals).draw(420, FUSED)
    assert len({kernel.kernel_id for kernel in kernels}) == len(kernels) == 420
    counts = Counter(workload(kernel).family for kernel in kernels)
    total = sum(SHARES.values())
    for kind, share in SHARES.items():
        assert counts[kind] == pytest.approx(420 * share / total, rel=0.4), kind
    types = {kernel.type for kernel in kernels}
    assert types == {"Conv+BatchNormalization+Relu", "Gemm", "MaxPool", "AveragePool"}
    assert {k.type for k in MarginalPrior(marginals=marginals).draw(40, FusionRules.none())} == {
        "Conv",
        "Gemm",
        "MaxPool",
        "AveragePool",
    }


def test_the_same_seed_draws_the_same_kernels_and_none_twice(marginals: Marginals) -> None:
    def ids(prior: MarginalPrior, count: int, exclude: frozenset[str] = frozenset()) -> list[str]:
        return [kernel.kernel_id for kernel in prior.draw(count, FUSED, exclude=exclude)]

    first, second = (MarginalPrior(seed=4, marginals=marginals) for _ in range(2))
    whole = ids(first, 30) + ids(first, 30)
    assert whole == ids(second, 30) + ids(second, 30)
    assert len(set(whole)) == 60
    barred = frozenset(whole[::2])
    assert not barred & set(ids(MarginalPrior(seed=4, marginals=marginals), 60, barred))


def test_limits_are_kept_and_an_exhausted_prior_stops(files: Path, marginals: Marginals) -> None:
    kernels = MarginalPrior(seed=5, marginals=marginals, max_bytes=10**6, max_macs=10**6).draw(
        50, FUSED
    )
    for kernel in kernels:
        work = workload(kernel)
        assert work.input_bytes + work.output_bytes + work.weight_bytes <= 10**6
        assert work.macs <= 10**6
    prior = MarginalPrior(
        seed=1, marginals=csv_marginals(files), shares={"dwconv": 1.0, "pool": 1.0}
    )
    # With one map, number of channels and window there are one depthwise kernel and two pools.
    few = sorted(kernel.type for kernel in prior.draw(100, FUSED))
    assert few == ["AveragePool", "Conv+BatchNormalization+Relu", "MaxPool"]
    assert prior.draw(1, FUSED) == []


def test_files_are_read_and_grouped_convolutions_left_out(files: Path) -> None:
    found = csv_marginals(files)
    assert found["conv"]["cin"] == (3, 64)
    assert found["conv"]["kernel"] == (3, 7)
    assert found["fc"] == {"cin": (512, 512), "cout": (10, 1000)}
    assert found["pool"] == {"hw": (112,), "cin": (64,), "kernel": (3,), "stride": (2,)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("conv.csv", None, "No such file"),
        ("fc.csv", "model,cin\na,3\n", "no valid configurations of fc layers"),
        ("dwconv.csv", "model,input_h,cin,ks,stride\na,7,x,3,1\n", "no valid configurations"),
        ("pooling.csv", "model,input_h,cin,ks,stride\n", "every size must be given"),
        ("pooling.csv", "model,input_h,cin,ks,stride\na,7,0,2,2\n", "be at least 1"),
    ],
)
def test_bad_files_are_refused(files: Path, name: str, text: str | None, message: str) -> None:
    if text is None:
        (files / name).unlink()
    else:
        (files / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        MarginalPrior.from_csv(files)


def test_a_prior_needs_something_to_draw(marginals: Marginals) -> None:
    with pytest.raises(ValueError, match="needs layers"):
        MarginalPrior(marginals=marginals, shares={"conv": 0.0})
    with pytest.raises(ValueError, match="needs layers"):
        MarginalPrior({})


def test_distances_are_0_for_equal_and_1_for_disjoint_priors() -> None:
    ones: Marginals = {"fc": {"cin": (1, 1), "cout": (1, 2)}}
    twos: Marginals = {"fc": {"cin": (2, 2), "cout": (1, 2)}}
    assert distances(ones, ones) == {"fc": {"cin": 0.0, "cout": 0.0}}
    assert distances(ones, twos) == {"fc": {"cin": 1.0, "cout": 0.0}}
    windows = {"hw": (7, 7), "cin": (8, 8), "kernel": (1, 3), "stride": (1, 1)}
    other = windows | {"kernel": (1, 1)}
    assert distances({"pool": windows}, {"pool": other})["pool"]["kernel"] == 0.5
    assert distances({"pool": windows}, ones) == {}
    assert [quantile((2, 4, 8), share) for share in (0, 0.25, 0.5, 1)] == [2, 3, 4, 8]


def test_kernel_graphs_keep_the_map() -> None:
    graph = kernel_graph("conv", {"hw": 27, "cin": 3, "cout": 5, "kernel": 7, "stride": 2})
    assert [node.op for node in graph.nodes] == ["Conv", "BatchNormalization", "Relu"]
    assert graph.type_of(graph.outputs[0]).shape == (1, 5, 14, 14)
    pool = kernel_graph("pool", {"hw": 8, "cin": 3, "kernel": 3, "stride": 2}, average=True)
    assert pool.nodes[0].op == "AveragePool"


def their_layers() -> dict[str, Counter[tuple[str, tuple[int, ...]]]]:
    found: dict[str, Counter[tuple[str, tuple[int, ...]]]] = {}
    names = {"conv": "conv", "dwconv": "dwconv", "fc": "fc", "pool": "pooling"}
    for kind, name in names.items():
        with (DATA / f"{name}.csv").open(newline="") as stream:
            for line in csv.DictReader(stream):
                sizes = tuple(int(line[COLUMNS[one]]) for one in DIMENSIONS[kind])
                found.setdefault(line["model"], Counter())[kind, sizes] += 1
    return found


@with_data
@pytest.mark.parametrize("model", SAME)
def test_shared_models_have_the_layers_that_nn_meter_collected(model: str) -> None:
    graph = zoo.build(SAME[model])
    ours = Counter(found for node in graph.nodes if (found := configuration(graph, node)))
    assert ours == their_layers()[model]


@with_data
def test_the_marginals_of_the_zoo_are_close_to_nn_meters() -> None:
    """Of convolutions, most of what is drawn; the models that the two lack differ in the rest.

    Of their depthwise layers 58 % are NASNet's, which the zoo has not.
    """
    shared = set(SAME.values()) | {"inception-v1", "efficientnet-b0", "mobilenet-v1"}
    shared |= {"inception-v3", "mobilenet-v3-large"}
    ours = zoo_marginals({name: zoo.families()[name] for name in sorted(shared)})
    found = distances(ours, csv_marginals(DATA))
    for name, most in {
        "hw": 0.15,
        "cin": 0.1,
        "cout": 0.1,
        "kernel": 0.08,
        "stride": 0.03,
    }.items():
        assert found["conv"][name] <= most, name
    whole = distances(zoo_marginals(), csv_marginals(DATA))
    assert max(whole["conv"].values()) < 0.4
    assert set(whole) == set(DIMENSIONS)


@with_data
def test_nn_meters_own_files_can_be_drawn_from() -> None:
    kernels = MarginalPrior.from_csv(DATA, seed=1).draw(100, FUSED)
    assert len({kernel.kernel_id for kernel in kernels}) == 100
