"""The true latencies of simulated boards, compared with results worked out by hand."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent.runtimes.base import Job, RuntimeFailure
from latfarm_agent.runtimes.simulated.cost import (
    exact_cold_ms,
    exact_latency_ms,
    exact_layers,
    true_kernels,
)
from latfarm_agent.runtimes.simulated.profile import BoardProfile, SimulatedTiles, Throttle
from latfarm_agent.runtimes.simulated.runtime import SimulatedRuntime

PLAIN = BoardProfile("sim", peak_macs_per_ms=1e6, bandwidth_bytes_per_ms=1e12)
MakeGraph = typing.Callable[..., typing.Dict[str, Any]]


def names(graph: dict[str, Any], profile: BoardProfile) -> list[str]:
    return [layer.name for layer in exact_layers(graph, profile)]


def test_a_convolution_in_whole_tiles(make_graph: MakeGraph) -> None:
    graph = make_graph(
        [("conv", "Conv", ["x", "w"], ["y"])],
        {"x": [1, 3, 10, 10], "y": [1, 10, 8, 7]},
        {"w": [10, 3, 3, 4]},
    )
    macs = 8 * 7 * 3 * 10 * 12
    assert exact_latency_ms(graph, PLAIN) == pytest.approx(macs / 1e6)
    tiled = replace(PLAIN, tiles=SimulatedTiles(out_channels=8, in_channels=4, width=2))
    assert exact_latency_ms(graph, tiled) == pytest.approx(8 * 8 * 4 * 16 * 12 / 1e6)


def test_grouped_and_depthwise_convolutions(make_graph: MakeGraph) -> None:
    def graph(groups: int) -> dict[str, Any]:
        shape = [1, 12, 4, 4]
        return make_graph(
            [("conv", "Conv", ["x", "w"], ["y"])],
            {"x": shape, "y": shape},
            {"w": [12, 12 // groups, 3, 3]},
            attrs={"conv": {"group": groups}},
        )

    tiled = replace(PLAIN, tiles=SimulatedTiles(out_channels=8, in_channels=4))
    assert exact_latency_ms(graph(3), PLAIN) == pytest.approx(16 * 9 * 4 * 4 * 3 / 1e6)
    assert exact_latency_ms(graph(3), tiled) == pytest.approx(16 * 9 * 4 * 8 * 3 / 1e6)
    assert exact_latency_ms(graph(12), PLAIN) == pytest.approx(16 * 9 * 12 / 1e6)
    assert exact_latency_ms(graph(12), tiled) == pytest.approx(16 * 9 * 16 / 1e6)


def test_other_ops(make_graph: MakeGraph) -> None:
    gemm = make_graph(
        [("fc", "Gemm", ["x", "w", "b"], ["y"])],
        {"x": [2, 64], "y": [2, 10]},
        {"w": [10, 64], "b": [10]},
    )
    assert exact_latency_ms(gemm, PLAIN) == pytest.approx(2 * 64 * 10 / 1e6)
    pool = make_graph(
        [("pool", "MaxPool", ["x"], ["y"])],
        {"x": [1, 4, 8, 8], "y": [1, 4, 4, 4]},
        attrs={"pool": {"kernel_shape": [3, 3]}},
    )
    slow_vector = replace(PLAIN, vector_ops_per_ms=1e3)
    assert exact_latency_ms(pool, slow_vector) == pytest.approx(64 * 9 / 1e3)
    shape = [1, 4, 8, 8]
    relu = make_graph([("relu", "Relu", ["x"], ["y"])], {"x": shape, "y": shape})
    assert exact_latency_ms(relu, slow_vector) == pytest.approx(256 / 1e3)
    moved = make_graph([("r", "Reshape", ["x"], ["y"])], {"x": shape, "y": [256]})
    narrow = replace(PLAIN, bandwidth_bytes_per_ms=1e3, overhead_ms=0.5)
    assert exact_latency_ms(moved, narrow) == pytest.approx(0.5 + 2 * 1024 / 1e3)


def test_memory_bound_kernels_and_what_fusion_saves(make_graph: MakeGraph) -> None:
    shape = [1, 4, 8, 8]
    graph = make_graph(
        [("conv", "Conv", ["x", "w"], ["a"]), ("relu", "Relu", ["a"], ["y"])],
        {"x": shape, "a": shape, "y": shape},
        {"w": [4, 4, 1, 1]},
    )
    board = replace(PLAIN, bandwidth_bytes_per_ms=1e3, overhead_ms=0.25)
    apart = exact_latency_ms(graph, board)
    assert apart == pytest.approx(2 * 0.25 + (2 * 1024 + 64 + 2 * 1024) / 1e3)
    fused = replace(board, fused_pairs=frozenset({("Conv", "Relu")}))
    assert names(graph, fused) == ["conv+relu"]
    assert exact_latency_ms(graph, fused) == pytest.approx(0.25 + (2 * 1024 + 64) / 1e3)


def test_io_calls_and_cold_weights(make_graph: MakeGraph) -> None:
    shape = [1, 4, 8, 8]
    graph = make_graph(
        [("conv", "Conv", ["x", "w"], ["y"])], {"x": shape, "y": shape}, {"w": [4, 4, 1, 1]}
    )
    base = exact_latency_ms(graph, PLAIN)
    io = replace(PLAIN, io_bytes_per_ms=1e3, call_overhead_ms=2.0)
    assert exact_latency_ms(graph, io) == pytest.approx(base + 2.0 + 2 * 1024 / 1e3)
    assert exact_cold_ms(graph, PLAIN) == base
    cold = replace(PLAIN, cold_bytes_per_ms=10.0)
    assert exact_cold_ms(graph, cold) == pytest.approx(base + 6.4)
    assert exact_latency_ms(graph, cold) == base


PAIRS = frozenset(
    {("Conv", "BatchNormalization"), ("Conv", "Relu"), ("Conv", "Add"), ("Add", "Relu")}
)


def residual(make_graph: MakeGraph) -> dict[str, Any]:
    """The block of Fig. 5 in the nn-Meter paper: a pool, two convolutions, a sum, a relu."""
    shape = [1, 4, 8, 8]
    nodes = [
        ("pool", "MaxPool", ["x"], ["p"]),
        ("conv1", "Conv", ["p", "w"], ["c1"]),
        ("bn1", "BatchNormalization", ["c1"], ["b1"]),
        ("relu1", "Relu", ["b1"], ["r1"]),
        ("conv2", "Conv", ["r1", "w"], ["c2"]),
        ("bn2", "BatchNormalization", ["c2"], ["b2"]),
        ("add", "Add", ["p", "b2"], ["a"]),
        ("relu2", "Relu", ["a"], ["y"]),
    ]
    tensors = ("x", "p", "c1", "b1", "r1", "c2", "b2", "a", "y")
    return make_graph(nodes, dict.fromkeys(tensors, shape), {"w": [4, 4, 3, 3]})


def test_the_papers_block_on_its_gpu_and_cpu(make_graph: MakeGraph) -> None:
    graph = residual(make_graph)
    gpu = replace(PLAIN, fused_pairs=PAIRS, multi_inbound=1)
    assert names(graph, gpu) == ["pool", "conv1+bn1+relu1", "conv2+bn2+add+relu2"]
    cpu = replace(gpu, fused_pairs=PAIRS - {("Conv", "Add")})
    assert names(graph, cpu) == ["pool", "conv1+bn1+relu1", "conv2+bn2", "add+relu2"]
    assert names(graph, replace(gpu, multi_inbound=0))[-2:] == ["conv2+bn2", "add+relu2"]
    assert len(names(graph, PLAIN)) == 8


def test_the_first_and_the_last_branch(make_graph: MakeGraph) -> None:
    shape = [1, 4, 8, 8]
    tensors = dict.fromkeys(("x", "c", "r", "s", "y"), shape)
    out = make_graph(
        [
            ("conv", "Conv", ["x", "w"], ["c"]),
            ("relu", "Relu", ["c"], ["r"]),
            ("tanh", "Tanh", ["c"], ["s"]),
        ],
        tensors,
        {"w": [4, 4, 1, 1]},
        outputs=["r", "s"],
    )
    both = frozenset({("Conv", "Relu"), ("Conv", "Tanh")})
    for rule, wanted in ((0, 3), (1, "conv+relu"), (2, "conv+tanh")):
        found = names(out, replace(PLAIN, fused_pairs=both, multi_outbound=rule))
        assert wanted in (len(found), found[0], found[-1])
    into = make_graph(
        [
            ("conv", "Conv", ["x", "w"], ["c"]),
            ("tanh", "Tanh", ["x"], ["r"]),
            ("add", "Add", ["c", "r"], ["y"]),
        ],
        tensors,
        {"w": [4, 4, 1, 1]},
    )
    both = frozenset({("Conv", "Add"), ("Tanh", "Add")})
    for rule, wanted in ((0, "add"), (1, "conv+add"), (2, "tanh+add")):
        assert wanted in names(into, replace(PLAIN, fused_pairs=both, multi_inbound=rule))


def test_a_fusion_that_closes_a_cycle_is_refused(make_graph: MakeGraph) -> None:
    shape = [1, 4, 8, 8]
    graph = make_graph(
        [
            ("conv", "Conv", ["x", "w"], ["c"]),
            ("pool", "MaxPool", ["c"], ["p"]),
            ("add", "Add", ["c", "p"], ["y"]),
        ],
        dict.fromkeys(("x", "c", "p", "y"), shape),
        {"w": [4, 4, 1, 1]},
    )
    eager = replace(
        PLAIN, fused_pairs=frozenset({("Conv", "Add")}), multi_inbound=1, multi_outbound=2
    )
    assert names(graph, eager) == ["conv", "pool", "add"]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw random graphs of element-wise ops with branches and sums."""
    shape = [1, 2, 2, 2]
    tensors, nodes = ["x"], []
    for index in range(draw(st.integers(1, 14))):
        op = draw(st.sampled_from(["Relu", "Tanh", "Add", "Mul"]))
        read = [draw(st.sampled_from(tensors)) for _ in range(2 if op in ("Add", "Mul") else 1)]
        nodes.append(
            {"name": f"n{index}", "op": op, "inputs": read, "outputs": [f"t{index}"], "attrs": {}}
        )
        tensors.append(f"t{index}")
    unread = [t for t in tensors[1:] if not any(t in node["inputs"] for node in nodes)]
    return {
        "name": "random",
        "inputs": ["x"],
        "outputs": unread,
        "nodes": nodes,
        "weights": {},
        "types": {t: {"dtype": "float32", "shape": shape} for t in tensors},
    }


