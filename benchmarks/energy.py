"""How well energies of unseen networks are predicted, on a simulated board whose truth is known.

The board computes its energy from operations, bytes and time, with a counter that steps by 15.3 uJ
and 1 % of noise per session. It is characterised with energies, by the bench of a real agent, with
growing numbers of kernels. Networks of lineages that were not measured are predicted and compared
with the exact energies. Time is simulated, so that the load of the host changes nothing. The
figures are written into `energy.json` beside this file.

Usage: `make bench-energy`, or `python -m benchmarks.energy --kernels 100 450`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.runtimes.simulated.cost import exact_energy_mj
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.wire import board_as_pb, request_from_pb, result_as_pb, runtime_as_pb
from latfarm_controller import builders, zoo
from latfarm_controller.agents import results, wire
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.training import train
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_protos.v1 import agent_pb2 as pb

ASKED_AT_ONCE = 32
"""Number of requests that the campaign is asked for at a time."""
PROFILE: dict[str, Any] = {
    "platform": "toy",
    "peak_macs_per_ms": 2e7,
    "bandwidth_bytes_per_ms": 1e7,
    "overhead_ms": 0.005,
    "call_overhead_ms": 0.01,
    "noise": 0.01,
    "fused_pairs": [["Conv", "Relu"], ["Conv", "BatchNormalization"]],
    "tiles": {"out_channels": 8},
    "power": {
        "idle_mw": 3000.0,
        "active_mw": 900.0,
        "mac_pj": 4.0,
        "vector_pj": 4.0,
        "byte_pj": 60.0,
        "call_uj": 12.0,
        "noise": 0.01,
        "step_uj": 15.3,
    },
}
"""The simulated board."""
HELD_OUT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mobilenet-v1", {"width": 0.5, "resolution": 160}),
    ("mobilenet-v2", {"resolution": 96}),
    ("squeezenet", {"resolution": 128}),
    ("resnet18", {"resolution": 128}),
    ("vgg11", {"resolution": 64}),
    ("alexnet", {}),
    ("googlenet", {"resolution": 128}),
    ("shufflenet-v2", {}),
)
"""The networks that predictions are judged by."""
LINEAGES = ("alexnet", "inception", "mobilenet", "resnet", "shufflenet", "squeezenet", "vgg")
"""Lineages of these networks, which are left out of the characterisation."""


def main(arguments: Sequence[str]) -> int:
    """Characterise, predict and compare; print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, nargs="+", default=[100, 250, 450])
    parser.add_argument("--networks", type=int, default=12, help="number of calibration networks")
    parser.add_argument("--write", type=Path, default=Path(__file__).with_suffix(".json"))
    chosen = parser.parse_args(arguments)
    held_out = [zoo.build(name, **options) for name, options in HELD_OUT]
    rows = [judge(count, chosen.networks, held_out) for count in chosen.kernels]
    for row in rows:
        print(
            f"{row['kernels']} kernels: median {row['median_error']:.1%}, "
            f"worst {row['worst_error']:.1%}, {row['inside']} of {len(held_out)} inside"
        )
    chosen.write.write_text(json.dumps({"profile": PROFILE, "rows": rows}, indent=1) + "\n")
    return 0


def judge(kernels: int, networks: int, held_out: Sequence[Graph]) -> dict[str, Any]:
    """Characterise with so many kernels, and judge the predictions of other networks."""
    with tempfile.TemporaryDirectory(prefix="latfarm-energy-") as name:
        folder = Path(name)
        predictor = train_on(kernels, networks, held_out, folder)
    truth = [truth_mj(graph) for graph in held_out]
    answers = predictor.predict_energies(held_out)
    errors = [a.energy_mj / t - 1.0 for a, t in zip(answers, truth, strict=True)]
    return {
        "kernels": kernels,
        "calibration_networks": networks,
        "median_error": median(map(abs, errors)),
        "worst_error": max(map(abs, errors)),
        "inside": sum(
            a.interval_mj[0] <= t <= a.interval_mj[1] for a, t in zip(answers, truth, strict=True)
        ),
        "networks": {
            graph.name: {"true_mj": t, "predicted_mj": a.energy_mj, "interval_mj": a.interval_mj}
            for graph, t, a in zip(held_out, truth, answers, strict=True)
        },
    }


def configuration(kernels: int, networks: int, held_out: Sequence[Graph]) -> dict[str, Any]:
    """The configuration of a characterisation that knows nothing of the networks that judge."""
    return {
        "budget": kernels,
        "calibration": networks,
        "energy_ms": 10.0,
        "exclude_lineages": list(LINEAGES),
        "exclude_kernel_lineages": list(LINEAGES),
        "held_out": [graph.to_json() for graph in held_out],
        "most_macs": 3e8,
    }


def train_on(kernels: int, networks: int, held_out: Sequence[Graph], folder: Path) -> Any:
    """The predictor of a characterisation with energies, without the kernels of `held_out`."""
    profile = folder / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    model = folder / "model"
    bench = simulated_bench(BenchOptions("toy", None, folder / "bench"), profile)
    described, runtimes = bench.describe()
    board = wire.board_from_pb(
        pb.DescribeResponse(
            board=board_as_pb(described), runtimes=[runtime_as_pb(runtime) for runtime in runtimes]
        )
    )
    told: dict[str, Measurement] = {}

    def measure(request: MeasurementRequest) -> Measurement:
        model.write_bytes(builders.build(request.graph, "graph-json", "fp32"))
        result = bench.measure(
            request_from_pb(wire.request_as_pb(BoardRequest.of(request), 1, "")),
            model,
            profile=request.profile,
            on_stage=lambda _: None,
            cancelled=lambda: False,
        )
        told[request.request_id] = results.measurement_from_pb(
            result_as_pb(result), BoardRequest.of(request), board
        )
        return told[request.request_id]

    config = configuration(kernels, networks, held_out)
    campaign = make_campaign("characterize", "toy", config)
    requests: list[MeasurementRequest] = []
    try:
        while not campaign.done:
            asked = campaign.ask(ASKED_AT_ONCE)
            campaign.tell([measure(request) for request in asked])
            requests += asked
    finally:
        bench.close()
    with DuckDBStore(folder / "store.duckdb") as store:
        store.add_measurements("c", [(told[r.request_id], r.graph) for r in requests])
        outcome = campaign.outcome()
        record = CampaignRecord("c", "c", campaign.kind, "toy", config=config, outcome=outcome)
        store.put_campaign(record)
        return train(store, "toy", "c", folder / "bundle.zip")


def truth_mj(graph: Graph) -> float:
    """The exact energy of a network on the simulated board, in mJ."""
    data = json.loads(builders.build(graph, "graph-json", "fp32"))
    return exact_energy_mj(data, BoardProfile.from_json(PROFILE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
