"""Measurements that others published are imported; every row that is none is told by its line."""

from __future__ import annotations

import csv
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import FOREIGN, AnswerQuery
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.importing import Imported, Importer
from latfarm_controller.store.exchange.readers.kinds import KINDS, open_reader
from latfarm_controller.store.exchange.readers.nnlqp import PLATFORMS
from latfarm_controller.store.exchange.readers.plain_pickle import read_plain
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement
from onnx import TensorProto, helper, save

CELL = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|skip_connect~0|none~1|skip_connect~2|"
OTHER = "|nor_conv_1x1~0|+|none~0|skip_connect~1|+|skip_connect~0|none~1|skip_connect~2|"
DEAD = "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with DuckDBStore(tmp_path / "store" / "s", index=True) as opened:
        yield opened


def taken_in(store: DuckDBStore, folder: Path, kind: str = "", **options: Any) -> Imported:
    reader = open_reader(folder, kind)
    origin = reader.origin if reader.origin.licence else Origin("them", "MIT", "as they do")
    return Importer(store.file, reader, origin, **options).run()


def listed(store: DuckDBStore) -> list[Measurement]:
    return sorted(store.measurements(foreign=True), key=lambda each: each.latency_ms or 0.0)


def write_relu(path: Path, channels: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ("N", channels)) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)


@pytest.fixture
def nnlqp(tmp_path: Path) -> Path:
    """Two networks; of one there are two batch sizes."""
    folder = tmp_path / "nnlqp"
    for channels in (4, 8):
        write_relu(folder / "onnx" / f"net{channels}.onnx", channels)
    (folder / "gt.txt").write_text(
        "1 onnx/net4.onnx 1 1.5 relu 2 train\n"
        "\n"
        "2 onnx/net4.onnx 8 2.5 relu 2 test\n"
        "3 onnx/net8.onnx 1 3.5 relu 23\n"
    )
    return folder


def test_nnlqp(store: DuckDBStore, nnlqp: Path) -> None:
    done = taken_in(store, nnlqp)
    assert (done.told, done.added, done.graphs, done.refused_rows) == (3, 3, 3, 0)
    first, second, third = listed(store)
    assert (first.platform, third.platform) == (PLATFORMS[2], PLATFORMS[23])
    assert second.conditions["split"] == "test"
    assert second.graph_hash == hash_of(read_onnx(nnlqp / "onnx" / "net4.onnx", batch=8))
    assert [first.conditions[name] for name in FOREIGN] == ["them", "MIT", "as they do"]
    assert list(store.measurements()) == [], "what trains is this farm's own"
    store.refresh()
    question = AnswerQuery(first.graph_hash, first.platform)
    assert store.find_answers([question]) == [None], "it answers only if it is asked for"
    (found,) = store.find_answers([AnswerQuery(first.graph_hash, first.platform, foreign=True)])
    assert found is not None
    assert found.latency_ms == 1.5


def test_the_same_rows_in_another_file_are_not_taken_twice(store: DuckDBStore, nnlqp: Path) -> None:
    assert taken_in(store, nnlqp).added == 3
    assert taken_in(store, nnlqp).again
    with (nnlqp / "gt.txt").open("a") as file:
        file.write("4 onnx/net8.onnx 2 4.5 relu 23\n")
    done = taken_in(store, nnlqp)
    assert (done.added, done.known, done.graphs) == (1, 3, 1)


def test_what_would_come_is_told_and_nothing_changes(store: DuckDBStore, nnlqp: Path) -> None:
    done = taken_in(store, nnlqp, rehearse=True)
    assert (done.added, done.known, done.graphs, done.rehearsed) == (3, 0, 3, True)
    tables = ("imports", "graphs", "foreign_measurements", "staged_measurements", "staged_graphs")
    assert [store.file.number(f"SELECT count(*) FROM {table}") for table in tables] == [0] * 5
    assert taken_in(store, nnlqp).added == 3
    with (nnlqp / "gt.txt").open("a") as file:
        file.write("4 onnx/net8.onnx 2 4.5 relu 23\n")
    again = taken_in(store, nnlqp, rehearse=True)
    assert (again.added, again.known, again.graphs) == (1, 3, 1)


BAD_LINES = (
    ("1 onnx/net4.onnx 1 nan relu 9 train", "latency_ms is nan"),
    ("1 onnx/net4.onnx 1 0 relu 9 train", "latency_ms is 0.0"),
    ("1 onnx/net4.onnx 1 -2 relu 9 train", "latency_ms is -2.0"),
    ("1 onnx/net4.onnx 1 fast relu 9 train", "which is no number"),
    ("1 onnx/net4.onnx 1 1e300 relu 9 train", "latency_ms is 1e+300"),
    ("1 onnx/none.onnx 1 2.5 relu 9 train", "there is no graph of onnx/none.onnx"),
    ("1 ../../etc/passwd 1 2.5 relu 9 train", "there is no graph of"),
    ("1 onnx/bad.onnx 1 2.5 relu 9 train", "there is no graph of onnx/bad.onnx"),
    ("1 onnx/net4.onnx 0 2.5 relu 9 train", "the batch size is '0'"),
    ("1 onnx/net4.onnx 1 2.5 relu 7 train", "the platform '7' is not known"),
    ("1 onnx/net4.onnx 1", "6 or 7 are due"),
    ("1 onnx/net4.onnx 1 1.6 relu 2 train", "stand in line 1 already"),
    ("\x00\x01 \x02", "6 or 7 are due"),
)


