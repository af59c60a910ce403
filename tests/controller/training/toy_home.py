"""A home with a platform that was characterised, and with networks that people asked about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.entering import EnteredModel
from latfarm_controller.training.training import fit_model, read_inputs
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement

from tests.controller.reports.toy import (
    CAMPAIGN,
    OVERHEAD_MS,
    PLATFORM,
    campaign,
    depthwise,
    kernels,
    measured,
    network,
    network_ms,
    networks,
    truth_ms,
)

SINGLE = {"asked": "single", "chosen": "single", "reason": "asked for"}
"""How kernels were timed: a trial of other ways would only take time."""
ASKED = 12
"""Number of networks that people asked about."""


def asked_networks() -> list[Graph]:
    """Networks that people asked about."""
    return [network(f"asked-{n}", (9 + 3 * n, 13 + 2 * n), 11 + n) for n in range(ASKED)]


def kernel_rows(graphs: list[Graph], first: int) -> list[tuple[Measurement, Graph]]:
    """Two measurements of each kernel, which differ by one percent."""
    return [
        (
            measured(
                graph,
                "kernel",
                (truth_ms(graph) + OVERHEAD_MS) * (1 + 0.01 * turn),
                first + 100 * turn + place,
            ),
            graph,
        )
        for turn in range(2)
        for place, graph in enumerate(graphs)
    ]


class ToyHome:
    """A store and a folder of bundles."""

    def __init__(self, folder: Path) -> None:
        self.store = DuckDBStore(folder / "store.duckdb")
        self.bundles = folder / "bundles"
        self.folder = self.bundles / PLATFORM

    def characterise(self) -> None:
        """Keep what a characterisation measured."""
        record = campaign()
        outcome = {**record.outcome, "insight": SINGLE, "void": []}
        self.store.put_campaign(replace(record, outcome=outcome))
        rows = kernel_rows(kernels(), 0)
        rows += [
            (measured(graph, "network", network_ms(graph), 300 + place), graph)
            for place, graph in enumerate(networks())
        ]
        self.store.add_measurements(CAMPAIGN, rows)

    def ask(self, graphs: list[Graph], first: int = 600) -> None:
        """Keep the answers of a board to questions about networks."""
        rows = [
            (measured(graph, "query", network_ms(graph) * 1.01, first + place), graph)
            for place, graph in enumerate(graphs)
        ]
        self.store.add_measurements(f"query-{first}", rows)

    def cover(self, graphs: list[Graph], name: str, finished_at_s: float) -> None:
        """Keep what a campaign measured that adds kernels to the characterisation."""
        record = self.store.get_campaign(CAMPAIGN)
        assert record is not None
        added = replace(
            record,
            campaign_id=name,
            name=name,
            kind="cover",
            config={"base": CAMPAIGN},
            started_at_s=finished_at_s - 10.0,
            finished_at_s=finished_at_s,
        )
        self.store.put_campaign(added)
        self.store.add_measurements(name, kernel_rows(graphs, int(finished_at_s)))

    def train(self, *, promote: bool = True) -> EnteredModel:
        """Make a model from the characterisation alone."""
        inputs = read_inputs(self.store, PLATFORM, CAMPAIGN, bundles_dir=self.bundles)
        return fit_model(self.bundles, inputs, promote=promote)


def more_depthwise() -> list[Graph]:
    """Depthwise convolutions that the characterisation did not measure."""
    return [depthwise(channels, 14) for channels in (11, 23, 35, 47)]
