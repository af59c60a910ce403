"""What is learned from a survey between pads: times, and the cost of transfers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_agent.runtimes.simulated.cost import exact_layers
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kernels.padding import PaddingCampaign
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import drive
from latfarm_controller.training.training_set import TrainingSet, collect
from latfarm_predictors.measurement import Measurement, ProfiledLayer

from tests.controller.campaigns.kernels.test_padding import NPU, Board, lums, survey


def collected(store_path: Path, campaign: PaddingCampaign, board: Board) -> TrainingSet:
    """What is learned from a campaign that was driven with the answers of a board."""
    with DuckDBStore(store_path) as store:
        requests = drive(campaign, board.measure)
        store.add_measurements("p1", [(board.answered[r.request_id], r.graph) for r in requests])
        outcome = campaign.outcome()
        store.put_campaign(
            CampaignRecord("p1", "p1", "padding", "sim-npu", state="done", outcome=outcome)
        )
        return collect(store, "sim-npu", "p1")


class ProfilingBoard(Board):
    """Shows the layers of models as well."""

    def measure(self, request: MeasurementRequest) -> Measurement:
        answer = super().measure(request)
        if request.profile:
            rows = exact_layers(request.graph.to_json(), self._profile)
            layers = tuple(ProfiledLayer(r.name, r.op, r.latency_ms) for r in rows)
            answer = self.answered[request.request_id] = replace(answer, layers=layers)
        return answer


def test_a_profile_of_kernels_alone_does_not_hide_the_cost_of_transfers(tmp_path: Path) -> None:
    """It takes the call and the transfers off the times alone, which must not happen twice."""
    graphs = [lums()[name].graph.to_json() for name in ("conv", "relu", "strided", "max pool")]
    paces = {}
    for profile, board in ((False, Board()), (True, ProfilingBoard())):
        campaign = survey(graphs=graphs, profile=profile)
        data = collected(tmp_path / f"{profile}.duckdb", campaign, board)
        assert {sample.insight for sample in data.kernels} == {"padded"}
        paces[profile] = data.transfer_ms_per_mb
    assert paces[True] == pytest.approx(paces[False])
    assert paces[True] == pytest.approx(1e6 / NPU.io_bytes_per_ms, rel=0.2)


def test_training_takes_padded_times_before_single_ones(tmp_path: Path) -> None:
    graphs = [kernel.graph.to_json() for kernel in lums().values()]
    campaign = survey(graphs=graphs, widest=10.0)
    data = collected(tmp_path / "latfarm.duckdb", campaign, Board())
    assert {sample.insight for sample in data.kernels} == {"padded"}
    assert sorted(s.latency_ms for s in data.kernels) == sorted(
        s.latency_ms for s in campaign.samples()
    )
    assert data.call_overhead_ms == campaign.call_overhead_ms