def test_ten_thousand_bad_lines_are_each_named_and_change_nothing_else(
    store: DuckDBStore, nnlqp: Path
) -> None:
    (nnlqp / "onnx" / "bad.onnx").write_bytes(b"no model")
    lines = [BAD_LINES[number % len(BAD_LINES)][0] for number in range(10_000)]
    with (nnlqp / "gt.txt").open("a") as file:
        file.write("\n".join(lines) + "\n")
    done = taken_in(store, nnlqp)
    assert done.added == 3
    assert done.refused_rows == 10_001, "the network that cannot be read is told once more"
    network, *refused = done.refused
    assert network.reason.startswith("the network is not taken")
    assert [each.line for each in refused] == list(range(5, 5 + 10_000))
    for number, each in enumerate(refused):
        assert BAD_LINES[number % len(BAD_LINES)][1] in each.reason
    assert len(listed(store)) == 3


def write_cells(folder: Path, *rows: tuple[Any, ...]) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / "cells.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("index", "cell", "latency_ms", "stage"))
        writer.writerows(rows)
    return folder


def test_inferred_cells_say_so_beside_every_figure(store: DuckDBStore, tmp_path: Path) -> None:
    folder = write_cells(
        tmp_path / "cells", (1, CELL, 0.7, "train"), (2, OTHER, 0.5, "test"), (3, DEAD, 0.1, "test")
    )
    done = taken_in(store, folder)
    assert done.added == 2
    assert [each.line for each in done.refused] == [4, 4], "the network, and its row"
    assert "does not depend on its input" in done.refused[0].reason
    for each in listed(store):
        assert "INFERRED" in each.conditions["foreign_method"]
        assert each.platform == "gpu-gtx1660-trt7.1-fp32"


def test_seconds_in_the_place_of_milliseconds_are_noticed(
    store: DuckDBStore, tmp_path: Path
) -> None:
    taken_in(store, write_cells(tmp_path / "a", (1, CELL, 0.7, "train"), (2, OTHER, 0.5, "test")))
    second = write_cells(tmp_path / "b", (1, CELL, 0.0007, "train"), (2, OTHER, 0.0005, "test"))
    (warning,) = taken_in(store, second).warnings
    assert "0.001 times as long" in warning


def write_pt(path: Path, value: Any, name: str = "archive/data.pkl") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, pickle.dumps(value, 2))


@pytest.fixture
def help_tables(tmp_path: Path) -> Path:
    folder = tmp_path / "help"
    write_pt(folder / "str_arch2idx.pt", {OTHER: 1, CELL: 0, DEAD: 2})
    write_pt(folder / "latency" / "gold_6226.pt", [3.5, 2.5, 1.5])
    write_pt(folder / "latency" / "1080ti_32.pt", [30, 0, float("nan"), 4])
    return folder


def test_help(store: DuckDBStore, help_tables: Path) -> None:
    done = taken_in(store, help_tables)
    assert (done.told, done.added, done.graphs) == (7, 3, 3)
    rows = {(each.platform, each.latency_ms) for each in listed(store)}
    assert rows == {("help-gold_6226", 3.5), ("help-gold_6226", 2.5), ("help-1080ti", 30.0)}
    told = [(each.file, each.line) for each in done.refused]
    assert told == [
        *[("str_arch2idx.pt", 3)] * 2,
        *[("latency/1080ti_32.pt", line) for line in (2, 3, 4)],
        ("latency/gold_6226.pt", 3),
    ]


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (Path.touch, (Path("evil"),))  # type: ignore[return-value]


def test_a_table_that_holds_code_is_refused(tmp_path: Path, help_tables: Path) -> None:
    write_pt(help_tables / "latency" / "evil.pt", [Evil()])
    with pytest.raises(UsageError, match=r"evil\.pt.*no plain value"):
        read_plain(help_tables / "latency" / "evil.pt")
    for name, value in (("a.pt", b"PK\x03\x04 no zip"), ("b.pt", b"")):
        (tmp_path / name).write_bytes(value)
        with pytest.raises(UsageError, match=name):
            read_plain(tmp_path / name)
    write_pt(tmp_path / "c.pt", [1], "other")
    with pytest.raises(UsageError, match=r"c\.pt"):
        read_plain(tmp_path / "c.pt")
    write_pt(help_tables / "str_arch2idx.pt", [1])
    with pytest.raises(UsageError, match="no table of cells"):
        open_reader(help_tables)


