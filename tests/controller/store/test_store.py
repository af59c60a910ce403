from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_controller.errors import StoreError
from latfarm_controller.store import listing as store_module
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import (
    Measurement,
    Outcome,
    ProfiledLayer,
    Settings,
)

MakeGraph = Callable[[int], Graph]
MakeMeasurement = Callable[..., tuple[Measurement, Graph]]

finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
count = st.integers(0, 2**31 - 1)
whole_measurements = st.builds(
    Measurement,
    request_id=st.uuids().map(lambda uuid: uuid.hex),
    graph_hash=st.just(""),
    platform=text,
    purpose=text,
    outcome=st.sampled_from(Outcome),
    board_id=text,
    fingerprint=text,
    error_code=text,
    error_message=text,
    latency_ms=st.none() | finite,
    mad_ms=st.none() | finite,
    min_ms=st.none() | finite,
    p90_ms=st.none() | finite,
    p99_ms=st.none() | finite,
    cold_ms=st.none() | finite,
    runs=count,
    rejected_runs=count,
    session_ms=st.lists(finite, max_size=5).map(tuple),
    load_ms=st.none() | finite,
    compile_ms=st.none() | finite,
    first_run_ms=st.none() | finite,
    unstable=st.booleans(),
    layers=st.lists(st.builds(ProfiledLayer, text, text, finite, text), max_size=3).map(tuple),
    memory_bytes=st.integers(0, 2**64 - 1),
    device_memory_bytes=st.integers(0, 2**64 - 1),
    board_ms=finite,
    measured_at_s=finite,
    protocol_version=count,
    settings=st.builds(
        Settings, tier=text, sessions=count, warmup_ms=finite, precision=finite, max_ms=finite
    ),
    conditions=st.dictionaries(text, text, max_size=4),
)


def test_it_is_a_store(store: DuckDBStore) -> None:
    as_protocol: Store = store
    assert as_protocol.campaigns() == []


@settings(max_examples=25, deadline=None)
@given(batch=st.lists(whole_measurements, min_size=1, max_size=8, unique_by=lambda m: m.request_id))
def test_what_is_told_comes_back_equal(
    shared_store: DuckDBStore, make_graph: MakeGraph, batch: list[Measurement]
) -> None:
    graph, campaign = make_graph(3), uuid.uuid4().hex
    told = [replace(measurement, graph_hash=hash_of(graph)) for measurement in batch]
    shared_store.add_measurements(campaign, [(measurement, graph) for measurement in told])
    back = shared_store.campaign_measurements(campaign)
    assert back == {measurement.request_id: measurement for measurement in told}
    assert list(back) == [measurement.request_id for measurement in told]
    listed = shared_store.measurements(campaign_id=campaign)
    assert sorted(m.request_id for m in listed) == sorted(back)
    assert shared_store.get_graph(hash_of(graph)) == graph


def test_another_process_life_reads_the_same(
    tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    told = [make_measurement(size) for size in range(1, 5)]
    with DuckDBStore(tmp_path / "s") as store:
        store.add_measurements("c", told)
    with DuckDBStore(tmp_path / "s") as store:
        store.add_measurements("c", [make_measurement(9)])
        back = list(store.campaign_measurements("c").values())
    assert back == [measurement for measurement, _ in [*told, make_measurement(9)]]


def test_graphs_are_kept_by_hash(store: DuckDBStore, make_measurement: MakeMeasurement) -> None:
    (one, first), (other, second) = make_measurement(1), make_measurement(2)
    store.add_measurements("a", [(one, first)])
    store.add_measurements("b", [(one, first), (other, second)])
    assert store.counts()["graphs"] == 2
    assert store.get_graph(hash_of(first)) == first
    assert store.get_graph(hash_of(second)) == second
    assert store.get_graph("0" * 32) is None


def test_a_success_replaces_a_failure_and_nothing_else_is_replaced(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    failed, graph = make_measurement(ok=False)
    good, _ = make_measurement(latency_ms=1.0)
    later, _ = make_measurement(latency_ms=2.0)
    other = replace(failed, error_code="OTHER")

    def told() -> Measurement:
        return store.campaign_measurements("c")[good.request_id]

    store.add_measurements("c", [(failed, graph)])
    assert told() == failed
    store.add_measurements("c", [(other, graph)])
    assert told() == failed
    store.add_measurements("c", [(good, graph)])
    assert told() == good
    for again in (later, failed):
        store.add_measurements("c", [(again, graph)])
        assert told() == good
    assert len(list(store.measurements())) == 1


@settings(max_examples=25, deadline=None)
@given(
    tellings=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 9)), max_size=6),
        max_size=5,
    )
)
def test_telling_in_any_batches_agrees_with_telling_one_by_one(
    shared_store: DuckDBStore,
    make_measurement: MakeMeasurement,
    tellings: list[list[tuple[int, bool, int]]],
) -> None:
    expected: dict[str, Measurement] = {}
    campaign = uuid.uuid4().hex
    for telling in tellings:
        batch = []
        for repeat, ok, runs in telling:
            measurement, graph = make_measurement(repeat=repeat, ok=ok, runs=runs)
            batch.append((measurement, graph))
            before = expected.get(measurement.request_id)
            if before is None or (measurement.ok and not before.ok):
                expected[measurement.request_id] = measurement
        shared_store.add_measurements(campaign, batch)
    assert shared_store.campaign_measurements(campaign) == expected


