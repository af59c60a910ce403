"""Probes that are learned from as kernels are counted once where the host's noise is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_controller.campaigns.host_noise import LEAST_MEASUREMENTS, LEAST_REPEATS
from latfarm_controller.campaigns.kernels import probes
from latfarm_controller.campaigns.kernels import survey as kernels
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.campaign_measurements import (
    CampaignMeasurements,
    read_campaign,
)
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import PROTOCOL_VERSION, Measurement, Outcome


def layer(channels: int) -> Graph:
    builder = GraphBuilder("kernel")
    return builder.build([builder.conv(builder.input((1, 3, 8, 8)), channels, 3)])


def measured(graph: Graph, purpose: str, latency_ms: float, time: int) -> Measurement:
    return Measurement(
        f"{purpose}-{hash_of(graph)}-{time}",
        hash_of(graph),
        "p",
        purpose,
        Outcome.OK,
        board_id="b",
        latency_ms=latency_ms,
        mad_ms=0.01,
        fingerprint="f",
        measured_at_s=float(time),
        protocol_version=PROTOCOL_VERSION,
    )


@pytest.mark.parametrize("used", [True, False])
def test_a_probe_is_no_repeat_of_itself(tmp_path: Path, used: bool) -> None:
    """A copy of a measurement agrees with it exactly, so the host would seem to have no noise."""
    repeated = [
        (measured(layer(number), kernels.PURPOSE, latency_ms, time), layer(number))
        for number in range(1, LEAST_REPEATS + 1)
        for time, latency_ms in enumerate((1.0, 1.1))
    ]
    probed = [
        (measured(layer(number), probes.PURPOSE, 1.0, 2), layer(number))
        for number in range(100, 100 + LEAST_MEASUREMENTS)
    ]
    record = CampaignRecord("c", "c", "characterize", "p", outcome={"alone": {"used": used}})
    with DuckDBStore(tmp_path / "latfarm.duckdb") as store:
        store.add_measurements("c", [*repeated, *probed])
        found: CampaignMeasurements = read_campaign(store, record)
    assert found.host_noise.repeats == LEAST_REPEATS
    assert found.host_noise.noise == pytest.approx(0.1, abs=0.01)
    assert len(found.kernels) == LEAST_REPEATS + (LEAST_MEASUREMENTS if used else 0)
