"""A store is checked, cleaned and repaired; what was lost is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.upkeep.gc import collect_garbage
from latfarm_controller.store.upkeep.info import describe
from latfarm_controller.store.upkeep.repair import repair
from latfarm_controller.store.upkeep.verify import verify
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

MakeMeasurement = Callable[..., tuple[Measurement, Graph]]


@contextmanager
def opened(path: Path) -> Iterator[DuckDBFile]:
    file = DuckDBFile(path)
    try:
        yield file
    finally:
        file.close()


@pytest.fixture
def path(tmp_path: Path, make_measurement: MakeMeasurement) -> Path:
    """A store with 30 measurements of 30 graphs, in its file and without a log."""
    path = tmp_path / "s"
    with DuckDBStore(path) as store:
        store.add_measurements("c", [make_measurement(size) for size in range(1, 31)])
        store.put_campaign(CampaignRecord("c", "n", "kernels", "p"))
    return path


@pytest.fixture
def logged(path: Path, make_measurement: MakeMeasurement) -> Path:
    """The same store with 6 more transactions, which are only in its write-ahead log."""
    copy = path.with_name("logged")
    shutil.copy(path, copy)
    store = DuckDBStore(copy)
    for size in range(31, 37):
        store.add_measurements("d", [make_measurement(size)])
    crashed = path.with_name("crashed")
    for suffix in ("", ".wal", ".commits"):
        shutil.copy(f"{copy}{suffix}", f"{crashed}{suffix}")
    store.close()
    return crashed


def log_of(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


def sizes(path: Path) -> set[int]:
    """The measurements that are in a store, by the size of their graph, which is their latency."""
    with DuckDBStore(path) as store:
        return {int(m.latency_ms or 0) for m in store.measurements()}


def damage(path: Path, statement: str) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(statement)


def test_a_sound_store(path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with opened(path) as file:
        found = verify(file, lambda *step: told.append(step))
        assert found.sound
        assert (found.measurements, found.graphs, found.faults) == (30, 30, [])
        assert ("measurements", 30, 30) in told
        info = describe(file)
    assert info["rows"]["measurements"] == 30
    assert info["networks"] == 30
    assert info["platforms"][0]["good"] == 30
    assert info["bytes_per_measurement"] > 0
    assert info["losses"] == info["imports"] == []


def test_every_fault_is_told(path: Path, make_measurement: MakeMeasurement) -> None:
    one, other, third = (hash_of(make_measurement(size)[1]) for size in (1, 2, 3))
    damage(path, "UPDATE measurements SET settings = '{' WHERE latency_ms = 5")
    damage(path, "UPDATE measurements SET latency_ms = -6 WHERE latency_ms = 6")
    damage(path, "INSERT INTO put_aside VALUES (99999, 'x', 0)")
    damage(path, f"UPDATE graphs SET graph = '[]' WHERE hash = '{one}'")
    damage(path, f"UPDATE graphs SET network_hash = 'x' WHERE hash = '{other}'")
    text = f"(SELECT graph FROM graphs WHERE hash = '{other}')"
    damage(path, f"UPDATE graphs SET graph = {text} WHERE hash = '{third}'")
    with opened(path) as file:
        found = verify(file)
    assert not found.sound
    told = "\n".join(found.faults)
    assert f"graphs: {one} is unreadable" in told
    assert f"graphs: {other} has a wrong network hash" in told
    assert f"graphs: {third} holds the graph {other}" in told
    assert "row 5 is unreadable" in told
    assert "row 6 has the latency -6.0 ms" in told
    assert "put_aside: row 99999" in told
    assert (found.measurements, found.graphs) == (30, 30)


def test_a_log_without_damage_is_no_loss(logged: Path) -> None:
    assert sizes(logged) == set(range(1, 37))
    with opened(logged) as file:
        assert verify(file).sound


@pytest.mark.parametrize("share", [0.0, 0.31, 0.98])
def test_a_cut_log_loses_its_end_and_that_is_told(
    logged: Path, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(logged)
    whole = log.read_bytes()
    log.write_bytes(whole[: int(len(whole) * share)])
    if share == 0.0:
        log.unlink()
    found = sizes(logged)
    kept = len(found) - 30
    assert found == set(range(1, 31 + kept)), "all before the cut is there"
    assert f"the last {6 - kept} transactions that were written are missing" in caplog.text
    caplog.clear()
    with opened(logged) as file:
        assert len(verify(file).losses) == 1
        assert describe(file)["losses"][0]["commits"] == 6 - kept
    assert caplog.text == "", "a loss is told once, and then remembered"


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_a_log_that_is_damaged_anywhere_costs_no_good_data(logged: Path, share: float) -> None:
    log = log_of(logged)
    data = bytearray(log.read_bytes())
    at = int(len(data) * share)
    data[at : at + 16] = bytes(byte ^ 0x5A for byte in data[at : at + 16])
    log.write_bytes(data)
    before = logged.read_bytes(), bytes(data)
    target = logged.with_name("saved")
    report = repair(logged, target)
    assert (logged.read_bytes(), log.read_bytes()) == before, "the damaged files are only read"
    found = sizes(target)
    kept = len(found) - 30
    assert kept >= 0
    assert found == set(range(1, 31 + kept)), "all before the damage is there"
    assert kept <= 6
    assert report.lost, "the loss is told"
    with opened(target) as file:
        assert verify(file).losses
    # To open it as it is: refused with the remedy, or opened with the loss told.
    try:
        with opened(logged) as file:
            assert verify(file).losses
    except StoreError as error:
        assert "latfarm db repair" in str(error)  # noqa: PT017 - either outcome is right


def test_repairing_a_sound_store_copies_it(logged: Path) -> None:
    target = logged.with_name("saved")
    report = repair(logged, target)
    assert report.lost == []
    assert report.kept["measurements"] == 36
    assert sizes(target) == set(range(1, 37))
    with pytest.raises(UsageError, match="exists already"):
        repair(logged, target)
    with pytest.raises(UsageError, match="no store"):
        repair(logged.with_name("nothing"), target)


def test_a_half_written_database_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for size in (4096, 12_288, len(data) // 2, len(data) - 4096):
        path.write_bytes(data[:size])
        if size < len(data) - 4096:
            with pytest.raises(StoreError, match=r"half written|Could not read enough"):
                DuckDBStore(path)
            continue
        try:  # what is cut off may be the unused end of the last block
            found = sizes(path)
        except StoreError:
            continue
        assert len(found) == 30
    path.write_bytes(data)
    assert len(sizes(path)) == 30


def test_damaged_blocks_cost_their_rows_alone(
    tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    path = tmp_path / "large"
    with DuckDBStore(path) as store:
        rows = [make_measurement(size) for size in range(1, 100)]
        store.add_measurements("c", rows)
    data = bytearray(path.read_bytes())
    target = tmp_path / "saved"
    block = 262_144
    hurt = 0
    for at in range(12_288 + block, len(data), block):
        copy = bytearray(data)
        copy[at + 1000 : at + 1100] = b"\x5a" * 100
        path.write_bytes(copy)
        target.unlink(missing_ok=True)
        try:
            report = repair(path, target)
        except StoreError as error:
            assert "nothing can be saved" in str(error)  # noqa: PT017 - of the block with the tables
            hurt += 1
            continue
        hurt += bool(report.lost)
        assert report.lost or report.kept["measurements"] == 99
        with opened(target) as file:
            assert len(verify(file).losses) == len(report.lost)
    assert hurt, "no damage was noticed at all"


def test_garbage_is_only_counted_unless_it_shall_go(
    path: Path, make_measurement: MakeMeasurement
) -> None:
    with DuckDBStore(path) as store:
        store.add_measurements("bundled", [make_measurement(77, board_id="bad")])
        store.add_measurements("other", [make_measurement(78, board_id="bad")])
        named = hash_of(make_measurement(79)[1])
        store.add_measurements("other", [make_measurement(79, board_id="bad")])
        store.put_campaign(CampaignRecord("o", "n", "k", "p", outcome={"graphs": [named]}))
        assert len(store.discard_measurements("bad", 0.0, "drift")) == 3
    with opened(path) as file:
        for remove in (False, False, True):
            found = collect_garbage(file, ["bundled"], remove=remove)
            assert (found.discarded, found.graphs, found.protected) == (2, 1, 1)
        found = collect_garbage(file, ["bundled"], remove=True)
        assert (found.discarded, found.graphs, found.protected) == (0, 0, 1)
        assert verify(file).sound
        assert file.number("SELECT count(*) FROM measurements") == 31
        assert file.number("SELECT count(*) FROM graphs") == 32
