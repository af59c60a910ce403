"""The figures of `make bench-coverage`, on networks whose latencies are drawn at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from latfarm_predictors.confidence.measures import PlatformConfidence
from latfarm_predictors.features.table import Array
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.learned.network_figures import NetworkFigures

from benchmarks import coverage as script
from benchmarks import coverage_offline
from benchmarks.recalibration import (
    MEAN_TARGET,
    coverage,
    judge_families,
    misses,
    papers,
)
from benchmarks.regressors import conv_workload


def drawn(count: int, seed: int) -> tuple[list[NetworkFigures], list[float]]:
    """Networks whose kernels err together; intervals of independent errors are too narrow."""
    rng = np.random.default_rng(seed)
    sums, measured = [], []
    for _ in range(count):
        kernels = int(rng.integers(20, 80))
        latency = np.exp(rng.normal(-2.0, 1.0, kernels))
        common = float(0.05 * latency.sum())
        sums.append(
            NetworkFigures(
                warm_ms=float(latency.sum()),
                cold_ms=float(latency.sum()),
                independent_ms=float(np.sqrt(((0.05 * latency) ** 2).sum())),
                common_ms=common,
                kernels=float(kernels),
                weight_mb=0.0,
                interior_mb=1.0,
                small_ms=0.0,
                weighty_ms=0.0,
                conv_ms=float(latency.sum()),
            )
        )
        measured.append(float(latency.sum() * np.exp(0.05 * rng.standard_normal())))
    return sums, measured


def test_our_intervals_hold_and_those_of_independent_errors_do_not() -> None:
    sums, measured = drawn(150, 0)
    families = ["even" if i % 2 == 0 else "odd" for i in range(150)]
    found = coverage(sums, measured, families, recalibrations=30)
    low, high = MEAN_TARGET
    assert low - 3 <= found["mean_percent"] <= high + 3
    assert set(found["by_family_percent"]) == {"even", "odd"}
    assert found["convolution_percent"] < 60
    assert 10 < found["median_width_percent"] < 30
    assert found["recalibrations"] == 30
    assert found["networks"] == 20


def test_a_family_misses_where_its_interval_lies_below_the_target() -> None:
    percents = {"fine": 80.0, "poor": 60.0, "few": 20.0}
    found = judge_families(percents, {"fine": 30, "poor": 30, "few": 9})
    assert [row["miss"] for row in found.values()] == [False, True, False]
    assert [row["judged"] for row in found.values()] == [True, True, False]
    assert misses(90.0, found) == {"mean_miss": False, "family_misses": ["poor"]}
    assert misses(87.9, {})["mean_miss"]
    assert misses(92.1, {})["mean_miss"]


def test_a_miss_is_printed_as_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    by_family = judge_families(
        {"fine": 90.0, "poor": 60.0, "few": 50.0}, dict.fromkeys(("fine", "poor"), 30) | {"few": 9}
    )
    found = {
        "judged": 69,
        "mean_percent": 87.0,
        "recalibrations": 200,
        "median_width_percent": 7.0,
        "shipped": {"percent": 83.0, "interval": [75.0, 89.0], "median_width_percent": 41.0},
        "paper": {"CM_O": {"percent": 61.0, "median_width_percent": 3.0}},
        "by_family": by_family,
        **misses(87.0, by_family),
    }
    assert not script.show("board", found)
    lines = capsys.readouterr().out.splitlines()
    told = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert "MISS" in told["ours:"]
    assert "MISS" in told["poor"]
    assert told["fine"].endswith("met")
    assert told["few"].endswith("too few to be judged")
    assert any("gives them: 83.0 % (75.0 to 89.0), median width 41.0 %" in line for line in lines)
    assert any("CM_O, uncalibrated: 61.0 %" in line for line in lines)
    good = {**found, **misses(90.0, {}), "by_family": {}, "mean_percent": 90.0}
    assert script.show("board", good)


def survey(count: int, seed: int) -> tuple[list[Workload], Array]:
    """Convolutions at 20 multiply-adds per nanosecond, measured with some noise."""
    rng = np.random.default_rng(seed)
    works = [
        conv_workload(
            int(rng.choice([7, 14, 28])), int(c_in), int(c_out), int(rng.choice([1, 3])), 1
        )
        for c_in, c_out in rng.integers(8, 256, (count, 2))
    ]
    true = np.array([0.002 + work.macs / 2e7 + work.weight_bytes / 1e7 for work in works])
    return works, true * np.exp(0.03 * rng.standard_normal(count))


def test_the_paper_s_intervals_are_judged_beside_ours() -> None:
    works, latency = survey(120, 1)
    confidence = PlatformConfidence.of(works, latency, trees=20)
    networks = [survey(8, 10 + i) for i in range(12)]
    found = papers(confidence, [w for w, _ in networks], [float(t.sum()) for _, t in networks])
    assert set(found) == {"CM_TV", "CM_LV", "CM_O"}
    for row in found.values():
        assert 0.0 <= row["percent"] <= 100.0
        assert row["median_width_percent"] > 0


def test_real_chains_are_judged_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cpu_conv" / "ncnn"
    folder.mkdir(parents=True)
    head = "hw,c_in,c_out,kernel,stride"

    def row(work: Workload) -> str:
        return f"{work.in_h},{work.in_channels},{work.out_channels},{work.kernel_h},1"

    for file, seed in (("pool_zoo_joint.csv", 1), ("pool_prior.csv", 2)):
        works, latency = survey(60, seed)
        lines = [f"{row(w)},{t},{t}" for w, t in zip(works, latency, strict=True)]
        (folder / file).write_text("\n".join([f"{head},min_ms,median_ms", *lines]))
    layers, wholes = [f"network,layer,{head},min_ms"], ["network,layers,min_ms"]
    for number in range(40):
        works, latency = survey(6, 100 + number)
        layers += [
            f"{number},{i},{row(w)},{t}"
            for i, (w, t) in enumerate(zip(works, latency, strict=True))
        ]
        wholes.append(f"{number},6,{latency.sum() * 1.1}")
    (folder / "network_layers.csv").write_text("\n".join(layers))
    (folder / "networks.csv").write_text("\n".join(wholes))

    networks, measured = coverage_offline.read_networks(folder)
    assert len(networks) == len(measured) == 40
    assert {len(each) for each in networks} == {6}
    works, latency = survey(60, 1)
    found = coverage_offline.judge(works, latency, networks, measured, recalibrations=8)
    assert found["judged"] == 40
    assert 75 <= found["mean_percent"] <= 100
    assert found["by_family"]["chains"]["judged"]

    monkeypatch.setenv("LATFARM_BENCH_DATA", str(tmp_path / "nowhere"))
    assert coverage_offline.run(lambda *_: True, None) == 2