PARAM = """7767517
2 2
Input data 0 1 data 0=8 1=8 2=3
Convolution c 1 1 data c 0=8 1=3 4=1 6=216{}
"""
HEADER = "board,run,num_threads,powersave,gpu_device,loop_count,model,min_ms,max_ms,avg_ms"


def test_ncnn(store: DuckDBStore, tmp_path: Path) -> None:
    folder = tmp_path / "ncnn"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "net.param").write_text(PARAM.format(""))
    (folder / "models" / "net_int8.param").write_text(PARAM.format(" 8=2"))
    rows = [
        "Pi 5 (A76, 2.4GHz x 4),1,4,2,-1,10,net,1.0,1.4,1.2",
        "Pi 5 (A76, 2.4GHz x 4),1,4,2,-1,10,net_int8,0.5,0.9,0.7",
        "Pi 5 (A76, 2.4GHz x 4),1,4,2,0,10,net,2.0,2.4,2.2",
        "Pi 5 (A76, 2.4GHz x 4),2,4,2,-1,10,net,1.1,1.5,1.3",
        "Pi 5 (A76, 2.4GHz x 4),2,4,2,-1,10,net,1.1,1.5,1.3",
        "Pi 5 (A76, 2.4GHz x 4),1,many,2,-1,10,net,1.0,1.4,1.2",
        "Pi 5 (A76, 2.4GHz x 4),1,4,2,-1,10,vgg99,1.0,1.4,1.2",
        "Pi 5 (A76, 2.4GHz x 4),1,4,2,-1,10,net,1.0,1.4,",
        "short,row",
    ]
    quoted = [row.replace("Pi 5 (A76, 2.4GHz x 4)", '"Pi 5 (A76, 2.4GHz x 4)"', 1) for row in rows]
    (folder / "benchmarks.csv").write_text("\n".join([HEADER, *quoted, ""]))
    done = taken_in(store, folder)
    assert done.added == 4
    assert [each.line for each in done.refused] == [6, 7, 8, 9, 10]
    words = ("stand in line 5", "num_threads is 'many'", "no graph of vgg99", "avg_ms", "board")
    for each, word in zip(done.refused, words, strict=True):
        assert word in each.reason
    found = {each.latency_ms: each for each in listed(store)}
    assert found[1.2].platform == "pi-5-a76-2.4ghz-x-4-ncnn-cpu-p2-4t"
    assert found[0.7].platform == "pi-5-a76-2.4ghz-x-4-ncnn-cpu-int8-p2-4t"
    assert found[2.2].platform == "pi-5-a76-2.4ghz-x-4-ncnn-gpu0-p2-4t"
    assert found[0.7].graph_hash == found[1.2].graph_hash
    assert (found[1.2].min_ms, found[1.2].runs) == (1.0, 10)


def nnmeter_line(name: str, **latencies: float | None) -> str:
    attr = {"type": "Placeholder", "output_shape": [[1, 8, 8, 3]], "attr": {}}
    told = {"type": "Relu", "output_shape": [[1, 8, 8, 3]], "attr": {}}
    graph = {
        "in": {"inbounds": [], "attr": attr, "outbounds": ["r"]},
        "r": {"inbounds": ["in"], "attr": told, "outbounds": []},
    }
    return json.dumps({"id": name, "graph": graph, **latencies})


def test_nnmeter(store: DuckDBStore, tmp_path: Path) -> None:
    folder = tmp_path / "nnmeter"
    folder.mkdir()
    lines = [
        nnmeter_line("a", cortexA76cpu_tflite21=5.5, adreno640gpu_tflite21=None),
        nnmeter_line("b", cortexA76cpu_tflite21=6.5, myriadvpu_openvino2019r2=7.5),
        "{no json",
        "[]",
        nnmeter_line("c", cortexA76cpu_tflite21=-1.0),
        json.dumps({"id": "d", "cortexA76cpu_tflite21": 8.5}),
    ]
    (folder / "nets.jsonl").write_text("\n".join(lines) + "\n")
    done = taken_in(store, folder)
    assert done.added == 3
    assert [each.latency_ms for each in listed(store)] == [5.5, 6.5, 7.5]
    assert [each.line for each in done.refused] == [3, 4, 6, 5, 6]
    assert "no JSON" in done.refused[0].reason
    assert "no operators" in done.refused[2].reason


def test_a_folder_that_is_none(tmp_path: Path, nnlqp: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        open_reader(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no files of a known format"):
        open_reader(tmp_path / "empty")
    with pytest.raises(UsageError, match="known: latfarm, nnlqp"):
        open_reader(nnlqp, "xml")
    for kind in KINDS:
        with pytest.raises(UsageError):
            open_reader(tmp_path / "empty", kind)
    reader = open_reader(nnlqp)
    assert reader.origin.licence == "", "NNLQP does not tell its licence"
    with DuckDBStore(tmp_path / "s") as store, pytest.raises(UsageError, match="--licence"):
        Importer(store.file, reader, reader.origin).run()