def test_campaigns_have_requests_of_their_own(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    good, graph = make_measurement()
    failed = replace(good, outcome=Outcome.MODEL_ERROR, latency_ms=None)
    store.add_measurements("a", [(good, graph)])
    store.add_measurements("b", [(failed, graph)])
    assert store.campaign_measurements("a") == {good.request_id: good}
    assert store.campaign_measurements("b") == {good.request_id: failed}
    assert store.campaign_measurements("c") == {}


def test_listing_is_newest_first_filtered_and_limited(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    told = [
        make_measurement(size, platform=platform, purpose=purpose)
        for size in (5, 3, 4)
        for platform in ("p", "q")
        for purpose in ("kernel", "network")
    ]
    store.add_measurements("c", told)
    everything = [measurement for measurement, _ in told]

    def listed(**filters: Any) -> list[Measurement]:
        return list(store.measurements(**filters))

    assert [m.measured_at_s for m in listed()] == sorted(
        (m.measured_at_s for m in everything), reverse=True
    )
    assert listed(limit=3) == listed()[:3]
    assert {m.request_id for m in listed(platform="q", purpose="network")} == {
        m.request_id for m in everything if m.platform == "q" and m.purpose == "network"
    }
    one_graph = hash_of(told[0][1])
    assert [m.graph_hash for m in listed(graph_hash=one_graph)] == [one_graph] * 4
    assert listed(campaign_id="nobody") == []


def test_a_long_listing_reads_page_by_page_and_misses_nothing(
    store: DuckDBStore, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PAGE_ROWS", 4)
    told = [make_measurement(repeat=i, measured_at_s=float(i // 3)) for i in range(11)]
    store.add_measurements("c", told)
    listing = store.measurements()
    first = next(listing)
    # A measurement stored during the listing is newer, so it belongs before the listed ones.
    store.add_measurements("c", [make_measurement(repeat=99, measured_at_s=99.0)])
    rest = list(listing)
    assert [first, *rest] == [measurement for measurement, _ in reversed(told)]
    assert len(list(store.measurements(limit=10))) == 10


def test_latest_prefers_stable_then_new(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    layer = ProfiledLayer("l", "Relu", 1.0)
    graph_hash = hash_of(make_measurement()[1])

    def told(repeat: int, at_s: float, **changes: Any) -> Measurement:
        measurement, graph = make_measurement(repeat=repeat, measured_at_s=at_s, **changes)
        store.add_measurements("c", [(measurement, graph)])
        return measurement

    assert store.latest(graph_hash, "p") is None
    told(0, 50.0, ok=False)
    told(1, 51.0, layers=(layer,))
    told(2, 52.0, protocol_version=0)
    assert store.latest(graph_hash, "p") is None
    unstable = told(3, 30.0, unstable=True)
    assert store.latest(graph_hash, "p") == unstable
    stable = told(4, 10.0)
    assert store.latest(graph_hash, "p") == stable
    newer = told(5, 20.0, purpose="query", fingerprint="f", settings=Settings(tier="publish"))
    assert store.latest(graph_hash, "p") == newer
    assert store.latest(graph_hash, "p", "kernel") == stable
    assert store.latest(graph_hash, "p", tier="survey") == stable
    assert store.latest(graph_hash, "p", fingerprint="f") == newer
    assert store.latest(graph_hash, "q") is None


def test_a_boards_clock_orders_nothing(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    """A measurement from the future answers no query once there is a newer one."""
    future, graph = make_measurement(measured_at_s=9e9, received_at_s=2000.0)
    newer, _ = make_measurement(repeat=1, measured_at_s=1.0, received_at_s=2001.0)
    store.add_measurements("c", [(future, graph), (newer, graph)])
    assert store.latest(future.graph_hash, "p") == newer
    assert list(store.measurements()) == [newer, future]
    assert list(store.measurements(limit=1)) == [newer]
    assert len(store.discard_measurements("b", 2000.5, "drift")) == 1
    assert store.latest(future.graph_hash, "p") == future
    assert list(store.measurements()) == [newer, future]
    assert list(store.measurements(discarded=False)) == [future]


def test_sentinels_are_in_the_order_in_which_they_came(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    told = [
        make_measurement(
            repeat=n, purpose="sentinel", measured_at_s=9e9 - n, received_at_s=2000.0 + n
        )
        for n in range(3)
    ]
    store.add_measurements("c", told[::-1])
    assert store.sentinels("b") == [m for m, _ in told]
    assert store.sentinels("b", 2000.5) == [m for m, _ in told[1:]]


def test_latest_lets_other_exports_answer(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    own, graph = make_measurement(measured_at_s=1.0)
    padded = Graph(
        "padded",
        ("x",),
        ("z",),
        (*graph.nodes, Node("i", "Identity", ("y",), ("z",))),
        {},
        {**graph.types, "z": graph.types["y"]},
    )
    assert network_hash_of(padded) == network_hash_of(graph)
    other = replace(own, request_id="other", graph_hash=hash_of(padded), measured_at_s=2.0)
    store.add_measurements("c", [(other, padded), make_measurement(size=9)])

    def latest(wanted: Graph, network: str) -> Measurement | None:
        return store.latest(hash_of(wanted), "p", network_hash=network)

    network = network_hash_of(graph)
    assert latest(graph, "") is None
    assert latest(graph, network) == other
    assert latest(padded, "") == other
    store.add_measurements("c", [(own, graph)])
    assert latest(graph, network) == own
    assert latest(padded, network) == other
    unstable = replace(other, request_id="unstable", unstable=True, measured_at_s=3.0)
    store.add_measurements("c", [(unstable, padded)])
    assert latest(padded, network) == other


def test_campaigns_are_found_by_id_then_by_newest_name(store: DuckDBStore) -> None:
    old = CampaignRecord("1", "kernels-p", "kernels", "p", {"a": [1]}, started_at_s=1.0)
    new = CampaignRecord("2", "kernels-p", "kernels", "p", started_at_s=2.0)
    odd = CampaignRecord("kernels-p", "odd", "kernels", "p", started_at_s=0.0)
    for record in (new, old):
        store.put_campaign(record)
    assert store.get_campaign("1") == old
    assert store.get_campaign("kernels-p") == new
    store.put_campaign(odd)
    assert store.get_campaign("kernels-p") == odd
    assert store.get_campaign("3") is None
    assert store.campaigns() == [new, old, odd]


def test_a_list_of_campaigns_can_leave_their_graphs_where_they_are(store: DuckDBStore) -> None:
    old = CampaignRecord("1", "a", "networks", "p", {"graphs": [{}]}, "done", started_at_s=1.0)
    new = replace(old, campaign_id="2", outcome={"networks": [1]}, started_at_s=2.0)
    for record in (old, new):
        store.put_campaign(record)
    assert store.campaigns(brief=True) == [
        replace(record, config={}, outcome={}) for record in (new, old)
    ]
    assert store.campaigns() == [new, old]


def test_a_campaign_record_is_replaced_as_it_runs(store: DuckDBStore) -> None:
    record = CampaignRecord("1", "n", "kernels", "p", started_at_s=1.0)
    for done in range(60):
        store.put_campaign(replace(record, stage_done=done))
    finished = replace(
        record,
        state="done",
        outcome={"rules": {"Conv+Relu": True}, "share": 0.5},
        finished_at_s=9.0,
    )
    store.put_campaign(finished)
    assert store.campaigns() == [finished]


def test_threads_write_and_read_at_the_same_time(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    faults: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(8):
                store.add_measurements(f"c{thread}", [make_measurement(repeat=i)])
                store.put_campaign(CampaignRecord(f"c{thread}", "n", "kernels", "p", stage_done=i))
                assert len(store.campaign_measurements(f"c{thread}")) == i + 1
                assert len(list(store.measurements(campaign_id=f"c{thread}"))) == i + 1
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(list(store.measurements())) == 32


def test_a_closed_store_says_so(tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    store = DuckDBStore(tmp_path / "s")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.add_measurements("c", [make_measurement()])
    with pytest.raises(StoreError, match="closed"):
        list(store.measurements())


def test_a_batch_that_cannot_be_written_leaves_nothing(
    store: DuckDBStore, make_measurement: MakeMeasurement
) -> None:
    good, bad = make_measurement(1), make_measurement(2, error_message="\ud800")
    with pytest.raises(StoreError, match="write measurements"):
        store.add_measurements("c", [good, bad])
    assert store.campaign_measurements("c") == {}
    assert store.get_graph(hash_of(good[1])) is None
    store.add_measurements("c", [good])
    assert store.campaign_measurements("c") == {good[0].request_id: good[0]}