@given(
    graph=graphs(),
    pairs=st.frozensets(
        st.tuples(*[st.sampled_from(["Relu", "Tanh", "Add", "Mul"])] * 2), max_size=12
    ),
    inbound=st.integers(0, 2),
    outbound=st.integers(0, 2),
)
def test_kernels_cover_each_node_once_and_can_run_in_order(
    graph: dict[str, Any], pairs: frozenset[tuple[str, str]], inbound: int, outbound: int
) -> None:
    profile = replace(PLAIN, fused_pairs=pairs, multi_inbound=inbound, multi_outbound=outbound)
    kernels = true_kernels(graph, profile)
    assert sorted(index for kernel in kernels for index in kernel) == list(
        range(len(graph["nodes"]))
    )
    ready = set(graph["inputs"])
    for kernel in kernels:
        made = {t for index in kernel for t in graph["nodes"][index]["outputs"]}
        read = {t for index in kernel for t in graph["nodes"][index]["inputs"]}
        assert read - made <= ready, "a kernel needs what a later one makes"
        ready |= made
    assert exact_latency_ms(graph, profile) == pytest.approx(
        sum(layer.latency_ms for layer in exact_layers(graph, profile))
    )


def job(path: Path, request: str = "r", session: int = 0, sequence: int = 0) -> Job:
    return Job(path, {}, "fp32", path.parent, request, session, sequence)


