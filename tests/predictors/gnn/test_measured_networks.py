"""The benchmark of NNLP on a real platform: which networks are measured, and what they teach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

from benchmarks.gnn import measure, stores
from benchmarks.gnn.draws import networks_of
from tests.predictors.gnn.conftest import small_network

CALL_MS = 0.1
PASSES = 2


def test_families_take_turns_and_sizes_are_bounded() -> None:
    profiled, others = measure.drawn(3, 1, ("squeezenet1.0", "alexnet"))
    assert [stores.family_of(graph.name) for graph in profiled] == ["squeezenet1.0", "alexnet"]
    assert [stores.family_of(graph.name) for graph in others] == ["squeezenet1.0", "alexnet"] * 2
    every = [*profiled, *others]
    assert len({hash_of(graph) for graph in every}) == len(every)
    low, high = measure.MACS
    assert all(low <= graph_totals(graph).macs <= high for graph in every)


def test_a_family_without_fitting_variants_is_an_error() -> None:
    with pytest.raises(ValueError, match="alexnet has only 0 variants"):
        list(networks_of("alexnet", 1, macs=(1.0, 2.0)))


def test_each_network_is_measured_in_two_passes_that_are_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "EACH_CAMPAIGN", 2)
    graphs = [replace(small_network(4 * n), name=f"small-{n}") for n in range(1, 6)]
    planned = list(measure.passes_of(graphs[:1], graphs[1:]))
    assert len({each.name for each in planned}) == len(planned) == 2 * PASSES + 2
    names = [[graph["name"] for graph in each.config["graphs"]] for each in planned]
    half = len(planned) // 2
    assert names[:half] == names[half:]  # all first passes come before the second ones
    assert sorted(name for part in names[:half] for name in part) == [g.name for g in graphs]
    assert [each.config["earlier_passes"] for each in planned] == [0] * half + [1] * half
    assert [each.config["profile"] for each in planned] == [True] + [False] * (2 * half - 1)


def run_of(graph: Graph, repeat: int, *, profiled: bool) -> Measurement:
    """A pass in which each node takes a millisecond, and the call its time."""
    layers = tuple(
        ProfiledLayer(node.name, node.op, 1.0) for node in graph.nodes if profiled and not repeat
    )
    told = Measurement(f"{graph.name}-{repeat}", hash_of(graph), "p", "network", Outcome.OK)
    return replace(told, latency_ms=CALL_MS + 1.0 * len(graph.nodes), layers=layers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with four networks, of which two are profiled, and a characterisation."""
    path = tmp_path / "farm.duckdb"
    store = DuckDBStore(path)
    outcome = {"rules": FusionRules().to_json(), "call_overhead_ms": CALL_MS}
    rules = CampaignRecord("r", "rules", "characterize", "p", state="done", outcome=outcome)
    store.put_campaign(rules)
    store.put_campaign(CampaignRecord("c", "bench-gnn-1", "networks", "p"))
    store.put_campaign(CampaignRecord("o", "other", "networks", "p"))
    graphs = [replace(small_network(4 * n), name=f"small-{n}") for n in range(1, 6)]
    runs = [
        (run_of(graph, repeat, profiled=n < 2), graph)
        for n, graph in enumerate(graphs[:4])
        for repeat in range(PASSES)
    ]
    store.add_measurements("c", runs)
    store.add_measurements("o", [(run_of(graphs[4], 0, profiled=False), graphs[4])])
    store.close()
    return path


def test_kernels_are_learned_from_the_profiled_networks_of_the_fold(path: Path) -> None:
    source = stores.source_of(path, "p", "bench-gnn")
    assert len(source.networks) == 4
    assert source.facts["profiled"] == 2
    assert source.kernels is not None
    named = {each.graph.name: each for each in source.networks}
    data = source.kernels([named["small-2"], named["small-3"]], 0)
    assert data.call_overhead_ms == CALL_MS
    (own,) = data.places
    assert {sample.network for sample in data.samples} == {named["small-2"].name}
    assert sum(sample.latency_ms for sample in own) == pytest.approx(
        named["small-2"].latency_ms - CALL_MS
    )


def test_without_a_characterisation_no_kernels_are_known(tmp_path: Path) -> None:
    path = tmp_path / "farm.duckdb"
    store = DuckDBStore(path)
    store.put_campaign(CampaignRecord("c", "bench-gnn-1", "networks", "p"))
    graphs = [replace(small_network(4 * n), name=f"small-{n}") for n in range(1, 4)]
    store.add_measurements("c", [(run_of(graph, 0, profiled=True), graph) for graph in graphs])
    store.close()
    assert stores.source_of(path, "p").kernels is None


def test_what_is_typed_wrong_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        measure.main(["-p", "p", "--profiled", "200"])
    assert ended.value.code == 2
    assert "--profiled is at least 1 and at most --per-family" in capsys.readouterr().err
