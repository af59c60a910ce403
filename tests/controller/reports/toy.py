"""A toy platform whose true latencies are a formula."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.measurement import Measurement, Outcome

PLATFORM = "toy-1.0-fp32-1t"
CAMPAIGN = "characterize-toy"
OVERHEAD_MS = 0.01
CASES = {
    "conv+relu@small": {
        "answer": "fused",
        "ratio": 0.9,
        "gain_ms": 0.09,
        "base_ms": 0.1,
        "connected_ms": 0.4,
        "rounds": 3,
    },
    "conv+relu@large": {
        "answer": "undecided",
        "ratio": 0.4,
        "gain_ms": 0.4,
        "base_ms": 1.0,
        "connected_ms": 4.0,
        "rounds": 6,
    },
}
FUSION: dict[str, Any] = {
    "pairs": [
        {
            "pair": ["Conv", "Relu"],
            "used": "fused",
            "source": "profile",
            "time_fused": "fused",
            "graph_fused": True,
            "size_dependent": False,
            "layout": False,
            "error": "",
            "cases": CASES,
        },
        {
            "pair": ["Relu", "Conv"],
            "used": "separate",
            "source": "profile",
            "time_fused": "fused",
            "graph_fused": False,
            "size_dependent": True,
            "layout": False,
            "error": "",
            "cases": {"relu+conv@small": CASES["conv+relu@small"] | {"gain_ms": 0.0721}},
        },
        {
            "pair": ["MaxPool", "Relu"],
            "used": "separate",
            "source": "prior",
            "time_fused": "undecided",
            "graph_fused": None,
            "size_dependent": False,
            "layout": False,
            "error": "it would not run",
            "cases": {},
        },
    ],
    "profile": "yes",
    "black_box": {
        "pairs": 2,
        "fused": 1,
        "found": 1,
        "wrongly_fused": 1,
        "undecided": 0,
        "precision": 0.5,
        "recall": 1.0,
    },
    "connections": [],
}
RULES = FusionRules(
    {("Conv", "Relu"): "fused", ("Relu", "Conv"): "separate", ("MaxPool", "Relu"): "separate"},
    multi_inbound=0,
    multi_outbound=0,
    platform=PLATFORM,
)


def conv(inside: int, outside: int, side: int, kernel: int = 3) -> Graph:
    """A convolution and its activation."""
    b = GraphBuilder(f"conv{outside}")
    return b.build([b.relu(b.conv(b.input((1, inside, side, side)), outside, kernel))])


def depthwise(channels: int, side: int) -> Graph:
    """A depthwise convolution."""
    b = GraphBuilder(f"dw{channels}")
    return b.build([b.depthwise(b.input((1, channels, side, side)), 3)])


def network(name: str, widths: tuple[int, ...], side: int) -> Graph:
    """A chain of convolutions."""
    b = GraphBuilder(name)
    x = b.input((1, 3, side, side))
    for width in widths:
        x = b.relu(b.conv(x, width, 3))
    return b.build([b.max_pool(x, 2)])


def truth_ms(graph: Graph) -> float:
    """A latency that rises in steps of eight channels, in milliseconds."""
    work = workload(Kernel(graph))
    steps = -(-work.out_channels // 8) * 8 / max(work.out_channels, 1)
    return 0.004 + work.macs * steps / 4e7 + (work.input_bytes + work.output_bytes) / 4e7


def measured(
    graph: Graph, purpose: str, latency_ms: float, number: int, **more: Any
) -> Measurement:
    """A good measurement of the toy board."""
    plain = Measurement(
        request_id=f"{purpose}-{hash_of(graph)[:8]}-{number}",
        graph_hash=hash_of(graph),
        platform=PLATFORM,
        purpose=purpose,
        outcome=Outcome.OK,
        board_id="toy-board",
        fingerprint="f" * 8,
        latency_ms=latency_ms,
        mad_ms=0.01 * latency_ms,
        session_ms=(latency_ms,),
        runs=20,
        board_ms=50.0,
        measured_at_s=1000.0 + number,
        conditions={
            "throttling": "0",
            "clock_mhz_before": "2000",
            "clock_mhz_after": "1990",
            "governor": "unknown",
            "load_1m": f"{number % 3}.5",
        },
    )
    return replace(plain, **more)


def failed(graph: Graph, purpose: str, number: int, code: str, message: str) -> Measurement:
    """A measurement that failed because of its model."""
    return replace(
        measured(graph, purpose, 0.0, number),
        latency_ms=None,
        mad_ms=None,
        session_ms=(),
        outcome=Outcome.MODEL_ERROR,
        error_code=code,
        error_message=message,
    )


def kernels() -> list[Graph]:
    """Kernels, most of which lie on one slice along the output channels."""
    found = [conv(16, outside, 14) for outside in range(8, 72, 6)]
    found += [conv(inside, 32, 14) for inside in (4, 8, 12, 24, 32)]
    found += [conv(16, 32, side) for side in (7, 10, 20, 28)]
    found += [conv(18, outside, 14) for outside in (20, 44)]
    return found + [depthwise(channels, 14) for channels in range(8, 72, 6)]


def networks() -> list[Graph]:
    """Ten calibration networks."""
    return [network(f"resnet18-x{n}", (8 + 2 * n, 16 + 4 * n), 12 + n) for n in range(10)]


def unseen() -> list[Graph]:
    """Networks that are measured after the training."""
    return [network(f"mine-{n}", (11 + 3 * n, 21 + n), 13 + n) for n in range(3)]


def network_ms(graph: Graph) -> float:
    """The true latency of a network: the sum of its convolutions, and the overhead of a call."""
    from latfarm_predictors.kernels.fusion_search import split

    return OVERHEAD_MS + sum(truth_ms(kernel.graph) for kernel in split(graph, RULES))


def campaign(**changes: Any) -> CampaignRecord:
    """A finished characterisation."""
    plain = CampaignRecord(
        CAMPAIGN,
        "toy",
        "characterize",
        PLATFORM,
        config={"budget": 33, "sampler": "latfarm", "target": 0.9},
        state="done",
        measurements=90,
        board_ms=9e3,
        wall_ms=1.2e4,
        started_at_s=1000.0,
        finished_at_s=1100.0,
        outcome={
            "rules": RULES.to_json(),
            "call_overhead_ms": OVERHEAD_MS,
            "fusion": FUSION,
            "kernels": {
                "kernels": 33,
                "drawn": 34,
                "stopped": "target",
                "accuracy": 53 / 57,
                "judged": 57,
            },
            "sentinel": [
                {
                    "board_id": "toy-board",
                    "count": 9,
                    "median_ms": 0.3,
                    "spread": 0.01,
                    "drift": 0.05,
                    "limit": 0.03,
                }
            ],
            "void": ["a"],
            "insight": {"asked": "auto", "chosen": "profile", "reason": "it accounts for the call"},
            "boards": {"toy-board": {"busy_ms": 9e3, "wall_ms": 1e4, "idle_share": 0.1}},
        },
    )
    return replace(plain, **changes)


@dataclass
class Lab:
    """A store and a folder of bundles, in which the platform is measured and trained."""

    store: DuckDBStore
    bundles: Path
