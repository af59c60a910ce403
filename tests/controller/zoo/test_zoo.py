"""The zoo: its table of families, names, widths, resolutions and variants."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.errors import UsageError
from latfarm_controller.zoo.cnn import catalogue as catalogue_cnn
from latfarm_controller.zoo.cnn.nasbench201 import CELLS, cell_from_text, cell_of
from latfarm_controller.zoo.design import Design, RandomDesign, divisible
from latfarm_controller.zoo.draws.variants import variant
from latfarm_controller.zoo.mobile import catalogue as catalogue_mobile
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals, macs_of, trained_parameters

HELD_OUT = (
    *("alexnet", "densenet", "inception", "resnet"),
    *("shufflenet", "squeezenet", "vgg", "zfnet"),
)


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def test_no_relative_of_a_held_out_network_is_left() -> None:
    kept = zoo.calibration_families(HELD_OUT)
    assert not {"resnet18", "squeezenet", "shufflenet-v2", "repvgg-a0", "xception"} & set(kept)
    assert not any(family.lineage & set(HELD_OUT) for family in kept.values())
    assert len({line for family in kept.values() for line in family.lineage}) >= 6
    sampled = {name for name, family in zoo.families().items() if family.sampled}
    assert set(zoo.calibration_families()) == sampled
    assert set(kept) < sampled < set(zoo.families())


def test_each_lineage_of_convolutional_networks_is_sampled() -> None:
    rows = (*catalogue_cnn.ALL, *catalogue_mobile.ALL)
    sampled = {line for family in rows if family.sampled for line in family.lineage}
    assert sampled == {line for family in rows for line in family.lineage}


def test_the_usual_convolutional_networks_are_there() -> None:
    wanted = {
        *("alexnet", "vgg11", "vgg16", "vgg19", "resnet18", "resnet34", "resnet50", "resnet101"),
        *("densenet121", "googlenet", "squeezenet1.0", "squeezenet", "mobilenet-v1"),
        *("mobilenet-v2", "mobilenet-v3-small", "mobilenet-v3-large", "shufflenet-v2"),
        *("mnasnet-a1", "mnasnet-b1", "proxyless-mobile", "nasbench201", "inception-v3"),
        *("inception-v4", "mobileone-s0"),
        *(f"efficientnet-b{index}" for index in range(5)),
        *(f"regnet{kind}-{size}00mf" for kind in "xy" for size in (2, 4, 6, 8)),
    }
    assert wanted <= set(zoo.families())


def test_relatives_share_a_lineage() -> None:
    for names in (
        ("alexnet",),
        ("vgg11", "vgg16", "vgg19", "repvgg-a0"),
        ("resnet18", "resnet34", "resnet50", "resnet101"),
        ("googlenet", "inception-v1", "inception-v3", "inception-v4", "xception"),
        ("squeezenet", "squeezenet1.0"),
        ("shufflenet-v2", "shufflenet-v2-0.5x", "shufflenet-v2-2.0x"),
        ("efficientnet-b0", "efficientnet-b4"),
        ("regnetx-200mf", "regnety-800mf"),
        ("vit-tiny", "vit-small", "deit-tiny", "deit-small", "eva02-tiny"),
        ("swin-tiny",),
        ("mobilevit-xxs", "mobilevit-xs", "mobilevit-s"),
        ("convnext-atto", "convnext-tiny"),
        ("efficientformer-l1", "efficientformer-l3"),
        ("bert-tiny", "bert-mini", "bert-small"),
        ("t5-tiny", "t5-mini", "t5-v1.1-small"),
    ):
        shared = frozenset.intersection(*(zoo.families()[name].lineage for name in names))
        assert shared, names
        left = set(zoo.calibration_families(shared))
        assert not left & set(names)
        assert left


def test_no_name_is_that_of_another_family_with_a_width_or_a_resolution() -> None:
    pattern = re.compile(r"-x[0-9.]+|-[0-9]+(px|tokens)|@")
    assert not [name for name in zoo.families() if pattern.search(name)]


def test_excluding_everything_is_refused() -> None:
    lines = {line for family in zoo.families().values() for line in family.lineage}
    with pytest.raises(UsageError, match="no family is left"):
        zoo.calibration_families(lines)


@pytest.mark.parametrize("name", ["lenet", "resnet18@3", "synthetic@", "synthetic@x", "@3"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        zoo.build(name)


def test_the_message_names_the_nearest_families() -> None:
    with pytest.raises(UsageError, match=r"no zoo family 'lenet'; did you mean alexnet or "):
        zoo.build("lenet")


def test_importing_the_zoo_builds_nothing() -> None:
    # The tables of families may be loaded, and the packages that they are in; builders may not.
    code = (
        "import sys, latfarm_controller.zoo as z; z.families();"
        "bad = [n for n, m in sys.modules.items() if n.startswith('latfarm_controller.zoo.')"
        " and n.rpartition('.')[2] not in ('families', 'family', 'design', 'catalogue')"
        " and not hasattr(m, '__path__')];"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def small(name: str) -> int:
    """A small resolution, or number of tokens, at which the family can be built."""
    family = zoo.families()[name]
    if family.task == "language":
        return 16
    return 96 if family.resolution > 64 else 32


@pytest.mark.parametrize("name", zoo.families())
@pytest.mark.parametrize("width", [0.25, 1.6])
def test_width_resolution_and_batch_are_applied(name: str, width: float) -> None:
    size = small(name)
    language = zoo.families()[name].task == "language"
    thin = zoo.build(name, width=width, resolution=size, batch=2)
    kind = thin.type_of(thin.inputs[0])
    assert kind.shape == ((2, size) if language else (2, 3, size, size))
    assert kind.dtype == ("int64" if language else "float32")
    assert all(thin.type_of(output).shape[0] == 2 for output in thin.outputs)
    published = zoo.build(name, resolution=size, batch=2)
    assert (graph_totals(thin).macs < graph_totals(published).macs) == (width < 1)
    assert graph_totals(thin).macs != graph_totals(published).macs


@pytest.mark.parametrize("name", zoo.families())
def test_multiply_adds_are_proportional_to_the_batch(name: str) -> None:
    one, eight = zoo.build(name), zoo.build(name, batch=8)
    assert macs_of(eight) == 8 * macs_of(one)
    assert trained_parameters(eight) == trained_parameters(one)
    # The class token is repeated for each image.
    assert set(ops(eight) - ops(one)) <= {"Expand"}
    assert not ops(one) - ops(eight)


@pytest.mark.parametrize("name", zoo.families())
def test_the_same_call_gives_the_same_network(name: str) -> None:
    assert zoo.build(name, resolution=small(name)) == zoo.build(name, resolution=small(name))


@pytest.mark.parametrize("name", zoo.families())
def test_random_designs_build_at_many_resolutions(name: str) -> None:
    family = zoo.families()[name]
    language = family.task == "language"
    sizes = (32, 96) if language or family.resolution <= 64 else (128, 192, 320)
    for size in sizes:
        for seed, divisor in ((1, 1), (2, 8)):
            graph = family.build(resolution=size, design=RandomDesign(seed, divisor=divisor))
            assert graph.type_of(graph.inputs[0]).shape[-1] == size
            assert macs_of(graph) > 0


def convs(graph: Graph) -> Counter[tuple[tuple[int, ...], int]]:
    """The number of convolutions with each kernel size and number of groups."""
    found: Counter[tuple[tuple[int, ...], int]] = Counter()
    for node in graph.nodes:
        if node.op == "Conv":
            kernel, group = node.attrs["kernel_shape"], node.attrs["group"]
            assert isinstance(kernel, tuple)
            assert isinstance(group, int)
            found[tuple(int(size) for size in kernel), group] += 1
    return found


def test_families_have_the_layers_that_they_are_known_for() -> None:
    assert convs(zoo.build("alexnet")) == {((11, 11), 1): 1, ((5, 5), 1): 1, ((3, 3), 1): 3}
    assert convs(zoo.build("vgg16")) == {((3, 3), 1): 13}
    assert convs(zoo.build("resnet50")) == {((7, 7), 1): 1, ((3, 3), 1): 16, ((1, 1), 1): 36}
    dense = ops(zoo.build("densenet121"))
    assert (dense["Conv"], dense["Concat"], dense["AveragePool"]) == (120, 58, 3)
    assert ops(zoo.build("inception-v1"))["LRN"] == 2
    assert ops(zoo.build("googlenet"))["BatchNormalization"] == 57
    third = convs(zoo.build("inception-v3"))
    assert (third[(1, 7), 1], third[(7, 1), 1], third[(1, 3), 1], third[(5, 5), 1]) == (
        13,
        13,
        4,
        3,
    )
    fourth = ops(zoo.build("inception-v4"))
    assert (fourth["Conv"], fourth["AveragePool"], fourth["MaxPool"]) == (149, 14, 4)
    assert sum(convs(zoo.build("regnety-400mf"))[(3, 3), group] for group in (6, 13, 26, 55)) == 16
    assert ops(zoo.build("regnety-400mf"))["Sigmoid"] == 16
    assert not ops(zoo.build("regnetx-400mf"))["Sigmoid"]
    assert ops(zoo.build("mobileone-s4"))["Sigmoid"] == 12
    assert not ops(zoo.build("mobileone-s3"))["Sigmoid"]


@pytest.mark.parametrize(("name", "features"), [("vgg11", 25088), ("alexnet", 9216)])
def test_large_images_do_not_change_the_classifier(name: str, features: int) -> None:
    def widest(resolution: int) -> int:
        graph = zoo.build(name, resolution=resolution)
        gemms = [node for node in graph.nodes if node.op == "Gemm"]
        return graph.type_of(gemms[0].inputs[1]).shape[1]

    for resolution in (224, 256, 320, 448):
        assert widest(resolution) == features
    assert widest(128) < features


def test_other_seeds_make_other_networks() -> None:
    for name in ("nasbench201", "synthetic"):
        hashes = {hash_of(zoo.build(f"{name}@{seed}", resolution=64)) for seed in range(20)}
        assert len(hashes) >= 19


def test_synthetic_networks_have_the_constructions_that_others_lack() -> None:
    seen: Counter[str] = Counter()
    kernels: set[tuple[int, ...]] = set()
    groups: set[int] = set()
    joins: set[int] = set()
    widest = 0
    for seed in range(150):
        graph = zoo.build(f"synthetic@{seed}", resolution=(96, 160, 224)[seed % 3])
        seen += ops(graph)
        for node in graph.nodes:
            if node.op == "Conv":
                shape = node.attrs["kernel_shape"]
                assert isinstance(shape, tuple)
                kernels.add(tuple(int(size) for size in shape))
                group = node.attrs["group"]
                if group != graph.type_of(node.inputs[0]).shape[1]:
                    groups.add(int(group))  # type: ignore[arg-type]
            elif node.op == "Concat":
                joins.add(len(node.inputs))
            elif node.op == "Gemm":
                widest = max(widest, graph.type_of(node.inputs[1]).elements)
    for op in (
        *("LRN", "Gemm", "MaxPool", "AveragePool", "Concat", "Transpose", "Reshape", "Mul", "Sum"),
        *("BatchNormalization", "Sigmoid", "Tanh", "LeakyRelu", "Softmax", "Flatten"),
        # What exporters write today: group norms, means of maps, maps enlarged, newer activations.
        *("InstanceNormalization", "ReduceMean", "Resize", "HardSigmoid", "Erf"),
    ):
        assert seen[op] > 5, op
    assert kernels >= {(1, 7), (7, 1), (1, 3), (3, 1), (11, 11), (7, 7), (5, 5), (1, 1)}
    assert groups >= {1, 2, 3, 4, 5, 6, 7, 8}
    assert joins >= {2, 3, 4}
    assert 3e7 < widest <= 25088 * 4096


def test_nasbench_cells() -> None:
    cells = {cell_of(seed) for seed in range(300)}
    assert len(cells) > 280
    assert len(cells) < CELLS
    assert ("none",) * 6 not in cells
    with pytest.raises(ValueError, match="not a cell"):
        cell_from_text("|nor_conv_3x3~0|+|none~0|skip_connect~1|")


@pytest.mark.parametrize("name", zoo.families())
def test_variants_differ_by_seed_and_repeat(name: str) -> None:
    first, again = variant(name, 1, resolutions=(128,)), variant(name, 1, resolutions=(128,))
    assert first == again
    assert hash_of(variant(name, 2, resolutions=(128,))) != hash_of(first)


def test_variants_change_channels_and_kernels() -> None:
    def sizes(graph: Graph, what: int) -> set[int]:
        return {
            graph.type_of(node.inputs[1]).shape[what] for node in graph.nodes if node.op == "Conv"
        }

    channels: set[int] = set()
    kernels: set[int] = set()
    for seed in range(12):
        graph = variant("darknet19", seed)
        channels |= sizes(graph, 0)
        kernels |= sizes(graph, 2)
    assert kernels >= {1, 3, 5, 7, 9}
    assert len(channels) > 40
    assert max(channels) <= 1.8 * 1024 + 8


@given(st.integers(1, 4096), st.sampled_from((1, 2, 4, 8, 16)), st.floats(0.2, 1.8))
def test_channels_keep_their_multiple(base: int, multiple: int, width: float) -> None:
    for design in (Design(width), RandomDesign(base), Design(width, divisor=1)):
        found = design.channels(base, multiple)
        assert found >= multiple
        assert found % multiple == 0


@given(st.integers(1, 4096))
def test_published_channels_are_not_rounded(base: int) -> None:
    assert Design().channels(base) == base
    assert Design().kernel(base) == base


@settings(max_examples=200)
@given(st.floats(1, 4000), st.sampled_from((1, 4, 8, 16)))
def test_divisible_loses_at_most_a_tenth(value: float, divisor: int) -> None:
    found = divisible(value, divisor)
    assert found % divisor == 0
    assert found >= min(0.9 * value, value)
    assert found <= max(divisor, value + divisor)


def test_invalid_designs_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Design(0.0)
