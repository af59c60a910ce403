"""A platform whose true latencies are a formula, measured into a real store and trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.training import train
from latfarm_predictors.measurement import ProfiledLayer

from tests.controller.reports.toy import (
    CAMPAIGN,
    OVERHEAD_MS,
    PLATFORM,
    Lab,
    campaign,
    depthwise,
    failed,
    kernels,
    measured,
    network_ms,
    networks,
    truth_ms,
    unseen,
)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The trained platform that many tests read."""
    folder = tmp_path_factory.mktemp("platform")
    with DuckDBStore(folder / "store.duckdb") as store:
        rows = []
        for turn in range(2):
            for place, graph in enumerate(kernels()):
                number = 100 * turn + place
                time_ms = truth_ms(graph) + OVERHEAD_MS
                layers = (ProfiledLayer("n0", "Conv", truth_ms(graph)),) if turn == 0 else ()
                found = measured(
                    graph, "kernel", time_ms * (1 + 0.01 * turn), number, layers=layers
                )
                rows.append((found, graph))
            for place, graph in enumerate(networks()):
                found = measured(graph, "network", network_ms(graph), 300 + 20 * turn + place)
                rows.append((found, graph))
        bad = depthwise(3, 5)
        rows.append((failed(bad, "kernel", 99, "MODEL_UNSUPPORTED", "no <i>such</i> op"), bad))
        store.put_campaign(campaign())
        store.add_measurements(CAMPAIGN, rows)
        later = [
            (measured(graph, "network", network_ms(graph) * 1.02, 500 + n), graph)
            for n, graph in enumerate(unseen())
        ]
        store.put_campaign(replace(campaign(), campaign_id="later", name="later", kind="networks"))
        store.add_measurements("later", later)
        path = folder / "bundles" / PLATFORM / "0001.zip"
        path.parent.mkdir(parents=True)
        train(store, PLATFORM, CAMPAIGN, path)
        yield Lab(store, folder / "bundles")
