"""The index finds the same answers as a look at all rows, whatever happened to the rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_controller.store import answer_index
from latfarm_controller.store.base import AnswerQuery
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, ProfiledLayer, Settings

MakeMeasurement = Callable[..., tuple[Measurement, Graph]]


def exported(graph: Graph) -> Graph:
    """The same network as another tool writes it: with an op that does nothing."""
    return Graph(
        "other",
        ("x",),
        ("z",),
        (*graph.nodes, Node("i", "Identity", ("y",), ("z",))),
        {},
        {**graph.types, "z": graph.types["y"]},
    )


def drawn(make: MakeMeasurement, seed: int, count: int) -> list[tuple[Measurement, Graph]]:
    """Measurements of a few networks that differ in everything an answer depends on."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        measurement, graph = make(
            rng.randint(1, 4),
            number,
            platform=rng.choice(["p", "q"]),
            purpose=rng.choice(["query", "network", "kernel"]),
            ok=rng.random() < 0.9,
        )
        if rng.random() < 0.3:
            graph = exported(graph)
        rows.append(
            (
                replace(
                    measurement,
                    request_id=f"r{number}",
                    graph_hash=hash_of(graph),
                    unstable=rng.random() < 0.4,
                    fingerprint=rng.choice(["f", "g"]),
                    energy_mj=rng.choice([None, 1.0]),
                    board_id=rng.choice(["b", "c"]),
                    received_at_s=float(rng.randint(1000, 1050)),
                    settings=Settings(tier=rng.choice(["survey", "publish"])),
                    layers=(ProfiledLayer("l", "Relu", 1.0),) if rng.random() < 0.1 else (),
                ),
                graph,
            )
        )
    return rows


def questions(make: MakeMeasurement) -> list[AnswerQuery]:
    """All questions about the networks of `drawn`, and about one that was never measured."""
    found = []
    for size in range(1, 6):
        for graph in (make(size)[1], exported(make(size)[1])):
            for platform in ("p", "q"):
                plain = AnswerQuery(hash_of(graph), platform, network_hash_of(graph))
                found += [
                    plain,
                    replace(plain, network_hash=""),
                    replace(plain, tier="publish"),
                    replace(plain, purposes=("query",)),
                    replace(plain, fingerprint="f", energy=True),
                    replace(plain, since_s=1025.0),
                ]
    return found


def check(store: DuckDBStore, scanned: DuckDBStore, wanted: list[AnswerQuery]) -> int:
    """Compare all answers of a store with an index with those of one without; how many there are.

    Of equally good rows that came at the same time, the last one wins in both.
    """
    quick, slow = store.find_answers(wanted), [scanned.find_answers([each])[0] for each in wanted]
    assert quick == slow
    return sum(1 for answer in quick if answer is not None)


@pytest.mark.parametrize(("merge_rows", "few_rows"), [(7, 0), (50_000, 64)])
def test_the_index_and_a_scan_agree(
    tmp_path: Path,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
    merge_rows: int,
    few_rows: int,
) -> None:
    monkeypatch.setattr(answer_index, "MERGE_ROWS", merge_rows)
    monkeypatch.setattr(answer_index, "FEW_ROWS", few_rows)
    rows = drawn(make_measurement, 1, 120)
    wanted = questions(make_measurement)
    with (
        DuckDBStore(tmp_path / "quick", index=True) as store,
        DuckDBStore(tmp_path / "slow") as scanned,
    ):
        for first in range(0, len(rows), 20):
            for each in (store, scanned):
                each.add_measurements("c", rows[first : first + 20])
        found = check(store, scanned, wanted)
        assert found > 40
        for each in (store, scanned):
            assert each.discard_measurements("b", 1010.0, "drift")
        assert 0 < check(store, scanned, wanted) < found
        mended = [(replace(m, outcome=m.outcome), graph) for m, graph in rows if m.ok]
        for each in (store, scanned):
            each.add_measurements("c", mended)
        assert check(store, scanned, wanted) == found
    with (
        DuckDBStore(tmp_path / "quick", index=True) as store,
        DuckDBStore(tmp_path / "slow") as scanned,
    ):
        assert check(store, scanned, wanted) == found


def test_a_hash_of_another_form_has_a_mark_too() -> None:
    text = "0123456789abcdef" * 2
    assert answer_index.mark(text) == 0x0123456789ABCDEF
    odd = ["g", text.upper(), "z" * 32, "", text]
    import pyarrow as pa

    assert answer_index.marks(pa.array(odd)).tolist() == [answer_index.mark(t) for t in odd]
    assert answer_index.marks(pa.array([text] * 3)).tolist() == [0x0123456789ABCDEF] * 3
    assert len({answer_index.mark(t) for t in odd}) == len(odd)


def test_rows_with_the_same_mark_are_told_apart(
    tmp_path: Path, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are 64 bits of a hash: an answer is never of another network, even if they collide."""
    monkeypatch.setattr(answer_index, "mark", lambda _text: 7)
    one, other = (make_measurement(size, purpose="query") for size in (1, 2))
    with DuckDBStore(tmp_path / "s", index=True) as store:
        store.add_measurements("c", [one, other])
        for measurement, graph in (one, other):
            query = AnswerQuery(hash_of(graph), "p", network_hash_of(graph))
            assert store.find_answers([query]) == [measurement]
        unknown = AnswerQuery("0" * 32, "p", "1" * 32)
        assert store.find_answers([unknown]) == [None]


@pytest.mark.parametrize("wrong", ["-" + "a" * 31, "+" + "a" * 31, "a_" * 16, " " * 8 + "a" * 24])
def test_a_text_that_is_no_hash_finds_nothing(
    tmp_path: Path, make_measurement: MakeMeasurement, wrong: str
) -> None:
    """Python reads some of these as numbers, even as negative ones."""
    measurement, graph = make_measurement(1, purpose="query")
    with DuckDBStore(tmp_path / "store.duckdb", index=True) as store:
        store.add_measurements("c", [(measurement, graph)])
        wanted = [AnswerQuery(wrong, measurement.platform, wrong)]
        wanted.append(AnswerQuery(hash_of(graph), measurement.platform))
        none, found = store.find_answers(wanted)
        assert none is None
        assert found is not None
