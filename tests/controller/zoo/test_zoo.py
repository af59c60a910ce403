"""The zoo's table, names, widths, resolutions and variants."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.errors import UsageError
from latfarm_controller.zoo.design import Design, RandomDesign, divisible
from latfarm_controller.zoo.nasbench201 import CELLS, cell_from_text, cell_of
from latfarm_controller.zoo.variants import variant
from latfarm_predictors.graph import Graph
from latfarm_predictors.workload import graph_totals

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
    assert set(zoo.calibration_families()) == set(zoo.families())


def test_excluding_everything_is_refused() -> None:
    lines = {line for family in zoo.families().values() for line in family.lineage}
    with pytest.raises(UsageError, match="no family is left"):
        zoo.calibration_families(lines)


@pytest.mark.parametrize("name", ["lenet", "resnet18@3", "synthetic@", "synthetic@x", "@3"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        zoo.build(name)


def test_the_message_lists_what_is_known() -> None:
    with pytest.raises(
        UsageError, match=r"no zoo family 'lenet'; known: mobilenet-v1, .*synthetic"
    ):
        zoo.build("lenet")


def test_importing_the_zoo_builds_nothing() -> None:
    code = (
        "import sys, latfarm_controller.zoo as z; z.families();"
        "bad = [m for m in sys.modules if m.startswith('latfarm_controller.zoo.')"
        " and m.rpartition('.')[2] not in ('families', 'family', 'design')"
        " and not m.rpartition('.')[2].startswith('catalogue_')];"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", zoo.families())
@pytest.mark.parametrize("width", [0.25, 1.6])
def test_width_resolution_and_batch_are_heeded(name: str, width: float) -> None:
    family = zoo.families()[name]
    size = 96 if family.resolution > 64 else 32
    thin = zoo.build(name, width=width, resolution=size, batch=2)
    assert thin.type_of(thin.inputs[0]).shape == (2, 3, size, size)
    assert thin.type_of(thin.outputs[0]).shape[0] == 2
    published = zoo.build(name, resolution=size, batch=2)
    assert graph_totals(thin).macs != graph_totals(published).macs
    assert (graph_totals(thin).macs < graph_totals(published).macs) == (width < 1)


@pytest.mark.parametrize("name", zoo.families())
def test_the_same_call_gives_the_same_network(name: str) -> None:
    small = 96 if zoo.families()[name].resolution > 64 else 32
    assert zoo.build(name, resolution=small) == zoo.build(name, resolution=small)


def test_seeds_make_other_networks() -> None:
    for name in ("nasbench201", "synthetic"):
        hashes = {zoo.build(f"{name}@{seed}", resolution=64).hash for seed in range(20)}
        assert len(hashes) >= 19


def test_synthetic_networks_cover_what_published_ones_lack() -> None:
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
    with pytest.raises(ValueError, match="no cell"):
        cell_from_text("|nor_conv_3x3~0|+|none~0|skip_connect~1|")


@pytest.mark.parametrize("name", [n for n in zoo.families() if n != "xception"])
def test_variants_differ_and_repeat(name: str) -> None:
    first, again = variant(name, 1, resolutions=(128,)), variant(name, 1, resolutions=(128,))
    assert first == again
    assert variant(name, 2, resolutions=(128,)).hash != first.hash


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
def test_published_widths_are_untouched(base: int) -> None:
    assert Design().channels(base) == base
    assert Design().kernel(base) == base


@settings(max_examples=200)
@given(st.floats(1, 4000), st.sampled_from((1, 4, 8, 16)))
def test_divisible_loses_at_most_a_tenth(value: float, divisor: int) -> None:
    found = divisible(value, divisor)
    assert found % divisor == 0
    assert found >= min(0.9 * value, value)
    assert found <= max(divisor, value + divisor)


def test_nonsense_designs_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Design(0.0)
