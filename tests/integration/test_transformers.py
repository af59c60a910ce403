"""A board is characterised with transformers among its families, and predicts unseen ones.

The truth is the simulated board of the agent, which shares no code with the predictors. It runs a
decomposed layer norm, RMS norm or Gelu, and a linear layer with its bias, as one kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import drive
from latfarm_controller.training.training_set import collect
from latfarm_controller.zoo.draws.dataset import TRANSFORMERS
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor

pytestmark = pytest.mark.slow

PLATFORM = "sim-tokens"
NORM = ["ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"]
BOARD = BoardProfile.from_json(
    {
        "platform": PLATFORM,
        "peak_macs_per_ms": 3e7,
        "vector_ops_per_ms": 8e6,
        "bandwidth_bytes_per_ms": 1.2e7,
        "overhead_ms": 0.003,
        "call_overhead_ms": 0.01,
        "tiles": {"out_channels": 16, "in_channels": 1, "width": 2},
        "fused_pairs": [["Conv", "BatchNormalization"], ["Conv", "Relu"], ["MatMul", "Add"]],
        "fused_chains": [
            NORM,
            ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"],
            ["Div", "Erf", "Add", "Mul", "Mul"],
            ["Pow", "Mul", "Add", "Mul", "Tanh", "Add", "Mul", "Mul"],
        ],
    }
)
NOISE = 0.01
"""Relative standard deviation of a measurement."""
CONFIG: dict[str, Any] = {
    "budget": 300,
    "calibration": 10,
    "kernel_passes": 1,
    "fusion": {"pairs": [["conv", "relu"], ["conv", "bn"]], "sizes": ["small"]},
    "insight": "single",
}
JUDGED = 2
"""Number of unseen variants of each family."""


def exact_ms(graph: Graph) -> float:
    return exact_latency_ms(graph.to_json(), BOARD)


class Board:
    """Answers requests with the truth and some noise."""

    def __init__(self) -> None:
        self.answered: dict[str, Measurement] = {}

    def measure(self, request: MeasurementRequest) -> Measurement:
        known = self.answered.get(request.request_id)
        if known is not None:
            return known
        latency = exact_ms(request.graph)
        latency *= math.exp(Random(request.request_id).gauss(0.0, NOISE))
        made = self.answered[request.request_id] = Measurement(
            request_id=request.request_id,
            graph_hash=hash_of(request.graph),
            platform=request.platform,
            purpose=request.purpose,
            board_id="board",
            fingerprint="f0",
            measured_at_s=float(len(self.answered)),
            settings=request.settings,
            outcome=Outcome.OK,
            latency_ms=latency,
            mad_ms=0.2 * NOISE * latency,
            runs=20,
            board_ms=1000.0,
        )
        return made


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> PlatformPredictor:
    folder, board = tmp_path_factory.mktemp("characterised"), Board()
    campaign = make_campaign("characterize", PLATFORM, CONFIG)
    requests = drive(campaign, board.measure)
    store = DuckDBStore(folder / "latfarm.duckdb")
    store.add_measurements("c", [(board.answered[r.request_id], r.graph) for r in requests])
    outcome = campaign.outcome()
    record = CampaignRecord("c", "c", campaign.kind, PLATFORM, state="done", outcome=outcome)
    store.put_campaign(record)
    data = collect(store, PLATFORM, "c")
    store.close()
    samples = PlatformSamples(
        PLATFORM, data.rules, data.kernels, data.networks, data.call_overhead_ms
    )
    return fit_predictor(samples, baselines=False)


def fallbacks(predictor: PlatformPredictor, graph: Graph) -> Counter[tuple[str, str]]:
    """Type and source of the kernels that other kernels stand in for."""
    answer = predictor.predict(graph)
    return Counter((k.type, k.source) for k in answer.kernels if k.source.startswith("fallback"))


FAMILIES = [n for n, f in zoo.families().items() if f.module.startswith("transformers")]


def test_no_kernel_of_a_family_falls_back(predictor: PlatformPredictor) -> None:
    found = {name: fallbacks(predictor, zoo.build(name)) for name in FAMILIES}
    assert {name: told for name, told in found.items() if told} == {}


def unseen(name: str) -> list[Graph]:
    """Variants of a family; no campaign draws from these seeds."""
    found: list[Graph] = []
    number = 10**6
    while len(found) < JUDGED:
        number += 1
        try:
            found.append(variant(name, number))
        except GraphError:
            continue
    return found


def test_most_unseen_variants_are_predicted_within_ten_percent(
    predictor: PlatformPredictor,
) -> None:
    errors = {
        graph.name: predictor.predict(graph).latency_ms / exact_ms(graph) - 1.0
        for name in TRANSFORMERS
        for graph in unseen(name)
    }
    inside = [abs(error) <= 0.10 for error in errors.values()]
    assert sum(inside) >= 0.7 * len(inside), errors
    assert max(map(abs, errors.values())) < 0.4, errors


# Graphs as exporters write them

T, C, HEADS = 10, 24, 3
F32, I64 = np.float32, np.int64
Step = tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]


def exported(folder: Path, steps: Sequence[Step], opset: int, outputs: Sequence[str]) -> Graph:
    """A file with these nodes, read. Names of operands that no node makes tell what they are.

    "x" is the input of tokens, "w.." a matrix, "v.." a vector, "n.." a number, "i.." integers.
    """
    helper, made = onnx.helper, {t for _, _, outs, _ in steps for t in outs}
    held = []
    for name in dict.fromkeys(t for _, ins, _, _ in steps for t in ins if t):
        if name in made or name == "x":
            continue
        kind, *rest = name.split(":")
        if kind[0] == "w":
            value = np.zeros([int(n) for n in rest], F32)
        elif kind[0] == "v":
            value = np.zeros(int(rest[0]) if rest else C, F32)
        elif kind[0] == "n":
            value = np.array(float(rest[0]), F32)
        else:
            value = np.array([int(n) for n in rest], I64)
            value = value[0] if kind == "i0" else value
        held.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    nodes = []
    for op, ins, outs, attrs in steps:
        domain, _, name = op.rpartition("::")
        nodes.append(helper.make_node(name, ins, outs, domain=domain, **attrs))
    value_of = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "exported",
        [value_of("x", 1, (1, T, C))],
        [value_of(name, 1, None) for name in outputs],
        held,
    )
    ids = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "exported.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=ids).SerializeToString())
    return read_onnx(path)


def one(op: str, ins: str, out: str, **attrs: Any) -> Step:
    return op, ins.split(), out.split(), attrs


ATTENTION = [
    one("MatMul", f"h w1:{C}:{3 * C}", "m1"),
    one("Add", f"m1 v:{3 * C}", "m2"),
    one("Split", f"m2 i:{C}:{C}:{C}", "q k v", axis=2),
    *(one("Reshape", f"{t} i:1:{T}:{HEADS}:{C // HEADS}", f"{t}r") for t in "qkv"),
    one("Transpose", "qr", "qt", perm=[0, 2, 1, 3]),
    one("Transpose", "kr", "kt", perm=[0, 2, 3, 1]),
    one("Transpose", "vr", "vt", perm=[0, 2, 1, 3]),
    one("MatMul", "qt kt", "s1"),
    one("Mul", "s1 n:0.35", "s2"),
    one("Softmax", "s2", "s3", axis=-1),
    one("MatMul", "s3 vt", "o1"),
    one("Transpose", "o1", "o2", perm=[0, 2, 1, 3]),
    one("Reshape", f"o2 i:1:{T}:{C}", "o3"),
    one("MatMul", f"o3 w2:{C}:{C}", "o4"),
    one("Add", "vp o4", "o5"),
    one("Add", "x o5", "r"),
]
LAYER_NORM = [
    one("ReduceMean", "x", "a1", axes=[-1]),
    one("Sub", "x a1", "a2"),
    one("Pow", "a2 n:2", "a3"),
    one("ReduceMean", "a3", "a4", axes=[-1]),
    one("Add", "a4 n:1e-5", "a5"),
    one("Sqrt", "a5", "a6"),
    one("Div", "a2 a6", "a7"),
    one("Mul", "a7 vs", "a8"),
    one("Add", "a8 vb", "h"),
]
RMS_NORM = [
    one("Pow", "x n:2", "a1"),
    one("ReduceMean", "a1", "a2", axes=[-1]),
    one("Add", "a2 n:1e-6", "a3"),
    one("Sqrt", "a3", "a4"),
    one("Div", "x a4", "a5"),
    one("Mul", "vs a5", "h"),
]
GELU = [
    one("MatMul", f"r w3:{C}:{4 * C}", "g1"),
    one("Add", f"g1 v:{4 * C}", "g2"),
    one("Div", "g2 n:1.4142135", "g3"),
    one("Erf", "g3", "g4"),
    one("Add", "g4 n:1", "g5"),
    one("Mul", "g2 g5", "g6"),
    one("Mul", "g6 n:0.5", "g7"),
    one("MatMul", f"g7 w4:{4 * C}:{C}", "y"),
]
TANH = [
    one("MatMul", f"r w3:{C}:{4 * C}", "g2"),
    one("Pow", "g2 n:3", "g3"),
    one("Mul", "g3 n:0.044715", "g4"),
    one("Add", "g2 g4", "g5"),
    one("Mul", "g5 n:0.79788", "g6"),
    one("Tanh", "g6", "g7"),
    one("Add", "g7 n:1", "g8"),
    one("Mul", "g2 n:0.5", "g9"),
    one("Mul", "g9 g8", "g10"),
    one("MatMul", f"g10 w4:{4 * C}:{C}", "y"),
]
SWIGLU = [
    one("MatMul", f"r w3:{C}:{2 * C}", "g1"),
    one("Sigmoid", "g1", "g2"),
    one("Mul", "g1 g2", "g3"),
    one("MatMul", f"r w5:{C}:{2 * C}", "g4"),
    one("Mul", "g3 g4", "g5"),
    one("MatMul", f"g5 w4:{2 * C}:{C}", "y"),
]
AROUND = [  # a class token is taken, tokens are rolled and joined again
    one("Slice", "y i:0 i:4 i:1", "b1"),
    one("Slice", f"y i:4 i:{T} i:1", "b2"),
    one("Concat", "b2 b1", "b3", axis=1),
    one("Gather", "b3 i0:0", "y2", axis=1),
]
QUERIES = [one("MatMul", f"x w{i}:{C}:{C}", t) for i, t in enumerate("qkv")]
WHOLE = {
    "LayerNormalization": (17, [one("LayerNormalization", "x vs vb", "y", axis=-1)]),
    "Gelu": (20, [one("Gelu", "x", "y")]),
    "Gelu by tanh": (20, [one("Gelu", "x", "y", approximate="tanh")]),
    "RMSNormalization": (23, [one("RMSNormalization", "x vs", "y", axis=-1)]),
    "Attention": (
        23,
        [*QUERIES, one("Attention", "q k v", "y", q_num_heads=HEADS, kv_num_heads=HEADS)],
    ),
    "MultiHeadAttention": (
        17,
        [*QUERIES, one("com.microsoft::MultiHeadAttention", "q k v", "y", num_heads=HEADS)],
    ),
}


@pytest.mark.parametrize("norm", [LAYER_NORM, RMS_NORM], ids=["layer", "rms"])
@pytest.mark.parametrize("hidden", [GELU, TANH, SWIGLU], ids=["gelu", "tanh", "swiglu"])
def test_no_kernel_of_a_decomposed_block_falls_back(
    norm: list[Step], hidden: list[Step], predictor: PlatformPredictor, tmp_path: Path
) -> None:
    graph = exported(tmp_path, [*norm, *ATTENTION, *hidden, *AROUND], 13, ["y2"])
    assert not fallbacks(predictor, graph)
    kinds = {kernel.type for kernel in predictor.predict(graph).kernels}
    assert "LayerNorm+Mul+Add" in kinds if norm is LAYER_NORM else "RMSNorm+Mul" in kinds
    assert ("Gelu" in kinds) == (hidden is not SWIGLU)


@pytest.mark.parametrize("name", WHOLE)
def test_no_kernel_of_a_whole_op_falls_back(
    name: str, predictor: PlatformPredictor, tmp_path: Path
) -> None:
    opset, steps = WHOLE[name]
    assert not fallbacks(predictor, exported(tmp_path, steps, opset, ["y"]))
