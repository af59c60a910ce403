"""The benchmark of NNLP: its sources, folds, records and tables, on few and small networks."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms, exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.gnn.network_intervals import NetworkIntervals
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

from benchmarks.gnn import cells, run, simulated, stores, tables, transfer
from benchmarks.gnn.methods import QUICK, Fold, cell_gp, flops_mac, kernel_sum, nn_meter, sum_gp
from benchmarks.gnn.networks import Source, latencies_of
from benchmarks.gnn.records import BenchJob, Results, scored
from benchmarks.platforms.simulated_boards import profile as profile_of
from tests.predictors.gnn.conftest import small_network

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed; make setup-gnn installs it",
)
CELL = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|nor_conv_1x1~1|none~2|"


@pytest.fixture(scope="module")
def branches() -> Source:
    return simulated.source_of("branches", 5, 20, ("squeezenet1.0", "alexnet"))


def written_cells(folder: Path, rows: list[str]) -> Path:
    (folder / "nnlqp_cells").mkdir()
    text = "\n".join(["index,cell,latency_ms,stage", *rows])
    (folder / "nnlqp_cells" / "cells.csv").write_text(text + "\n")
    return folder


def test_cells_are_read_with_their_split(tmp_path: Path) -> None:
    only_none = CELL.replace("nor_conv_3x3", "none").replace("avg_pool_3x3", "none")
    rows = [f"7,{CELL},0.5,train", f"8,{CELL},0.6,test", f"9,{only_none},0.1,train"]
    train, test = cells.read_cells(written_cells(tmp_path, rows))
    assert [each.latency_ms for each in train.networks] == [0.5]
    assert [each.latency_ms for each in test.networks] == [0.6]
    assert "inferred" in train.note
    assert train.facts["disconnected_cells_left_out"] == 1
    features = cells.features_of(train)[0]
    # the counts of none, skip, 1x1, 3x3 and pool; edge 1-2 leads to a node that nothing reads
    assert features[:5].tolist() == [3, 0, 1, 1, 1]
    assert features[5:].sum() == 6


@pytest.mark.parametrize(
    "row", ["7,|a~0|,0.5,train", f"7,{CELL},x,train", f"7,{CELL},-1,train", f"7,{CELL},1,other"]
)
def test_a_row_that_is_no_cell_is_named_by_its_line(tmp_path: Path, row: str) -> None:
    with pytest.raises(ValueError, match="line 3"):
        cells.read_cells(written_cells(tmp_path, [f"7,{CELL},0.5,train", row]))


def test_a_process_on_cells(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    ops = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
    cost = dict(zip(ops, (0.0, 0.02, 0.1, 0.4, 0.15), strict=True))
    rows = []
    for number in range(60):
        cell = ["nor_conv_1x1", *(str(draw.choice(ops)) for _ in range(4)), "nor_conv_3x3"]
        cell[2] = "skip_connect"
        edges = "|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|".format(*cell)
        latency_ms = 0.3 + sum(cost[op] for op in cell)
        rows.append(f"{number},{edges},{latency_ms},{'train' if number < 45 else 'test'}")
    train, test = cells.read_cells(written_cells(tmp_path, rows))
    found = cell_gp(Fold(train, train.networks, test.networks, 0, QUICK))
    assert scored(found, latencies_of(test.networks))["mape"] < 0.05


def test_networks_of_a_simulated_board_are_the_same_each_time(branches: Source) -> None:
    again = simulated.source_of("branches", 5, 20, ("squeezenet1.0", "alexnet"))
    assert latencies_of(again.networks).tolist() == latencies_of(branches.networks).tolist()
    assert branches.families == ["squeezenet1.0", "alexnet"]
    assert all(len(each.passes_ms) == simulated.PASSES for each in branches.networks)
    assert branches.kernels is not None
    data = branches.kernels(branches.networks[:5], 0)
    assert len({sample.kernel.kernel_id for sample in data.samples}) == len(data.samples) >= 8


def test_methods_that_need_no_torch(branches: Source) -> None:
    fold = Fold(branches, list(branches.networks[:5]) * 3, branches.networks[5:], 0, QUICK)
    measured_ms = latencies_of(fold.test)
    for method in (flops_mac, nn_meter, kernel_sum, sum_gp):
        found = method(fold)
        record = scored(found, measured_ms)
        assert record["count"] == 5
        assert np.isfinite(record["mape"])
        assert (found.low_ms <= found.latency_ms).all()
        assert (found.latency_ms <= found.high_ms).all()
    assert len(fold._kernels) == 1  # the predictors of kernels are fitted once


def test_a_run_continues_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(run.DATA_VARIABLE, raising=False)
    arguments = ["--quick", "--method", "flops", "--per-family", "3", "--write", str(tmp_path)]
    assert run.main(arguments) == 0
    first = capsys.readouterr()
    assert first.err.count("MAPE") == len(run.QUICK_FAMILIES)
    assert "steal_share" in first.out
    assert "names no folder" in first.err
    (path,) = tmp_path.iterdir()
    assert path.name == "sim-branches.json"
    content = json.loads(path.read_text())
    assert content["source"]["networks"] == dict.fromkeys(run.QUICK_FAMILIES, 3)
    content["jobs"].popitem()
    path.write_text(json.dumps(content))
    assert run.main(arguments) == 0
    assert capsys.readouterr().err.count("MAPE") == 1
    assert run.main([*arguments, "--kernels", "61"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_results_keep_what_is_finished(tmp_path: Path) -> None:
    results = Results(tmp_path, {"a": (1, 2)})
    job = BenchJob("families", "sim", "vgg", "nnlp", 0)
    assert results.find(job) is None
    results.keep(job, {"mape": 0.5})
    other = Results(tmp_path, {"a": [1, 3]})
    with pytest.raises(ValueError, match="other settings"):
        other.find(job)
    # Each source has a file of its own, which another run may write meanwhile.
    beside = replace(job, source="store")
    other.keep(beside, {"mape": 0.25})
    again = Results(tmp_path, {"a": [1, 2]})
    assert again.find(job) == {"mape": 0.5}
    with pytest.raises(ValueError, match="write to another folder"):
        again.find(beside)
    for seed, seconds in ((0, 1.5), (1, 2.0)):
        results.keep(replace(job, seed=seed), {"seconds": seconds})
    results.keep(replace(job, method="sum"), {})
    assert results.durations_s() == {"nnlp": 3.5, "sum": 0.0}


def test_verdicts_of_other_seeds_and_methods_stay(tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    results.keep_verdicts("sim", (0,), {"corrected": {"ship": True}})
    results.keep_verdicts("sim", (1,), {"corrected": {"ship": False}})
    results.keep_source("sim", {"platform": "sim-x"})
    results.keep_verdicts("sim", (0,), {"sum-gp": {"ship": False}})
    source = json.loads((tmp_path / "sim.json").read_text())["source"]
    assert source == {
        "platform": "sim-x",
        "verdicts": {
            "seed 0": {"corrected": {"ship": True}, "sum-gp": {"ship": False}},
            "seed 1": {"corrected": {"ship": False}},
        },
    }


def test_kernels_of_a_simulated_board_have_no_transfers() -> None:
    source = simulated.source_of("npu", 3, 20, ("squeezenet1.0", "alexnet"))
    assert source.kernels is not None
    data = source.kernels(source.networks, 0)
    board = BoardProfile.from_json(profile_of("npu"))
    assert data.transfer_ms_per_mb == pytest.approx(1e6 / board.io_bytes_per_ms, rel=0.2)
    own_ms, whole_ms = 0.0, 0.0
    for sample in data.samples:
        graph = sample.kernel.graph.to_json()
        own_ms += sum(layer.latency_ms for layer in exact_layers(graph, board))
        whole_ms += exact_latency_ms(graph, board) - board.call_overhead_ms
    assert sum(s.latency_ms for s in data.samples) == pytest.approx(own_ms, rel=0.1)
    assert whole_ms > 1.3 * own_ms


def test_figures_of_predictions() -> None:
    told = NetworkIntervals(
        np.array([1.0, 1.05, 3.0]), np.array([0.9] * 3), np.array([1.1, 1.1, 4.0]), True
    )
    record = scored(told, np.array([1.0, 1.0, 2.0]))
    assert record["mape"] == pytest.approx((0.0 + 0.05 + 0.5) / 3)
    assert record["within10"] == pytest.approx(2 / 3)
    assert record["coverage"] == 1.0
    assert record["errors"] == [0.0, 0.05, 0.5]


def test_the_table_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(None, {})
    names = ("alexnet", "vgg", "resnet")
    draw = np.random.default_rng(0)
    for name in names:
        for method, mean in (("sum", 0.12), ("corrected", 0.05), ("sum-gp", 0.13)):
            for seed in (0, 1):
                errors = draw.normal(mean, 0.01, 30)
                errors += mean - errors.mean()
                record = {"mape": float(errors.mean()), "within10": 0.5, "coverage": 0.9}
                record |= {"width": 0.3}
                results.keep(
                    BenchJob("families", "sim", name, method, seed),
                    {**record, "errors": list(errors)},
                )
    found = tables.finder(results, "families", "sim", (0, 1))
    tables.show("sim", names, ("sum", "corrected", "nnlp"), found)
    text = capsys.readouterr().out
    assert "12.0 / 50.0 / 90.0 / 30.0" in text
    assert "nnlp" not in text
    verdicts = tables.verdicts(names, found)
    assert {name: each.ship for name, each in verdicts.items()} == {
        "corrected": True,
        "sum-gp": False,
    }


def test_networks_of_a_store(tmp_path: Path) -> None:
    path = tmp_path / "farm.duckdb"
    store = DuckDBStore(path)
    record = CampaignRecord("c", "c", "networks", "p")
    store.put_campaign(record)
    rows = []
    for number in range(1, 5):
        graph = replace(small_network(4 * number), name=f"small-{number}")
        name, digest = f"r{number}", hash_of(graph)
        for repeat in range(2):
            latency_ms = 1.0 * number + 0.01 * repeat
            told = Measurement(f"{name}-{repeat}", digest, "p", "network", Outcome.OK)
            rows.append((replace(told, latency_ms=latency_ms), graph))
    store.add_measurements("c", rows)
    store.close()
    source = stores.source_of(path, "p")
    assert source.families == ["small"]
    passes = sorted(each.passes_ms for each in source.networks)
    assert passes == [pytest.approx((n, n + 0.01)) for n in (1.0, 2.0, 3.0, 4.0)]


def test_networks_of_a_store_are_corrected_as_the_platform_feels_it(tmp_path: Path) -> None:
    path = tmp_path / "farm.duckdb"
    store = DuckDBStore(path)
    store.put_campaign(CampaignRecord("c", "c", "networks", "p"))
    rows = []
    for number in range(1, 11):
        graph = replace(small_network(4 * number), name=f"small-{number}")
        for repeat in range(8):
            # With the exponent that was assumed, latencies grow with the root of the slowdown.
            slowdown = 4.0 if repeat % 2 else 1.0
            told = Measurement(f"r{number}-{repeat}", hash_of(graph), "p", "network", Outcome.OK)
            told = replace(told, latency_ms=number * slowdown**0.5, measured_at_s=1.0 + repeat)
            rows.append((replace(told, conditions={"slowdown": f"{slowdown}"}), graph))
    store.add_measurements("c", rows)
    store.close()
    source = stores.source_of(path, "p")
    core: Any = source.facts["slow_core"]
    assert core["shift"] == pytest.approx(0.5)
    passes = sorted(each.passes_ms for each in source.networks)
    assert passes == [pytest.approx((n,) * 8) for n in range(1, 11)]


def test_a_store_without_networks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "farm.duckdb"
    DuckDBStore(path).close()
    with pytest.raises(ValueError, match="no family of 3 networks on p"):
        stores.source_of(path, "p")
    assert run.main(["--store", str(path), "-p", "p", "--no-cells"]) == 2


def test_names_of_families() -> None:
    assert stores.family_of("resnet18-17") == "resnet18"
    assert stores.family_of("resnet18") == "resnet18"
    assert stores.family_of("vit-tiny") == "vit-tiny"


@needs_torch
@pytest.mark.parametrize(("experiment", "fits"), [("structures", 2), ("tasks", 3)])
def test_what_is_shown_of_transfer(
    experiment: str, fits: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--per-family", "8", "--only", experiment, "--write", str(tmp_path)]
    assert transfer.main(arguments) == 0
    first = capsys.readouterr()
    assert "scratch" in first.out
    assert first.err.count("MAPE") == fits
    assert transfer.main(arguments) == 0
    assert "MAPE" not in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_transfer_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transfer.main(["--quick", "--per-family", "8", "--only", "structures"]) == 2
    assert "needs torch" in capsys.readouterr().err
