"""A write-ahead log that is cut or damaged anywhere: nothing is lost without being told.

`make test-database-damage` tries many more places than the few of each run.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from latfarm_controller.errors import StoreError
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.upkeep.repair import repair
from latfarm_controller.store.upkeep.verify import verify
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement

MakeMeasurement = Callable[..., tuple[Measurement, Graph]]
PLACES = int(os.environ.get("LATFARM_DAMAGED_PLACES", "6"))
"""Number of places of the log that are damaged in each way."""
IN_FILE, IN_LOG = 5, 8
"""Numbers of transactions with a measurement that the database and the log hold."""
PARTS = ("s", "s.wal", "s.commits")
"""The files of a store that is open."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, make_measurement: MakeMeasurement) -> Path:
    """The files of a store as a killed process leaves them, with all writes acknowledged."""
    folder = tmp_path_factory.mktemp("killed")
    path = folder / "open" / "s"
    with DuckDBStore(path) as store:
        for size in range(1, IN_FILE + 1):
            store.add_measurements("c", [make_measurement(size)])
    with DuckDBStore(path) as store:
        for size in range(IN_FILE + 1, IN_FILE + IN_LOG + 1):
            store.add_measurements("c", [make_measurement(size)])
            store.put_campaign(CampaignRecord("c", "n", "kernels", "p", stage_done=size))
        for name in PARTS:
            shutil.copyfile(path.with_name(name), folder / name)
    return folder


def places(killed: Path, count: int = PLACES) -> list[int]:
    """Places in the log, seeded; its first and its last byte are among them."""
    size = (killed / "s.wal").stat().st_size
    draw = random.Random(7)
    return sorted({0, size - 1, *(draw.randrange(size) for _ in range(count))})


def unchanged(data: bytearray, _at: int) -> bytearray:
    return data


def cut(data: bytearray, at: int) -> bytearray:
    return data[:at]


def flipped(data: bytearray, at: int) -> bytearray:
    data[at] ^= 0x55
    return data


def holed(data: bytearray, at: int) -> bytearray:
    """A page of zeros, as a file system leaves it that lost the data but not the size."""
    stop = min(len(data), at + 512)
    data[at:stop] = bytes(stop - at)
    return data


def copied(
    killed: Path, folder: Path, change: Callable[[bytearray, int], bytearray], at: int = 0
) -> Path:
    """The store with a log that is changed at a place."""
    folder.mkdir()
    for name in PARTS:
        shutil.copyfile(killed / name, folder / name)
    log = folder / "s.wal"
    log.write_bytes(change(bytearray(log.read_bytes()), at))
    return folder / "s"


def held(path: Path) -> tuple[list[float], list[str]]:
    """The latencies that a store holds, in order, and the losses that it tells."""
    file = DuckDBFile(path)
    try:
        found = verify(file)
        assert not found.faults
        rows = file.all("SELECT latency_ms FROM measurements ORDER BY seq")
        return [float(row[0]) for row in rows], found.losses
    finally:
        file.close()


def saved(path: Path) -> tuple[list[float], list[str]]:
    """What a repair saves of a store that cannot be opened; the damaged files are only read."""
    before = {name: path.with_name(name).read_bytes() for name in PARTS}
    report = repair(path, path.with_name("saved"))
    assert report.lost, "something was damaged"
    assert before == {name: path.with_name(name).read_bytes() for name in PARTS}
    return held(path.with_name("saved"))


def check(path: Path) -> None:
    """Either all acknowledged rows are there, or a loss is told and the good data is readable."""
    everything = [float(size) for size in range(1, IN_FILE + IN_LOG + 1)]
    refusal = ""
    try:
        rows, losses = held(path)
    except StoreError as error:
        refusal = str(error)
    if refusal:
        assert "latfarm db repair" in refusal
        rows, losses = saved(path)
    assert rows == everything[: len(rows)], "what is there is what was written, in order"
    assert len(rows) >= IN_FILE, "what stands in the database itself is never lost"
    if rows != everything:
        assert losses, "a loss is told"


def test_an_undamaged_log_loses_nothing(killed: Path, tmp_path: Path) -> None:
    rows, losses = held(copied(killed, tmp_path / "copy", unchanged))
    assert len(rows) == IN_FILE + IN_LOG
    assert losses == []


def test_a_log_that_is_cut_anywhere(killed: Path, tmp_path: Path) -> None:
    for place in places(killed):
        check(copied(killed, tmp_path / f"cut{place}", cut, place))


def test_a_log_with_a_wrong_byte_anywhere(killed: Path, tmp_path: Path) -> None:
    for place in places(killed, PLACES // 3):
        check(copied(killed, tmp_path / f"flip{place}", flipped, place))


def test_a_log_with_a_hole_anywhere(killed: Path, tmp_path: Path) -> None:
    for place in places(killed, PLACES // 6):
        check(copied(killed, tmp_path / f"hole{place}", holed, place))


def test_a_log_that_is_gone(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "gone", unchanged)
    path.with_name("s.wal").unlink()
    rows, losses = held(path)
    assert len(rows) == IN_FILE
    assert losses
