"""ViT, MobileViT and BERT: sizes, the arithmetic of attention, masks, and variants."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from latfarm_controller import zoo
from latfarm_controller.builders import build
from latfarm_controller.zoo.draws.dataset import TRANSFORMERS
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_controller.zoo.draws.variants import variant
from latfarm_controller.zoo.transformers.attention import attend, linear
from latfarm_controller.zoo.transformers.catalogue import ALL
from latfarm_controller.zoo.transformers.mobilevit import fold, unfold
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.fusion import FusionRules, with_units
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.workload import workload
from numpy.typing import NDArray

from tests.controller.zoo.kernel_sums import check_kernel_sums

NAMES = [family.name for family in ALL]
VARIED = [name for name in NAMES if name not in ("convnext-tiny", "efficientformer-l3")]
VISION = [family.name for family in ALL if family.task != "language"]
LANGUAGE = [family.name for family in ALL if family.task == "language"]

Arrays = dict[str, NDArray[Any]]


def run(graph: Graph, feed: Arrays) -> list[NDArray[Any]]:
    """The outputs of the graph as an ONNX model with random weights."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        build(graph, "onnx", "fp32"), options, providers=["CPUExecutionProvider"]
    )
    found: list[NDArray[Any]] = session.run(None, feed)
    return found


def feed_of(graph: Graph) -> Arrays:
    """Random values for float inputs; zeros and ones for integer inputs."""
    random = np.random.default_rng(0)
    return {
        tensor: random.integers(0, 2, kind.shape)
        if kind.dtype == "int64"
        else random.standard_normal(kind.shape).astype(np.float32)
        for tensor, kind in ((tensor, graph.type_of(tensor)) for tensor in graph.inputs)
    }


def size_of(name: str) -> int:
    """A small resolution at which a family can be built."""
    return 16 if name in LANGUAGE else 56 if name == "eva02-tiny" else 64


@pytest.mark.parametrize("name", NAMES)
def test_the_workloads_of_all_kernels_sum_to_that_of_the_network(name: str) -> None:
    check_kernel_sums(zoo.build(name, width=0.25, resolution=size_of(name)))


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_finite_on_any_batch(name: str) -> None:
    graph = zoo.build(name, width=0.25, resolution=size_of(name), batch=2)
    for output, made in zip(graph.outputs, run(graph, feed_of(graph)), strict=True):
        assert made.shape == graph.type_of(output).shape
        assert np.isfinite(made).all()
        assert 0.1 < made.std() < 100


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("seed", range(3))
def test_variants_run(name: str, seed: int) -> None:
    graph = variant(name, seed, resolutions=(size_of(name),))
    assert graph == variant(name, seed, resolutions=(size_of(name),))
    assert all(np.isfinite(made).all() for made in run(graph, feed_of(graph)))