def board(tmp_path: Path, **values: Any) -> SimulatedRuntime:
    path = tmp_path / "profile.json"
    data = {"platform": "sim", "peak_macs_per_ms": 1e6, "bandwidth_bytes_per_ms": 1e6}
    path.write_text(json.dumps(dict(data, **values)))
    return SimulatedRuntime(profile=str(path))


def latency(runtime: SimulatedRuntime, asked: Job) -> float:
    runtime.prepare(asked)
    found = runtime.run()
    assert found is not None
    return found


def test_noise_is_a_hash_of_the_question(tmp_path: Path, conv_graph: Callable[..., Path]) -> None:
    path = conv_graph(tmp_path / "g.json")
    first = board(tmp_path, noise=0.05, session_noise=0.02, seed=3)
    second = board(tmp_path, noise=0.05, session_noise=0.02, seed=3)
    assert latency(first, job(path)) == latency(second, job(path))
    others = {
        latency(first, job(path)),
        latency(first, job(path, request="other")),
        latency(first, job(path, session=1)),
        latency(board(tmp_path, noise=0.05, session_noise=0.02, seed=4), job(path)),
    }
    assert len(others) == 4


def test_drift_and_throttling(tmp_path: Path, conv_graph: Callable[..., Path]) -> None:
    path = conv_graph(tmp_path / "g.json")
    exact = latency(board(tmp_path), job(path))
    drifting = board(tmp_path, drift=0.1)
    assert latency(drifting, job(path, sequence=500)) == pytest.approx(exact * 1.05)
    secret = {"every": 10, "length": 2, "factor": 1.5, "reported": False}
    throttling = board(tmp_path, throttle=secret)
    factors = [latency(throttling, job(path, sequence=i)) / exact for i in range(20)]
    assert factors == pytest.approx(([1.0] * 8 + [1.5] * 2) * 2)
    told = board(tmp_path, throttle=dict(secret, reported=True))
    with pytest.raises(RuntimeFailure) as failure:
        told.prepare(job(path, sequence=9))
    assert failure.value.code == "THROTTLED"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "JSON object"),
        ("{", "Expecting"),
        ('{"platform": ""}', "platform"),
        ("{}", "platform"),
        ('{"platform": "p", "peak": 1}', "unknown key 'peak'"),
        ('{"platform": "p", "peak_macs_per_ms": 0}', "peak_macs_per_ms"),
        ('{"platform": "p", "noise": -1}', "noise"),
        ('{"platform": "p", "tiles": {"width": 0}}', "tiles"),
        ('{"platform": "p", "tiles": {"depth": 2}}', "depth"),
        ('{"platform": "p", "multi_inbound": 3}', "multi_inbound"),
        ('{"platform": "p", "fused_pairs": [["Conv"]]}', "fused_pairs"),
    ],
)
def test_profiles_that_are_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as error:
        BoardProfile.read(path)
    assert str(path) in str(error.value)


