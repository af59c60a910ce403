"""Training, the demo's rows and later campaigns compare latencies in one unit.

The runtime feels less of a slow core than the controller assumed: what the controller reports for a
core at slowdown s is the true latency times s ** LEFT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from latfarm_controller.campaigns.slow_core import LEAST_PAIRS
from latfarm_controller.reports import networks as report
from latfarm_controller.reports.facts import network_rows
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.fit_bundle import provenance
from latfarm_controller.training.gather import gather
from latfarm_controller.training.training_set import collect
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.predict.answer import Answer
from latfarm_predictors.slow_core import SlowCore

LEFT = -0.3
SLOW = 1.8
RULES = FusionRules(pairs={("Conv", "Relu"): "fused"}, multi_inbound=0)
PLATFORM = "p"


def conv(channels: int) -> Graph:
    b = GraphBuilder(f"conv{channels}")
    return b.build([b.conv(b.input((1, channels, 14, 14)), 32, 3)])


def true_ms(graph: Graph) -> float:
    return 0.01 * graph.type_of(graph.inputs[0]).shape[1]


def measured(graph: Graph, number: int, slowdown: float, purpose: str = "kernel") -> Measurement:
    """A measurement as the controller reports it: s ** LEFT is left in it, by mistake."""
    latency_ms = true_ms(graph) * slowdown**LEFT
    return Measurement(
        f"{graph.name}-{number}-{purpose}",
        hash_of(graph),
        PLATFORM,
        purpose,
        Outcome.OK,
        board_id="b",
        fingerprint="f",
        latency_ms=latency_ms,
        mad_ms=0.001 * latency_ms,
        session_ms=(latency_ms,),
        measured_at_s=float(number),
        conditions={"slowdown": str(slowdown), "uncorrected_ms": str(1.5 * true_ms(graph))},
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    opened = DuckDBStore(tmp_path / "latfarm.duckdb")
    yield opened
    opened.close()


def keep(store: DuckDBStore, name: str, rows: list[tuple[Measurement, Graph]], **more: Any) -> None:
    store.add_measurements(name, rows)
    outcome = {"rules": RULES.to_json(), "call_overhead_ms": 0.0, **more.pop("outcome", {})}
    values: dict[str, Any] = {"kind": "kernels", "state": "done", "outcome": outcome, **more}
    store.put_campaign(CampaignRecord(name, name, platform=PLATFORM, **values))


def base(store: DuckDBStore) -> list[Graph]:
    """A campaign that measured many kernels at two slowdowns each."""
    graphs = [conv(8 + n) for n in range(LEAST_PAIRS + 10)]
    rows = [
        (measured(graph, 2 * place + late, SLOW if late == place % 2 else 1.0), graph)
        for late in (0, 1)
        for place, graph in enumerate(graphs)
    ]
    keep(store, "base", rows)
    return graphs


def test_training_learns_the_unit_and_corrects_everything_in_it(store: DuckDBStore) -> None:
    graphs = base(store)
    data = collect(store, PLATFORM, "base")
    assert data.slow_core.shift == pytest.approx(LEFT, abs=1e-3)
    assert len(data.kernels) == 2 * len(graphs)
    for sample in data.kernels:
        assert sample.latency_ms == pytest.approx(true_ms(sample.kernel.graph), rel=1e-3)
    told = provenance(data, 0, 0.0)
    assert SlowCore.from_json(told["slow_core"]).shift == pytest.approx(LEFT, abs=1e-3)
    assert told["steadiness"] == {"steady": len(data.kernels), "usual": 0, "doubtful": 0}
    assert told["host_noise"]["noise"] < 0.01, "what is corrected is no noise"


def test_times_of_an_outcome_are_corrected_like_measurements(store: DuckDBStore) -> None:
    graphs = base(store)
    kernel = Kernel(graphs[0])
    wrong = true_ms(kernel.graph) * SLOW**LEFT
    times = {"insight": "padded", "lower_ms": 0.9 * wrong, "upper_ms": 1.1 * wrong, "noise_ms": 0.0}
    # One measurement between pads, at the same slowdown as all of them, stands for the campaign.
    pads = [(measured(graphs[0], 500, SLOW, "padding"), graphs[0])]
    overhead = [(measured(graphs[1], 501, SLOW, "fusion"), graphs[1])]
    padding = {"times": {kernel.kernel_id: times}}
    outcome = {"padding": padding, "call_overhead_ms": 1e-3 * SLOW**LEFT}
    keep(store, "base", pads + overhead, outcome=outcome)
    data = collect(store, PLATFORM, "base")
    assert data.call_overhead_ms == pytest.approx(1e-3, rel=1e-3)
    (padded,) = [sample for sample in data.kernels if sample.insight == "padded"]
    assert padded.latency_ms == pytest.approx(true_ms(padded.kernel.graph), rel=1e-3)
    assert padded.mad_ms == pytest.approx(0.05 * true_ms(padded.kernel.graph), rel=1e-3)


def test_a_campaign_that_adds_kernels_has_the_unit_of_the_first_one(store: DuckDBStore) -> None:
    base(store)
    more = [conv(200 + n) for n in range(3)]
    rows = [(measured(graph, 1000 + n, SLOW), graph) for n, graph in enumerate(more)]
    keep(store, "more", rows, kind="cover", config={"base": "base"})
    assert collect(store, PLATFORM, "more").slow_core.shift == 0.0, "it repeated nothing itself"
    data = gather(store, PLATFORM, "more")
    added = [s for s in data.kernels if s.kernel.graph.inputs and true_ms(s.kernel.graph) >= 2.0]
    assert len(added) == len(more)
    for sample in data.kernels:
        assert sample.latency_ms == pytest.approx(true_ms(sample.kernel.graph), rel=1e-3)


def test_what_was_discarded_trains_nothing(store: DuckDBStore) -> None:
    graphs = base(store)
    late = [replace(measured(graph, 5000, 1.0), board_id="drifted") for graph in graphs]
    keep(store, "base", [(m, graph) for m, graph in zip(late, graphs, strict=True)])
    assert len(collect(store, PLATFORM, "base").kernels) == 3 * len(graphs)
    assert len(store.discard_measurements("drifted", 0.0, "drift")) == len(graphs)
    assert len(collect(store, PLATFORM, "base").kernels) == 2 * len(graphs)
    assert sum(1 for _ in store.measurements(campaign_id="base")) == 3 * len(graphs), "still listed"


def test_a_noisy_host_makes_samples_uncertain_and_doubtful_ones_more_so(
    store: DuckDBStore,
) -> None:
    graphs = [conv(8 + n) for n in range(30)]
    rows = []
    for place, graph in enumerate(graphs):
        for late, times in ((0, 1.04), (1, 0.96)):
            m = measured(graph, 2 * place + late, 1.0)
            far = (m.latency_ms or 0.0) * times
            wild = place == 7
            changes = {
                "latency_ms": far,
                "session_ms": (0.97 * far, 1.03 * far),
                "mad_ms": (1.0 if wild else 0.03 + 0.001 * (place % 5)) * far,
                "unstable": True,
            }
            rows.append((Measurement(**{**_fields(m), **changes}), graph))
    keep(store, "base", rows)
    data = collect(store, PLATFORM, "base")
    noise = data.host_noise.noise
    assert noise is not None
    assert noise == pytest.approx(1.4826 * 0.08 / 2**0.5, rel=0.05)
    assert data.steadiness == {"steady": 0, "usual": 58, "doubtful": 2}
    assert data.left_out.get("unstable", 0) == 0, "a kernel's only measurements are kept"
    by_name = {s.kernel.graph.name: s for s in data.kernels}
    usual, doubtful = by_name["conv9"], by_name["conv15"]
    assert usual.mad_ms / usual.latency_ms > 0.08
    assert doubtful.mad_ms / doubtful.latency_ms > 2.5 * usual.mad_ms / usual.latency_ms


def _fields(m: Measurement) -> dict[str, Any]:
    return {name: getattr(m, name) for name in Measurement.__dataclass_fields__}


def test_a_row_of_the_demo_has_the_unit_of_the_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_rows, "baseline_ms", lambda *_: 1.0)
    graph = conv(100)
    passes = [measured(graph, 0, SLOW, "network"), measured(graph, 1, 1.0, "network")]
    answer = Answer(graph.name, PLATFORM, 1.0, (0.95, 1.05), 0.9, True, ())
    predictor: Any = SimpleNamespace(slow_core=SlowCore(LEFT))
    row = network_rows.network_row(graph, passes, answer, predictor)
    assert row.passes_ms == pytest.approx([1.0, 1.0])
    assert row.corrected_ms == pytest.approx(1.0)
    assert row.timed_ms == pytest.approx(1.5)
    assert row.error == pytest.approx(0.0)
    assert row.inside
    page = report.render(report.NetworksReport("t", "l"), [row])
    assert "<th>as timed, ms</th><th>corrected, ms</th>" in page.replace("\n", "")
