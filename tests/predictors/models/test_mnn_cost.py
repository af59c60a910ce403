"""MNN's cost model against the figures that its paper prints, and the trap in its Eq. 2."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_predictors.features.mnn_backends import GPU_GIGA, MnnBackend, cpu, gpu
from latfarm_predictors.features.mnn_schemes import (
    MNN_3,
    MNN_3_AVX512,
    PAPER,
    TILES,
    MnnTiles,
    Schemes,
    choose,
    recurses,
    strassen,
)
from latfarm_predictors.features.table import as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.models.base import ModelState, Regressor
from latfarm_predictors.models.published.mnn_cost import MnnCost, algorithms, operators
from latfarm_predictors.testing.synthetic import USUAL_COUNTS, random_kernels

TABLE_1 = {
    # (kernel, input channels, output channels, size): ms of sliding window, smallest and largest
    # Winograd block, and MNN's own choice
    (2, 3, 16, 224): (32.1, 42.2, 57.3, 32.7),
    (2, 512, 512, 16): (895.1, 287.7, 539.3, 286.0),
    (3, 64, 64, 112): (895.1, 389.8, 237.4, 236.4),
}
TABLE_3 = {
    # matrix sizes: ms without and with Strassen
    (256, 256, 256): (23, 23),
    (512, 512, 512): (191, 176),
    (512, 512, 1024): (388, 359),
    (1024, 1024, 1024): (1501, 1299),
}


def conv(k: int, ci: int, co: int, size: int, stride: int = 1, groups: int = 1) -> Workload:
    """A convolution of same size, whatever its kernel."""
    out = -(-size // stride)
    macs = out * out * co * (ci // groups) * k * k
    return Workload(
        family="conv" if groups == 1 else "dwconv",
        type="Conv",
        dtype="float32",
        batch=1,
        in_h=size,
        in_w=size,
        in_channels=ci,
        out_h=out,
        out_w=out,
        out_channels=co,
        kernel_h=k,
        kernel_w=k,
        stride_h=stride,
        stride_w=stride,
        dilation_h=1,
        dilation_w=1,
        groups=groups,
        macs=macs,
        input_bytes=4 * size * size * ci,
        output_bytes=4 * out * out * co,
        weight_bytes=4 * ci * co * k * k // groups,
        inputs=1,
        fused_ops=0,
    )


def one(work: Workload, tiles: MnnTiles = PAPER) -> tuple[str, Schemes]:
    found = choose([work], tiles)
    return found.names()[0], found


def test_table_1_first_setting_keeps_the_sliding_window() -> None:
    name, found = one(conv(2, 3, 16, 224))
    assert name == "sliding window"
    assert found.operations[0] == found.multiplications[0] == 224 * 224 * 3 * 16 * 4


def test_table_1_third_setting_takes_the_largest_tile_and_gains_what_was_measured() -> None:
    name, found = one(conv(3, 64, 64, 112))
    assert name == f"winograd F({max(TILES)}x{max(TILES)})"
    sliding_ms, _, largest_ms, _ = TABLE_1[3, 64, 64, 112]
    predicted = found.operations[0] / found.multiplications[0]
    assert predicted == pytest.approx(largest_ms / sliding_ms, rel=0.02)


def test_table_1_second_setting_is_not_reproduced() -> None:
    # The paper measured the smallest block as the best; counting operations says the largest.
    sliding_ms, least_ms, largest_ms, ours_ms = TABLE_1[2, 512, 512, 16]
    assert least_ms < largest_ms < sliding_ms
    assert ours_ms < largest_ms
    name, _ = one(conv(2, 512, 512, 16))
    assert name == "winograd F(8x8)"


def printed_tile_cost(n: int, k: int, in_channels: int, out_channels: int) -> int:
    """Eq. 2 exactly as printed: operations of one tile, the last term without o_c."""
    a = n + k - 1
    return 2 * in_channels * a**3 + in_channels * out_channels * a**2 + n * a * (2 * n + k - 1)


@given(st.integers(2, 7), st.integers(1, 1024), st.integers(1, 1024))
def test_as_printed_equation_2_never_picks_winograd(k: int, ci: int, co: int) -> None:
    costs = [printed_tile_cost(n, k, ci, co) for n in range(1, max(TILES) + 1)]
    assert costs == sorted(costs)
    assert costs[0] < costs[1]


@given(st.integers(2, 5), st.integers(1, 128), st.integers(1, 128), st.integers(5, 60))
def test_the_choice_is_the_cheapest_of_all(k: int, ci: int, co: int, size: int) -> None:
    _, found = one(conv(k, ci, co, size))
    direct = size * size * ci * co * k * k
    costs = {1: direct}
    for n in TILES:
        a = n + k - 1
        tile = 2 * ci * a**3 + ci * co * a**2 + n * a * (2 * n + k - 1) * co
        costs[n] = math.ceil(size / n) ** 2 * tile
    assert found.operations[0] == min(costs.values())
    assert costs[int(found.tile[0])] == min(costs.values())


@pytest.mark.parametrize(
    ("window", "size", "plain", "avx512"),
    [
        (3, 56, "winograd F(6x6)", "winograd F(6x6)"),
        (3, 12, "winograd F(6x6)", "winograd F(2x2)"),
        (3, 4, "winograd F(4x4)", "winograd F(2x2)"),
        (5, 56, "winograd F(4x4)", "winograd F(4x4)"),
        (5, 14, "winograd F(4x4)", "winograd F(2x2)"),
        (7, 56, "winograd F(2x2)", "winograd F(2x2)"),
        (9, 56, "sliding window", "sliding window"),
        (11, 56, "sliding window", "sliding window"),
    ],
)
def test_mnn_3_admits_input_tiles_of_4_6_and_8(
    window: int, size: int, plain: str, avx512: str
) -> None:
    work = conv(window, 128, 128, size)
    assert one(work, MNN_3)[0] == plain
    assert one(work, MNN_3_AVX512)[0] == avx512


def test_a_cost_model_of_an_older_bundle_has_the_tiles_of_the_paper() -> None:
    works = [conv(9, 64, 64, 56), conv(5, 64, 64, 56), conv(3, 64, 64, 56)]
    old = MnnCost(tiles=PAPER).state()
    values = {name: value for name, value in old.values.items() if name != "tiles"}
    read = MnnCost.from_state(ModelState(old.kind, values))
    np.testing.assert_array_equal(read.predict(works)[0], MnnCost(tiles=PAPER).predict(works)[0])
    assert (MnnCost().predict(works)[0] > read.predict(works)[0]).all()


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (conv(3, 64, 64, 56, stride=2), "sliding window"),
        (conv(3, 64, 64, 56, groups=64), "direct"),
        (conv(1, 64, 128, 56), "strassen x2"),
        (conv(1, 8, 8, 56), "matrix"),
    ],
)
def test_where_winograd_does_not_apply(work: Workload, name: str) -> None:
    assert one(work)[0] == name


def test_equation_9_by_hand() -> None:
    # n^3 / 8 > 15 n^2 / 4 from n > 30 on
    assert recurses(31, 31, 31)
    assert not recurses(30, 30, 30)
    assert strassen(30, 30, 30) == (0, 27000.0)
    depth, operations = strassen(32, 32, 32)
    assert depth == 1
    assert operations == 7 * 16**3 + 15 * 16**2
    # a row vector gains nothing, however long
    assert strassen(1, 4096, 4096)[0] == 0


def test_table_3_gains_grow_with_the_matrix_and_are_never_more_than_predicted() -> None:
    predicted, measured = [], []
    for (n, k, m), (without_ms, with_ms) in TABLE_3.items():
        assert recurses(n, k, m)
        predicted.append(1 - strassen(n, k, m)[1] / (n * k * m))
        measured.append(1 - with_ms / without_ms)
    assert predicted == sorted(predicted)
    assert all(m <= p for m, p in zip(measured, predicted, strict=True))
    # the smallest gains least and the largest most, in both
    for gains in (predicted, measured):
        assert gains[0] == min(gains)
        assert gains[-1] == max(gains)


def test_appendix_c_clocks_add_up() -> None:
    assert cpu(1, [2450, 1900]).multiplications_per_ms == 2.45e6
    assert cpu(2, [1900, 2450, 1900]).multiplications_per_ms == pytest.approx(4.35e6)
    assert cpu(8, [1900, 1900]).multiplications_per_ms == pytest.approx(3.8e6)
    unknown = cpu(4)
    assert (unknown.multiplications_per_ms, unknown.known) == (2e6, False)
    with pytest.raises(ValueError, match="must be positive"):
        cpu(0)
    with pytest.raises(ValueError, match="must be positive"):
        cpu(1, [0.0])


def test_appendix_c_gpus() -> None:
    assert len(GPU_GIGA) == 17
    assert gpu("Adreno (TM) 540", "opencl") == MnnBackend("Adreno (TM) 540, opencl", 42.74e6, 0.05)
    assert gpu("Mali-G72 MP12", "Vulkan").multiplications_per_ms == 31.61e6
    assert gpu("Mali-G72 MP12", "Vulkan").schedule_ms == 0.01
    assert gpu("Adreno 506", "opengl").multiplications_per_ms == 4.74e6
    other = gpu("Mali-G610", "vulkan")
    assert (other.multiplications_per_ms, other.known) == (4e6, False)
    with pytest.raises(ValueError, match="known: opencl, opengl, vulkan, metal"):
        gpu("Adreno 540", "cuda")


def mobile(blocks: int = 2) -> Graph:
    b = GraphBuilder("mobile")
    x = b.relu(b.batch_norm(b.conv(b.input((1, 3, 32, 32)), 16, 3, stride=2)))
    for _ in range(blocks):
        x = b.relu(b.conv(x, 16, 3))
        x = b.relu(b.conv(x, 16, 1))
    return b.build([b.flatten(b.global_avg_pool(x))])


def test_equation_4_sums_equation_5_over_ops() -> None:
    graph = mobile()
    table, names = operators(graph)
    # activations are in their convolutions, and the flatten is a view
    assert len(table) == len(names) == 6
    multiplications = (
        sum(node_macs for node_macs in table.macs.tolist()) + 16
    )  # the pooling writes 16 elements
    by_cpu = MnnCost(cpu(1, [1000]), schemes=False)
    assert by_cpu.network_ms(graph) == pytest.approx(multiplications / 1e6)
    by_gpu = MnnCost(gpu("Mali-G71", "opencl"), schemes=False)
    assert by_gpu.network_ms(graph) == pytest.approx(multiplications / 31.61e6 + 6 * 0.05)
    assert MnnCost(cpu(1, [1000])).network_ms(graph) < by_cpu.network_ms(graph)
    names, schemes = algorithms(graph)
    assert len(names) == len(schemes) == 6
    assert schemes.names()[0] == "sliding window"
    assert sum(schemes.counts().values()) == 5


def test_it_is_a_regressor_like_the_others() -> None:
    model: Regressor = MnnCost(cpu(2, [2000, 2000]), scaled=True)
    works = [workload(k) for k in random_kernels(np.random.default_rng(0), USUAL_COUNTS)]
    before, sigma = model.predict(works)
    assert before.shape == (len(works),)
    assert (before > 0).all()
    assert (sigma == 1.0).all()
    fitted = model.refit(works, 3.0 * before, np.zeros(len(works)))
    after, spread = fitted.predict(works)
    np.testing.assert_allclose(after, 3.0 * before)
    np.testing.assert_allclose(spread, 0.0, atol=1e-12)
    np.testing.assert_array_equal(model.predict(works)[0], before)
    again, _ = MnnCost.from_state(fitted.state()).predict(works)
    np.testing.assert_array_equal(again, after)
    plain = MnnCost(cpu(2, [2000, 2000])).fit(works, 3.0 * before)
    np.testing.assert_array_equal(plain.predict(works)[0], before)
    assert plain.sigma == pytest.approx(1.4826 * math.log(3.0))


def test_an_empty_table_and_other_ops() -> None:
    assert len(choose([])) == 0
    b = GraphBuilder("up")
    graph = b.build([b.relu(b.conv_transpose(b.input((1, 8, 7, 7)), 16, 4, stride=2, pads=1))])
    works = [workload(extract(graph, [node])) for node in graph.nodes]
    found = choose(works)
    assert found.names() == ["direct", "direct"]
    assert found.operations[1] == 16 * 14 * 14
    assert found.counts() == {}
    assert as_table(works).macs[0] == found.operations[0]
