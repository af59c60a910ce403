from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from latfarm_controller.errors import StoreBusyError, StoreError
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement

from tests.integration.conftest import WITHOUT_CAPABILITIES

MakeMeasurement = Callable[..., tuple[Measurement, Graph]]

WRITE = """
import os, resource, signal, sys
from dataclasses import replace
from pathlib import Path
from latfarm_controller.errors import StoreError
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

path, limit_bytes = Path(sys.argv[1]), int(sys.argv[2])
kind = TensorType("float32", (1, 8))
graph = Graph("g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": kind, "y": kind})
first = Measurement("", hash_of(graph), "p", "kernel", Outcome.OK, latency_ms=1.0)
failed = replace(first, outcome=Outcome.INFRASTRUCTURE_ERROR, latency_ms=None)
store = DuckDBStore(path)
if limit_bytes:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
noise = lambda: os.urandom(20_000).hex() if limit_bytes else ""
for i in range(10**6):
    try:
        told = replace(first, request_id=str(i), error_message=noise())
        store.add_measurements("c", [(replace(failed, request_id=str(i)), graph)])
        store.add_measurements("c", [(told, graph)])
        store.put_campaign(CampaignRecord("c", "n", "kernels", "p", stage_done=i))
    except StoreError as error:
        print("error", str(error).replace(chr(10), " "), flush=True)
        os._exit(3)
    print(i, flush=True)
"""


def writer(path: Path, limit_bytes: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path), str(limit_bytes)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("commits", [1, 25])
def test_a_killed_writer_loses_nothing_it_was_told(tmp_path: Path, commits: int) -> None:
    path = tmp_path / "s"
    with writer(path) as process:
        assert process.stdout is not None
        for _ in range(commits):
            process.stdout.readline()
        with pytest.raises(StoreBusyError, match=str(process.pid)):
            DuckDBStore(path)
        process.send_signal(signal.SIGKILL)
        committed = commits + len(process.stdout.readlines())
    with DuckDBStore(path) as store:
        told = store.campaign_measurements("c")
        # The writer may have committed one more and been killed before it printed the line.
        assert committed <= len(told) <= committed + 1
        assert all(told[str(i)].ok for i in range(committed))
        record = store.get_campaign("c")
        assert record is not None
        assert record.stage_done >= committed - 1
        assert store.counts()["graphs"] >= 1
        assert len(list(store.measurements(platform="p", purpose="kernel"))) >= committed


def test_a_full_disk_is_a_store_error_and_costs_nothing_that_was_told(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with writer(path, limit_bytes=1 << 20) as process:
        assert process.stdout is not None
        lines = process.stdout.readlines()
    assert process.returncode == 3
    assert lines[-1].startswith(f"error {path}: cannot write")
    committed = len(lines) - 1
    assert committed > 5
    with DuckDBStore(path) as store:
        told = store.campaign_measurements("c")
        assert committed <= len(told) <= committed + 1
        assert all(told[str(i)].ok for i in range(committed))


def test_a_file_of_another_kind_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"SQLite format 3\x00" + bytes(5000))
    before = path.read_bytes()
    with pytest.raises(StoreError, match="no store") as caught:
        DuckDBStore(path)
    assert str(path) in str(caught.value)
    assert "move it away" in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("start", [0, 4096, 12_288])
def test_a_damaged_file_is_refused(
    tmp_path: Path, make_measurement: MakeMeasurement, start: int
) -> None:
    path = tmp_path / "s"
    with DuckDBStore(path) as store:
        store.add_measurements("c", [make_measurement(size) for size in range(1, 200)])
    data = bytearray(path.read_bytes())
    stop = min(len(data), start + 4096) if start == 0 else len(data)
    data[start:stop] = b"\xa5" * (stop - start)
    path.write_bytes(data)
    with pytest.raises(StoreError) as caught, DuckDBStore(path) as store:
        list(store.measurements())
    assert str(path) in str(caught.value)
    assert "move it away" in str(caught.value)