@pytest.mark.parametrize("name", ["vit-tiny", "mobilevit-xs"])
def test_images_of_a_batch_do_not_influence_each_other(name: str) -> None:
    graph = zoo.build(name, width=0.5, resolution=64, batch=2)
    image = feed_of(graph)["input"]
    first = run(graph, {"input": image})[0]
    image[1] += 1
    second = run(graph, {"input": image})[0]
    np.testing.assert_allclose(first[0], second[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(first[1], second[1], rtol=0.01)


@pytest.mark.parametrize("batch", [1, 3])
def test_multiply_adds_of_vit_from_its_structure(batch: int) -> None:
    width, tokens = 192, 197
    layer = tokens * width * (4 * width + 2 * 4 * width) + 2 * tokens**2 * width
    stem = 196 * 3 * 16**2 * width
    assert macs_of(zoo.build("vit-tiny", batch=batch)) == batch * (stem + 12 * layer + width * 1000)


@pytest.mark.parametrize(
    ("name", "layers", "width"), [("bert-tiny", 2, 128), ("bert-mini", 4, 256)]
)
@pytest.mark.parametrize("batch", [1, 3])
def test_multiply_adds_of_bert_from_its_structure(
    name: str, layers: int, width: int, batch: int
) -> None:
    tokens = 64
    layer = tokens * width * (4 * width + 2 * 4 * width) + 2 * tokens**2 * width
    graph = zoo.build(name, resolution=tokens, batch=batch)
    assert macs_of(graph) == batch * (layers * layer + width * width)


@pytest.mark.parametrize("name", VISION)
def test_with_norms_the_multiply_adds_are_exactly_those_of_the_benchmark(
    name: str,
) -> None:
    """The rule of the tool behind it: 2 an element of a batch norm, 5 an element of a layer norm.

    What the catalogue takes off is what these norms add, and its tolerance the figure's rounding.
    """
    graph = zoo.build(name)
    published = zoo.families()[name].published
    assert published is not None
    assert published.macs is not None
    norms = 0
    for node in graph.nodes:
        elements = graph.type_of(node.outputs[0]).elements
        norms += {"BatchNormalization": 2, "Pow": 5}.get(node.op, 0) * elements
    gmacs = {
        "vit-tiny": 1.26,
        "vit-small": 4.61,
        "deit-tiny": 1.27,
        "deit-small": 4.63,
        "eva02-tiny": 1.7,
        "swin-tiny": 4.51,
        "convnext-atto": 0.55,
        "convnext-femto": 0.79,
        "convnext-tiny": 4.47,
        "efficientformer-l1": 1.3,
        "efficientformer-l3": 3.93,
        "mobilevit-xxs": 0.42,
        "mobilevit-xs": 1.05,
        "mobilevit-s": 2.03,
    }[name]
    assert round((macs_of(graph) + norms) / 1e9, 2) == gmacs
    assert published.macs + norms == pytest.approx(gmacs * 1e9, abs=1e5)


@pytest.mark.parametrize(
    ("name", "width", "millions"),
    [("bert-tiny", 128, 4.4), ("bert-mini", 256, 11.3), ("bert-small", 512, 29.1)],
)
def test_bert_with_its_head_of_pretraining_has_the_parameters_of_the_paper(
    name: str, width: int, millions: float
) -> None:
    """A dense layer, a layer norm and a bias for each word (Turc et al. 2019, table 1)."""
    published = zoo.families()[name].published
    assert published is not None
    head = width * width + width + 2 * width + 30_522
    assert round((published.parameters + head) / 1e6, 1) == millions


def test_attention_computes_its_equation() -> None:
    b = GraphBuilder("attention")
    query, key, value = (b.input((2, 5, 12)) for _ in range(3))
    mask = b.input((2, 1, 1, 5))
    graph = b.build([attend(b, query, key, value, 3, mask)])
    feed = feed_of(graph)
    q, k, v = (
        feed[tensor].reshape(2, 5, 3, 4).transpose(0, 2, 1, 3) for tensor in graph.inputs[:3]
    )
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / 2 + feed[mask])
    mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ v
    wanted = mixed.transpose(0, 2, 1, 3).reshape(2, 5, 12)
    np.testing.assert_allclose(run(graph, feed)[0], wanted, rtol=1e-4, atol=1e-5)


def test_products_of_attention_are_batched_matrices_in_the_workload() -> None:
    b = GraphBuilder("attention")
    x = b.input((2, 5, 12))
    graph = b.build([attend(b, x, x, linear(b, x, 12), 3)])
    works = [workload(kernel) for kernel in split(graph, FusionRules.none())]
    told = [
        (w.in_channels, w.out_channels, w.batch, w.groups, w.inputs, w.macs)
        for w in works
        if w.family in ("fc", "matmul")
    ]
    assert sorted(told) == [
        (4, 5, 2 * 3 * 5, 2 * 3, 2, 2 * 3 * 5 * 5 * 4),  # scores
        (5, 4, 2 * 3 * 5, 2 * 3, 2, 2 * 3 * 5 * 5 * 4),  # mixture
        (12, 12, 2 * 5, 1, 1, 2 * 5 * 12 * 12),  # linear
    ]


def test_patches_fold_back_to_the_map_they_came_from() -> None:
    b = GraphBuilder("patches")
    x = b.input((2, 3, 4, 6))
    tokens = unfold(b, x)
    graph = b.build([tokens, fold(b, tokens, (2, 3, 4, 6))])
    image = np.arange(2 * 3 * 4 * 6, dtype=np.float32).reshape(2, 3, 4, 6)
    found, back = run(graph, {"input": image})
    np.testing.assert_array_equal(back, image)
    # In the first image these pixels are at the lower left of their patches.
    np.testing.assert_array_equal(found[2], image[0, :, 1::2, 0::2].reshape(3, 6).T)


def test_a_map_that_is_not_a_whole_number_of_patches_is_interpolated() -> None:
    assert "Resize" not in {node.op for node in zoo.build("mobilevit-xs").nodes}
    graph = zoo.build("mobilevit-xs", width=0.25, resolution=224)
    resized = [graph.type_of(n.outputs[0]).shape[2:] for n in graph.nodes if n.op == "Resize"]
    assert resized == [(8, 8), (7, 7)]
    assert np.isfinite(run(graph, feed_of(graph))[0]).all()


def test_padding_does_not_influence_the_words() -> None:
    graph = zoo.build("bert-tiny", width=0.5, resolution=12, batch=2)
    ids, mask, types = graph.inputs
    feed = feed_of(graph)
    feed[ids] = np.random.default_rng(1).integers(0, 30_522, (2, 12))
    feed[mask] = np.repeat([[1] * 8 + [0] * 4], 2, axis=0)
    words, pooled = run(graph, feed)
    feed[ids][:, 8:] = 7
    feed[types][:, 8:] = 1
    again, pooled_again = run(graph, feed)
    np.testing.assert_allclose(again[:, :8], words[:, :8], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pooled_again, pooled, rtol=1e-4, atol=1e-5)
    feed[ids][:, 3] += 1
    assert not np.allclose(run(graph, feed)[0][:, :3], words[:, :3], rtol=0.01)


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("vit-tiny", 100, "patches of 16 pixels: 100x100"),
        ("bert-tiny", 513, "512 positions: 513 tokens are too many"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, size: int, reason: str) -> None:
    with pytest.raises(GraphError, match=re.escape(reason)):
        zoo.build(name, resolution=size)


def test_language_families_take_tokens() -> None:
    graph = zoo.build("bert-tiny")
    assert [graph.type_of(tensor).dtype for tensor in graph.inputs] == ["int64"] * 3
    assert {graph.type_of(tensor).shape for tensor in graph.inputs} == {(1, 128)}
    assert zoo.build("bert-tiny", resolution=64).name == "bert-tiny-64tokens"


def test_the_families_that_judge_are_there_and_leave_relatives_for_calibration() -> None:
    families = zoo.families()
    judged = {line for name in TRANSFORMERS for line in families[name].lineage}
    sampled = {line for f in ALL if f.sampled for line in f.lineage}
    assert judged <= sampled == {line for family in ALL for line in family.lineage}
    for name in TRANSFORMERS:
        family = families[name]
        kept = zoo.calibration_families(family.lineage)
        assert not any(other.lineage & family.lineage for other in kept.values())


def test_random_designs_change_the_number_of_heads() -> None:
    def heads(graph: Graph) -> int:
        scores = next(n for n in graph.nodes if n.op == "Softmax")
        return graph.type_of(scores.outputs[0]).shape[1]

    for name in ("deit-tiny", "bert-mini", "t5-tiny", "swin-tiny", "eva02-tiny"):
        drawn = {heads(variant(name, seed, rule="wide")) for seed in range(6)}
        assert len(drawn) > 1, name


def test_kernels_of_transformers_are_drawn_with_many_lengths() -> None:
    rules = with_units(FusionRules())
    kernels = KernelPrior(seed=4, shares={"row_fc": 1.0, "matmul": 1.0}).draw(60, rules)
    works = [workload(kernel) for kernel in kernels]
    assert {work.family for work in works} == {"fc", "matmul"}
    assert len({work.batch for work in works}) > 15
    assert len({work.in_channels for work in works}) > 15
