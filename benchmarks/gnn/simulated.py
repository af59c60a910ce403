"""Networks on simulated boards, whose true latencies are computed, with the boards' noise.

Two of the built-in boards do not take the sum of their kernels: `branches` and `overlap`. Only on
such boards can a corrector of sums show what it is worth. Latencies come from the boards' cost
model itself, without a farm: the board draws the same noise when it is asked over gRPC.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller.campaigns.profiles.insight import (
    layout_share,
    sample_of,
    transfer_ms_per_mb,
)
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer
from latfarm_predictors.samples import KernelSample

from benchmarks.gnn.draws import networks_of
from benchmarks.gnn.networks import BenchNetwork, KernelData, Source
from benchmarks.platforms import simulated_boards

PASSES = 2
"""Number of passes over the networks, on different occasions."""
RUNS = 50
"""Number of runs in a pass: as many as in NNLQP, section 8.1."""
_MAD = 0.01
"""Median absolute deviation of the runs of a kernel, as a share of its latency."""


def source_of(kind: str, per_family: int, kernels: int, families: Sequence[str]) -> Source:
    """Networks of some families on a simulated board.

    Args:
        kind: name of a built-in board.
        per_family: number of networks of each family.
        kernels: number of different kernels that are measured for predictors of kernels.
        families: names of families of the zoo.
    """
    data = simulated_boards.profile(kind)
    profile = BoardProfile.from_json(data)
    networks = []
    for family in families:
        for graph in networks_of(family, per_family):
            passes = tuple(_measured_ms(graph, profile, at) for at in range(PASSES))
            networks.append(BenchNetwork(graph, family, passes))

    def measured(seen: Sequence[BenchNetwork], seed: int) -> KernelData:
        return _kernels(seen, profile, data, kernels, seed)

    note = "a simulated board: its truth is a cost model"
    facts = {"noise": profile.noise, "session_noise": profile.session_noise, "passes": PASSES}
    return Source(f"sim-{kind}", profile.platform, note, networks, measured, facts)


def _measured_ms(graph: Graph, profile: BoardProfile, occasion: int) -> float:
    """What a pass tells: the true latency with the noise of a session and of its runs' mean."""
    draw = random.Random(f"{profile.platform} {hash_of(graph)} {occasion}")
    sigma = math.hypot(profile.session_noise, profile.noise / math.sqrt(RUNS))
    exact_ms: float = exact_latency_ms(graph.to_json(), profile)
    return exact_ms * math.exp(draw.gauss(0.0, sigma))


def _kernels(
    seen: Sequence[BenchNetwork],
    profile: BoardProfile,
    data: dict[str, Any],
    count: int,
    seed: int,
) -> KernelData:
    """Different kernels of some networks, drawn at random, each measured as a model of its own.

    On a board that moves inputs and outputs, networks pay for that once, and not for each kernel.
    There a campaign takes the time of a kernel from its profile, and so does this.
    """
    pairs = {(first, second): "fused" for first, second in data["fused_pairs"]}
    rules = FusionRules.from_json(
        {
            **FusionRules().to_json(),
            "platform": profile.platform,
            "pairs": {f"{first}+{second}": verdict for (first, second), verdict in pairs.items()},
            "multi_inbound": profile.multi_inbound,
            "multi_outbound": profile.multi_outbound,
        }
    )
    draw = random.Random(f"kernels {seed}")
    order = list(seen)
    draw.shuffle(order)
    found: dict[str, Kernel] = {}
    for network in order:
        kernels = split(network.graph, rules)
        draw.shuffle(kernels)
        for kernel in kernels[: max(2, count // 50)]:
            found.setdefault(kernel.kernel_id, kernel)
        if len(found) >= count:
            break
    chosen = list(found.values())[:count]
    call_ms = profile.call_overhead_ms
    if not profile.io_bytes_per_ms:
        times_ms = [_measured_ms(kernel.graph, profile, 0) for kernel in chosen]
        alone = [KernelSample(k, ms, _MAD * ms) for k, ms in zip(chosen, times_ms, strict=True)]
        return KernelData(alone, rules, call_ms)
    profiled = [(kernel, _profiled(kernel.graph, profile)) for kernel in chosen]
    samples = [sample_of(k, each, call_ms, layout_share([each], call_ms)) for k, each in profiled]
    moving_ms = transfer_ms_per_mb([(k.graph, [each]) for k, each in profiled], call_ms)
    return KernelData(samples, rules, call_ms, moving_ms)


def _profiled(graph: Graph, profile: BoardProfile) -> Measurement:
    """What the board answers when it is asked for a kernel and its profile."""
    latency_ms = _measured_ms(graph, profile, 0)
    layers = tuple(
        ProfiledLayer(layer.name, layer.op, layer.latency_ms, layer.device)
        for layer in exact_layers(graph.to_json(), profile)
    )
    return Measurement(
        request_id="",
        graph_hash=hash_of(graph),
        platform=profile.platform,
        purpose="kernel",
        outcome=Outcome.OK,
        latency_ms=latency_ms,
        mad_ms=_MAD * latency_ms,
        layers=layers,
    )