def test_a_truncated_file_is_refused(tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    path = tmp_path / "s"
    with DuckDBStore(path) as store:
        store.add_measurements("c", [make_measurement(size) for size in range(1, 200)])
    path.write_bytes(path.read_bytes()[: 3 * 4096])
    with pytest.raises(StoreError, match="move it away"), DuckDBStore(path) as store:
        list(store.measurements())


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()
    with DuckDBStore(path) as store:
        assert store.campaigns() == []


def test_what_was_left_of_a_store_that_was_never_finished_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "s.new").write_bytes(b"half a header")
    (tmp_path / "s.new.wal").write_bytes(b"half a log")
    with DuckDBStore(tmp_path / "s") as store:
        assert store.campaigns() == []
    assert {path.name for path in tmp_path.iterdir()} == {"s", "s.commits", "s.lock"}


def test_a_log_without_its_database_is_not_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "s.wal").write_bytes(b"precious")
    with pytest.raises(StoreError, match=r"s\.wal exists without its database"):
        DuckDBStore(tmp_path / "s")
    assert (tmp_path / "s.wal").read_bytes() == b"precious"


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(StoreError, match="cannot open"):
        DuckDBStore(tmp_path / "s")


def test_another_program_that_has_the_file_open_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    DuckDBStore(path).close()
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(StoreBusyError, match=str(process.pid)):
                DuckDBStore(path)
        finally:
            process.kill()


IMPORT = """
import os, resource, signal, sys
from pathlib import Path
from latfarm_controller.errors import StoreError
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.exchange.importing import Importer
from latfarm_controller.store.exchange.readers.kinds import open_reader

path, folder, limit_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
file = DuckDBFile(path)
reader = open_reader(folder)
if limit_bytes:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
try:
    print(Importer(file, reader, reader.origin).run().added)
except StoreError as error:
    print(str(error).replace(chr(10), " "), flush=True)
    os._exit(3)
file.close()
"""


def test_a_disk_that_fills_during_an_import_leaves_nothing_half(tmp_path: Path) -> None:
    path, folder = tmp_path / "s", tmp_path / "ncnn"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "net.param").write_text(
        "7767517\n2 2\nInput x 0 1 x 0=4 1=4 2=3\nReLU r 1 1 x r\n"
    )
    head = "board,run,num_threads,powersave,gpu_device,loop_count,model,min_ms,max_ms,avg_ms\n"
    rows = [f"board {i:05d} of many,{i},1,0,-1,4,net,1,3,2\n" for i in range(6000)]
    (folder / "benchmarks.csv").write_text(head + "".join(rows))
    with DuckDBStore(path):
        pass

    def run(limit_bytes: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", IMPORT, str(path), str(folder), str(limit_bytes)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    full = run(200_000)
    assert full.returncode == 3, full
    assert str(path) in full.stdout
    with DuckDBStore(path) as store:
        assert list(store.measurements(foreign=True)) == []
    assert run(0).stdout == "6000\n"
    with DuckDBStore(path) as store:
        assert len(list(store.measurements(foreign=True))) == 6000


OPEN = """
import sys
from pathlib import Path
from latfarm_controller.errors import StoreError
from latfarm_controller.store.duckdb import DuckDBStore

try:
    DuckDBStore(Path(sys.argv[1])).close()
except StoreError as error:
    print(str(error).replace(chr(10), " "))
    sys.exit(3)
"""


def test_a_store_that_may_only_be_read_is_refused_with_a_remedy(
    tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    folder = tmp_path / "home"
    with DuckDBStore(folder / "s") as store:
        store.add_measurements("c", [make_measurement(1)])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command = [sys.executable, "-c", WITHOUT_CAPABILITIES, sys.executable, "-c", OPEN]
    for path in folder.iterdir():
        path.chmod(0o400)
    folder.chmod(0o500)
    try:
        ended = subprocess.run(
            [*command, str(folder / "s")], capture_output=True, text=True, check=False
        )
    finally:
        folder.chmod(0o700)
        for path in folder.iterdir():
            path.chmod(0o600)
    assert ended.returncode == 3, ended
    assert "set LATFARM_HOME to a folder you may write" in ended.stdout
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with DuckDBStore(folder / "s") as store:
        assert store.counts()["measurements"] == 1
