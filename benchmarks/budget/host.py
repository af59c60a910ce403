"""Characterises platforms of this host through the controller, as a user would."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from latfarm_controller.cli.shell.connect import controller
from latfarm_controller.cli.shell.progress import follow
from latfarm_controller.config import load_config
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.training import train
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import SlowCore

from benchmarks.budget.boards import Characterised, stages_of

TRUTH_PASSES = 4
"""How often each network that judges is measured; the truth is the mean."""


def characterised_platform(
    platform: str, seed: int, config: Mapping[str, Any], graphs: Sequence[Graph]
) -> Characterised:
    """Characterise a platform of this host, and measure the networks that judge.

    Both campaigns are kept in the controller's home; asked again, they are not measured again.

    Args:
        platform: the name of the platform.
        seed: random seed, which is part of the campaigns' names.
        config: configuration of the characterisation.
        graphs: the networks that judge.
    """
    truth = {
        "graphs": [graph.to_json() for graph in graphs],
        "passes": TRUTH_PASSES,
        "seed": seed,
    }
    with controller() as client:
        began = client.start("characterize", platform, config, f"budget-{seed}")
        record = follow(client, began.campaign_id)
        judge = client.start("networks", platform, truth, f"budget-judged-{seed}")
        follow(client, judge.campaign_id)
        found = list(client.results(campaign_id=judge.campaign_id, purpose="network"))
        asked = list(client.results(campaign_id=record.campaign_id))
    folder = load_config().home
    path = folder / f"bench-{platform}-{record.campaign_id}-{int(time.time())}.zip"
    with DuckDBStore(load_config().store_file) as store:
        predictor = train(store, platform, record.campaign_id, path, seed=seed)
    names = {hash_of(graph): graph.name for graph in graphs}
    return Characterised(
        predictor,
        record.measurements,
        record.board_ms,
        stages_of(record.outcome, [m.purpose for m in asked]),
        truth_ms(predictor.slow_core, found, names),
    )


def truth_ms(
    slow_core: SlowCore, measured: Iterable[Measurement], names: Mapping[str, str]
) -> dict[str, float]:
    """The mean over the passes of each network in milliseconds, by the network's name.

    Args:
        slow_core: the correction of the predictor that is judged, so that both have one unit.
        measured: all passes of all networks.
        names: the name of each network, by its hash.
    """
    times: dict[str, list[float]] = {}
    for m in measured:
        latency = slow_core.latency(m) if m.ok else None
        if latency is not None:
            times.setdefault(names[m.graph_hash], []).append(latency.corrected_ms)
    return {name: fmean(told) for name, told in times.items()}
