"""What caches have lost when a kernel needs its data, worked out by hand."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.reuse import CACHES_BYTES, spills_alone, spills_of
from latfarm_predictors.kernels.workload import workloads_of

COUNT = len(CACHES_BYTES)
MAP_BYTES = 4 * 64 * 56 * 56  # 802,816
WEIGHT_BYTES = 4 * (64 * 64 * 9 + 64)  # 147,712, with the bias


def chain() -> Graph:
    b = GraphBuilder("chain")
    x = b.input((1, 64, 56, 56))
    for _ in range(3):
        x = b.conv(x, 64, 3, bias=True)
    return b.build([x])


def lost(spills: tuple[float, ...]) -> tuple[dict[int, float], dict[int, float]]:
    """Lost bytes of weights and of inputs, by the size of the cache."""
    weights = dict(zip(CACHES_BYTES, spills[:COUNT], strict=True))
    return weights, dict(zip(CACHES_BYTES, spills[COUNT:], strict=True))


def test_weights_wait_for_the_whole_network_and_inputs_for_what_lies_between() -> None:
    graph = chain()
    parts = find_parts(graph, FusionRules.none())
    found = [lost(spills) for spills in spills_of(graph, parts)]
    whole = 4 * MAP_BYTES + 3 * WEIGHT_BYTES  # 3,654,400
    for weights, _ in found:
        for size in CACHES_BYTES:
            assert weights[size] == (WEIGHT_BYTES if whole > size else 0.0)
    first, second = found[0][1], found[1][1]
    for size in CACHES_BYTES:
        assert first[size] == (MAP_BYTES if whole > size else 0.0)
        # the tensor was written just now: it lies in every cache that can hold it
        assert second[size] == (MAP_BYTES if size < MAP_BYTES else 0.0)


def test_a_tensor_that_is_read_late_is_lost_to_what_ran_between() -> None:
    b = GraphBuilder("skip")
    x = b.conv(b.input((1, 64, 56, 56)), 64, 1, bias=False)
    y = b.conv(x, 64, 3, bias=False)
    graph = b.build([b.add(x, y)])
    parts = find_parts(graph, FusionRules.none())
    _, inputs = lost(spills_of(graph, parts)[2])
    between = MAP_BYTES + 2 * MAP_BYTES + 4 * 64 * 64 * 9  # x itself, and all that conv 3x3 touches
    for size in CACHES_BYTES:
        late = MAP_BYTES if between > size else 0.0
        assert inputs[size] == late + (MAP_BYTES if size < MAP_BYTES else 0.0)


def test_a_kernel_alone_touches_its_own_data() -> None:
    graph = chain()
    work = workloads_of(graph, find_parts(graph, FusionRules.none()))[0]
    own = work.weight_bytes + work.input_bytes + work.output_bytes
    weights, inputs = lost(spills_alone(work))
    for size in CACHES_BYTES:
        assert (weights[size] > 0) == (inputs[size] > 0) == (own > size)