def test_a_whole_profile(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(
        json.dumps(
            {
                "platform": "sim-npu-int8",
                "dtype": "int8",
                "tiles": {"out_channels": 8},
                "fused_pairs": [["Conv", "Relu"]],
                "throttle": {"every": 5, "length": 1},
                "crash_ops": ["Celu"],
            }
        )
    )
    found = BoardProfile.read(path)
    assert found.tiles == SimulatedTiles(8, 1, 1)
    assert found.throttle == Throttle(5, 1)
    assert found.fused_pairs == {("Conv", "Relu")}
    assert found.crash_ops == {"Celu"}
    assert found.model_format == "graph-json"


def test_data_that_a_cache_has_lost_are_read_again(make_graph: MakeGraph) -> None:
    shape = [1, 4, 10, 10]  # 1,600 bytes
    graph = make_graph(
        [("one", "Conv", ["x", "v"], ["t"]), ("two", "Conv", ["t", "w"], ["y"])],
        {"x": shape, "t": shape, "y": shape},
        {"v": [4, 4, 5, 5], "w": [4, 4, 5, 5]},  # 1,600 bytes each
    )

    def extra(cache_bytes: float) -> list[float]:
        cached = replace(PLAIN, cache_bytes=cache_bytes, cache_bytes_per_ms=1e3)
        pairs = zip(exact_layers(graph, cached), exact_layers(graph, PLAIN))
        return [round(with_cache.latency_ms - plain.latency_ms, 6) for with_cache, plain in pairs]

    # 8,000 bytes in all lie between two uses of a weight or of the input
    assert extra(8000) == [0.0, 0.0]
    # weights and the input are lost; the tensor between the two was written just now
    assert extra(7999) == [3.2, 1.6]
    assert extra(1599) == [3.2, 3.2]
    assert exact_latency_ms(graph, replace(PLAIN, cache_bytes=100.0)) == pytest.approx(
        exact_latency_ms(graph, PLAIN)
    )
    with pytest.raises(ValueError, match="cache_bytes_per_ms: must not be negative"):
        BoardProfile.from_json({"platform": "sim", "cache_bytes_per_ms": -1})


def test_a_chain_runs_as_one_kernel_unless_it_is_read_in_between() -> None:
    def nodes(*, leak: bool = False) -> dict[str, Any]:
        ops = [
            ("ReduceMean", ["x"], ["m"]),
            ("Sub", ["x", "m"], ["c"]),
            ("Pow", ["c", "two"], ["s"]),
            ("Relu", ["x"], ["r"]),
            ("Add", ["s", "eps"], ["y"]),
        ]
        shapes = {name: [1, 8, 16] for name in "xcsry"} | {"m": [1, 8, 1]}
        kind = {"dtype": "float32", "shape": []}
        return {
            "inputs": ["x"],
            "outputs": ["y", "r", *(["s"] if leak else [])],
            "nodes": [
                {"name": f"n{i}", "op": op, "inputs": ins, "outputs": outs}
                for i, (op, ins, outs) in enumerate(ops)
            ],
            "weights": {"two": kind, "eps": kind},
            "types": {name: {"dtype": "float32", "shape": s} for name, s in shapes.items()},
        }

    chain = ["ReduceMean", "Sub", "Pow", "Add"]
    data = {"platform": "p", "fused_chains": [["Sub", "Pow"], chain]}
    profile = BoardProfile.from_json(data)
    assert sorted(true_kernels(nodes(), profile)) == [[0, 1, 2, 4], [3]]
    assert sorted(true_kernels(nodes(leak=True), profile)) == [[0], [1, 2], [3], [4]]
    joined = BoardProfile.from_json({**data, "fused_pairs": [["ReduceMean", "Relu"]]})
    assert sorted(true_kernels(nodes(), joined)) == [[0, 1, 2, 4], [3]]
