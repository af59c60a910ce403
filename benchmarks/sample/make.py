"""Makes the sample bundle that ships with the predictors, from a simulated board, and judges it.

    make sample-bundle
    python -m benchmarks.sample.make --measurements 60 --networks 9 --out /tmp/sample.json

The board is one of those that `latfarm-agent serve --simulate` has, whose true latencies are known
exactly. It is characterised by the same campaign as any board, with fewer measurements, in a home
of its own that is removed afterwards. The bundle keeps what answers need: the baselines are left
out, and what kernels show inside networks, whose models are large. Its numbers are rounded to a few
digits. Published networks judge what is left against the truth; their scores are part of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from latfarm_agent.runtimes.simulated.built_in import NOISE, built_in
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller import zoo
from latfarm_controller.cli.shell.connect import controller
from latfarm_controller.cli.shell.progress import follow
from latfarm_controller.config import load_config
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.fit_bundle import provenance
from latfarm_controller.training.insight_trial import try_insights
from latfarm_controller.training.training_set import TrainingSet
from latfarm_predictors import sample
from latfarm_predictors.features.groups import Router
from latfarm_predictors.files.text_state import rounded
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.models.gaussian.design import spread
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.samples import KernelSample, prepare

from benchmarks.networks import simulated

KIND = "npu"
"""The simulated board that the sample is of."""
MEASUREMENTS = 300
"""Measurements of the characterisation: enough for each group of kernels, and few to store."""
NETWORKS = 24
"""Calibration networks among them; 9 are enough for 90 % intervals."""
KERNELS = 30
"""Number of kernels of each group that are kept; there are many times more of them, because the
profiles of networks tell hundreds of kernels at once."""
OF_EACH_OP = 2
"""Number of kernels of each main op that are kept, at least, so that no kind is left out."""
MOST_BYTES = 300_000
"""Largest size of the file, in bytes."""
MOST_ROUNDING = 1e-4
"""Largest relative change of a latency by rounding the numbers of the file."""
JUDGES = (
    *("squeezenet", "mobilenet-v1", "mobilenet-v2", "mobilenet-v3-large", "mobilenet-v3-small"),
    *("mnasnet-a1", "efficientnet-b0", "ghostnet", "shufflenet-v2", "alexnet", "vgg16"),
    *("googlenet", "inception-v3", "resnet18", "resnet50", "densenet121", "xception"),
    *("regnetx-400mf", "vovnet27-slim", "darknet19"),
)
"""Networks as published, which judge the sample."""


def characterised(measurements: int, networks: int, seed: int) -> TrainingSet:
    """What a characterisation of the simulated board measured."""
    with simulated([KIND], NOISE, seed) as (platform,):
        with controller() as client:
            settings = {
                "measurements": measurements,
                "calibration": networks,
                "context": 0,  # profiles of the calibration networks tell kernels enough
                "seed": seed,
            }
            began = client.start("characterize", platform, settings, "sample")
            campaign = follow(client, began.campaign_id)
        with closing(DuckDBStore(load_config().store_file)) as store:
            data, _ = try_insights(store, platform, campaign.campaign_id, seed=seed)
    return data


def thinned(data: TrainingSet) -> list[KernelSample]:
    """Samples of at most `KERNELS` kernels of each group: of those that tell most of the others."""
    training = prepare(data.kernels, max(data.call_overhead_ms, 0.0))
    _, groups = Router.of(training.table, training.devices)
    kept: set[Workload] = set()
    for _, rows in sorted(groups.items()):
        table = training.table.take(np.array(rows, dtype=np.intp))
        chosen = list(spread(table, table.take(np.zeros(0, dtype=np.intp)), table, KERNELS))
        kinds = Counter[tuple[str, str]]()
        for place, kind in enumerate(zip(table.families, table.main_ops, strict=True)):
            kinds[kind] += 1
            if kinds[kind] <= OF_EACH_OP:
                chosen.append(place)
        kept.update(training.workloads[rows[place]] for place in chosen)
    return [sample for sample in data.kernels if workload(sample.kernel) in kept]


def fitted(data: TrainingSet, seed: int) -> PlatformPredictor:
    """The predictor of these measurements, without baselines, its numbers rounded."""
    samples = PlatformSamples(
        data.platform,
        data.rules,
        thinned(data),
        data.networks,
        call_overhead_ms=data.call_overhead_ms,
        transfer_ms_per_mb=data.transfer_ms_per_mb,
    )
    whole = fit_predictor(samples, seed=seed, baselines=False)
    kept = predictor_of(rounded(state_of(whole)))
    graphs = [zoo.build(name) for name in JUDGES]
    ours, theirs = (
        np.array([answer.latency_ms for answer in each.predict_many(graphs)])
        for each in (whole, kept)
    )
    changed = float(np.abs(theirs / ours - 1.0).max())
    if changed > MOST_ROUNDING:
        raise SystemExit(f"rounding changes a latency by {changed:.2g}; keep more digits")
    return kept


def judged(predictor: PlatformPredictor, seed: int) -> dict[str, Any]:
    """The scores of the predictor on networks that it has not seen, against the exact truth."""
    profile = BoardProfile.from_json({**built_in(KIND), "seed": seed})
    graphs = [zoo.build(name) for name in JUDGES]
    truth = np.array([exact_latency_ms(_plain(graph), profile) for graph in graphs])
    answers = predictor.predict_many(graphs)
    error = np.abs(np.array([answer.latency_ms for answer in answers]) / truth - 1.0)
    inside = [
        answer.interval_ms[0] <= true_ms <= answer.interval_ms[1]
        for answer, true_ms in zip(answers, truth, strict=True)
    ]
    return {
        "networks": list(JUDGES),
        "within5": round(float((error <= 0.05).mean()), 3),
        "within10": round(float((error <= 0.10).mean()), 3),
        "largest_error": round(float(error.max()), 4),
        "inside_90_percent_interval": round(float(np.mean(inside)), 3),
    }


def _plain(graph: Graph) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(graph.to_json()))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Characterise the board, write the sample, and print its scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measurements", type=int, default=MEASUREMENTS)
    parser.add_argument("--networks", type=int, default=NETWORKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(sample.__file__).with_name(sample.FILE))
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="sample-") as home:
        os.environ |= {"LATFARM_HOME": home, "LATFARM_LOCAL_AGENT": "false"}
        data = characterised(options.measurements, options.networks, options.seed)
    write(data, options.seed, options.out)


def write(data: TrainingSet, seed: int, out: Path) -> None:
    """Fit and judge the sample, write its file, and print its scores.

    Raises:
        SystemExit: the file would be too large.
    """
    predictor = fitted(data, seed)
    told = provenance(data, seed, 0.0)
    told |= {"board": built_in(KIND), "judged": judged(predictor, seed)}
    told |= {"kernels": len(predictor.confidence or ())}
    told = {name: value for name, value in told.items() if name not in _LEFT_OUT}
    text = sample.sample_text(state_of(predictor), told)
    if len(text) > MOST_BYTES:
        raise SystemExit(f"{len(text)} bytes are more than {MOST_BYTES}; measure less")
    out.write_text(text, encoding="utf-8")
    print(f"{out}: {len(text)} bytes", file=sys.stderr)
    print(json.dumps(told["judged"], indent=1))


_LEFT_OUT = frozenset(
    {"boards", "campaign", "fingerprint", "host_noise", "steadiness", "trained_at", "versions"}
)
"""What a bundle's provenance tells of the time and the machine of its making."""


if __name__ == "__main__":
    main()
