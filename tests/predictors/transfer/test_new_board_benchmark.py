"""The readers and figures of `make bench-new-board`, on small files made here."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from latfarm_predictors.transfer.left_out import LeftOut

from benchmarks.new_board import data
from benchmarks.new_board.bench import misses
from benchmarks.new_board.figures import figures, judged

HEADER = "board,run,num_threads,powersave,gpu_device,loop_count,model,min_ms,max_ms,avg_ms\n"
ROWS = """\
Board A (RK3588),1,1,0,-1,8,alexnet,10,12,11
Board A (RK3588),1,1,0,-1,8,vgg16,50,60,55
Board A (RK3588),2,1,0,0,8,alexnet,5,6,5.5
Board B (RK3588s),9,4,0,-1,8,vgg16,20,21,20.5
VisionFive2,3,4,0,-1,8,alexnet,100,101,100.5
VisionFive2,4,4,1,-1,8,alexnet,110,111,110.5
"""


def test_boards_of_ncnn(tmp_path: Path) -> None:
    (tmp_path / data.CSV).write_text(HEADER + ROWS)
    table = data.ncnn(tmp_path, siblings=True)
    assert table.kinds == ("cpu", "gpu", "cpu", "cpu", "cpu")
    assert table.groups[:3] == ("RK3588",) * 3
    assert table.boards[2] == "Board B (RK3588s)"
    assert table.latencies_ms[0].tolist() == [10.0, 50.0]
    assert np.isnan(table.latencies_ms[1, 1])
    assert data.ncnn(tmp_path, siblings=False).groups[2] == "Board B (RK3588s)"
    ceiling = data.ncnn_repeats(tmp_path).ceiling()
    assert ceiling["pairs"] == 1
    assert ceiling["within10"] == 1.0  # 10 % between two runs is 7 % from the truth


def test_cells_of_nasbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "|nor_conv_3x3~0|+|none~0|none~1|+|none~0|skip_connect~1|none~2|"
    turned = "|none~0|+|nor_conv_3x3~0|none~1|+|none~0|none~1|skip_connect~2|"
    dead = "|nor_conv_3x3~0|+|none~0|none~1|+|none~0|none~1|none~2|"
    (tmp_path / "latency").mkdir()
    for path, told in (
        ("str_arch2idx.pt", {cell: 0, dead: 1, turned: 2}),
        ("latency/pixel3.pt", [3.0, 1.0, 3.3]),
    ):
        with zipfile.ZipFile(tmp_path / path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(told, protocol=2))
    monkeypatch.setattr(data, "MAKERS", {"pixel3": "Qualcomm"})
    table = data.nasbench(tmp_path)
    assert table.networks == (cell, turned)
    assert table.amounts[0].tolist() == [1, 1, 0, 1, 0, 1, 0, 1, 0, 2]
    repeats = data.nasbench_repeats(table, 0)
    assert np.exp(repeats.second - repeats.first) == pytest.approx([1.1])


def test_a_file_that_holds_more_than_plain_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Path("x"), protocol=2))
    with pytest.raises(pickle.UnpicklingError, match="not plain data"):
        data._unpickled(path)


def left(platform: str, errors: list[float]) -> LeftOut:
    """A platform whose predictions are off by these logarithms."""
    places = np.arange(len(errors))
    log_ms = places + np.array(errors)
    return LeftOut(
        platform, places[:0], places, log_ms, np.array(errors), np.full(len(errors), 0.1)
    )


def test_figures_count_networks_and_resample_boards() -> None:
    found = [
        judged("a", "cpu", left("a1", [0.0, 0.05, 0.5, 0.0]), 2.0),
        judged("b", "cpu", left("b1", [0.0, -0.05, 0.0, 0.3]), 2.0),
    ]
    told = figures(found)
    assert told["boards"] == told["platforms"] == 2
    assert told["within10_percent"] == 75.0
    assert told["coverage_90_percent"] == 75.0
    assert told["kendall"] == 1.0
    low, high = told["mape_percent_interval"]
    assert low < told["mape_percent"] < high
    assert told["median_width_percent"] == pytest.approx(40.3, abs=1.5)


def test_a_miss_names_its_target() -> None:
    good = {"within10_percent": 80.0, "mape_percent": 5.0, "kendall": 0.9}
    part = {**good, "coverage_90_percent": 90.0}
    tables = {
        name: {"latfarm": {"all": dict(part), "cpu": dict(part)}}
        for name in ("ncnn", "ncnn with the board's other configurations", "nasbench")
    }
    assert misses(tables) == []
    tables["nasbench"]["latfarm"]["all"].update(mape_percent=7.5, coverage_90_percent=95.0)
    assert misses(tables) == [
        "nasbench, all: mape_percent is 7.5, target 7.0",
        "nasbench: 90 % intervals cover 95.0 %, target 87 to 93",
    ]
