"""The judging of `make bench-networks`, on networks whose latencies and noise are drawn."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_predictors.learned.score_pool import ScorePool
from latfarm_predictors.measurement import Measurement, Outcome

from benchmarks import networks as script
from benchmarks.platforms import own_process
from benchmarks.unseen import records
from benchmarks.unseen.measuring import JudgingTask
from benchmarks.unseen.tables import show, show_seed
from benchmarks.unseen.verdicts import (
    CONVOLUTIONAL,
    TRANSFORMERS,
    JudgedNetwork,
    by_class,
    by_family,
    cannot_run,
    shipped_intervals,
    summary,
    table,
)

FAMILIES = ("alexnet", "resnet18", "vgg11")


def drawn(count: int, seed: int, *, noise: float = 0.05, passes: int = 4) -> list[JudgedNetwork]:
    """Networks of three families: one predictor is perfect, the others err by 8 and by 30 %."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        own_ms = float(np.exp(rng.normal(2.0, 1.0)))
        times = own_ms * (1.0 + rng.normal(0.0, noise, passes))
        rows.append(
            JudgedNetwork(
                f"{FAMILIES[number % 3]}-{number}",
                FAMILIES[number % 3],
                tuple(times.tolist()),
                own_ms,
                (0.95 * own_ms, 1.05 * own_ms),
                {
                    "nn-meter": own_ms * float(np.exp(rng.normal(0.0, 0.30))),
                    "forest": own_ms * float(np.exp(rng.normal(0.0, 0.08))),
                },
            )
        )
    return rows


def test_a_perfect_predictor_scores_what_the_passes_promise() -> None:
    found = summary(drawn(4000, 0))
    ours = found["table"]["latfarm"]
    for within in ("within5", "within10"):
        assert ours[within] == pytest.approx(found["perfect"][within], abs=1.5)
        low, high = found["perfect"][f"{within}_interval"]
        assert low <= found["perfect"][within] <= high
    assert found["passes"] == found["perfect"]["passes"] == 4
    # Four passes of 5 % noise: the mean is off by 2.5 %. The median over many networks is lower by
    # the median of chi with three degrees of freedom, 0.888 of its root mean square.
    assert found["standard_error_percent"] == pytest.approx(0.888 * 2.5, rel=0.05)


def test_leads_are_paired_and_told_with_their_error() -> None:
    found = summary(drawn(117, 1))
    assert list(found["table"]) == ["latfarm", "forest", "nn-meter"]
    assert found["leads"]["nn-meter"]["ahead"]
    lead = found["leads"]["forest"]
    assert lead["points"] == pytest.approx(
        found["table"]["latfarm"]["within10"] - found["table"]["forest"]["within10"], abs=0.11
    )
    assert lead["interval"][0] <= lead["points"] <= lead["interval"][1]
    assert found["ahead_of_all"]
    level = [
        JudgedNetwork(
            r.name, r.family, r.passes_ms, r.predicted_ms, r.interval_ms, {"flops": r.predicted_ms}
        )
        for r in drawn(117, 2)
    ]
    assert summary(level)["leads"]["flops"]["points"] == 0.0
    assert not summary(level)["ahead_of_all"], "level is not ahead"


def test_the_sum_of_our_own_kernels_is_no_baseline() -> None:
    rows = [
        JudgedNetwork(
            r.name,
            r.family,
            r.passes_ms,
            r.predicted_ms,
            r.interval_ms,
            {**r.others_ms, "sum": r.predicted_ms},
        )
        for r in drawn(117, 1)
    ]
    found = summary(rows)
    assert not found["leads"]["sum"]["ahead"]
    assert found["ahead_of_all"]


def test_intervals_are_judged_as_shipped_by_platform_and_family() -> None:
    rows = drawn(300, 3)
    found = shipped_intervals(rows)
    inside = [row.inside for row in rows]
    assert found["percent"] == pytest.approx(100 * np.mean(inside), abs=0.06)
    assert found["interval"][0] < found["percent"] < found["interval"][1]
    assert found["median_width_percent"] == pytest.approx(10.0)
    assert list(found["by_family_percent"]) == sorted(FAMILIES)
    one = by_family(rows)["vgg11"]
    assert found["by_family_percent"]["vgg11"] == pytest.approx(
        100 * np.mean([row.inside for row in one]), abs=0.06
    )


def test_transformers_are_judged_apart_from_convolutional_networks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = drawn(90, 14)
    found = by_class(rows, {"vgg11", "deit-tiny"})
    transformers = [row for row in rows if row.family == "vgg11"]
    assert list(found) == [CONVOLUTIONAL, TRANSFORMERS]
    assert found[TRANSFORMERS]["networks"] == len(transformers) == 30
    assert found[TRANSFORMERS]["table"] == table(transformers)
    assert found[CONVOLUTIONAL]["shipped"]["percent"] == pytest.approx(
        100 * np.mean([row.inside for row in rows if row.family != "vgg11"]), abs=0.06
    )
    show("sim, seed 1", {**summary(rows), "by_class": found})
    assert "30 transformers and hybrids: 100.0 (88.4 to 100.0) within 10 %" in (
        capsys.readouterr().out
    )
    assert list(by_class(rows, {"deit-tiny"})) == [CONVOLUTIONAL], "a class without networks"


def test_families_that_cannot_run_are_named_and_in_no_share() -> None:
    rows = drawn(30, 4)
    asked = [(row.name, row.family) for row in rows]
    ran = [row for row in rows if row.family != "alexnet"][:-1]
    found = summary(ran, asked)
    assert found["cannot_run"] == {"alexnet": [10, 10], "vgg11": [1, 10]}
    assert cannot_run(rows, asked) == {}
    assert len(found["not_measured"]) == 11
    assert found["networks"] == 19
    assert "alexnet" not in found["by_family"]


def test_a_method_without_some_answers_is_judged_on_the_others() -> None:
    rows = drawn(9, 5)
    first = rows[0]
    rows[0] = JudgedNetwork(
        first.name, first.family, first.passes_ms, first.predicted_ms, first.interval_ms
    )
    assert list(table(rows)) == ["latfarm", "forest (8)", "nn-meter (8)"]
    assert summary(rows)["leads"]["forest"]["networks"] == 8


def test_single_passes_promise_nothing() -> None:
    found = summary(drawn(9, 6, passes=1))
    assert found["perfect"] is None
    assert found["standard_error_percent"] is None


def seed_record(rows: Sequence[JudgedNetwork], digest: str = "d1") -> dict[str, Any]:
    """The results of a seed as the benchmark keeps them, as far as they are printed and kept."""
    return {
        **summary(rows, [(row.name, row.family) for row in rows] + [("lenet-0", "lenet")]),
        "bundle_digest": digest,
        "fusion": {"as this characterisation found it": None, "in the run of bench-fusion": None},
        "related_families": ["resnet18"],
        "predict_per_s": 1000,
        "predict_single_ms": 1.0,
        "load": {
            "median_1m": 0.5,
            "most_1m": 1.0,
            "most_steal_share": None,
            "host_before_and_after_1m": [1.25, 2.5],
        },
        "rows": {row.name: row.to_json() for row in rows},
    }


def test_what_is_printed_names_everything_that_limits_the_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = seed_record(drawn(60, 7))
    fused = {"precision": 0.5, "recall": None, "fused": 0, "pairs": 9}
    record["fusion"] = {"as this characterisation found it": fused, "dedicated": None}
    show("sim, seed 1", record)
    show_seed(record)
    told = capsys.readouterr().out
    assert "a perfect predictor" in told
    assert "latfarm is ahead of every baseline by more than the paired error" in told
    assert "not measured, and in no share: 1 of 1 networks of family lenet" in told
    assert "90 % intervals as shipped" in told
    assert "precision 0.50, recall undefined" in told
    assert "in the draws of kernels and of calibration: 1 (resnet18)" in told
    assert "load of the board while the networks were measured: median 0.5" in told
    assert "[1.25, 2.5]" in told
    assert "calibration networks drawn as" not in told, "an earlier version kept no promise"
    pool = ScorePool(np.linspace(0.1, 2.0, 20))
    promise = pool.guarantee(0.9)
    record["guarantee"] = {**promise.to_json(), "sentence": promise.sentence}
    show_seed(record | {"calibration_draw": "convolutional"})
    told = capsys.readouterr().out
    assert "calibration networks drawn as convolutional: by 20 calibration networks" in told
    assert "on this board between" in told


def test_results_are_kept_by_seed_and_pooled_beside_the_development(tmp_path: Path) -> None:
    first, second = drawn(30, 8), drawn(30, 9)
    found = records.with_development({}, seed_record(drawn(9, 10)))
    found = records.with_reported(found, {1: seed_record(first)}, None)
    assert "pooled" not in found["reported"], "one seed alone is not pooled"
    both = {1: seed_record(first), 2: seed_record(second, "d2")}
    found = records.with_reported(found, both, summary([*first, *second]))
    folder = tmp_path / "figures"
    assert records.read(folder, "sim2.0") == {}
    records.write(folder, "sim2.0", found)
    kept = records.read(folder, "sim2.0")
    assert kept == json.loads(json.dumps(found))
    reported = kept["reported"]
    assert reported["pooled"]["networks"] == 60
    assert reported["pooled"]["seeds"] == [1, 2]
    assert set(reported["seeds"]) == {"1", "2"}
    assert kept["networks"] == 9
    # A later reader can judge again: the passes are in the file, each network on one line.
    passes, predicted, interval = reported["seeds"]["1"]["rows"]["alexnet-0"]
    assert passes == pytest.approx(first[0].passes_ms, rel=1e-4)
    assert predicted == pytest.approx(first[0].predicted_ms, rel=1e-4)
    assert len(interval) == 2
    text = (folder / "sim2.0.json").read_text()
    assert max(len(line) for line in text.splitlines()) > 30
    # A new development run keeps what was reported.
    again = records.with_development(kept, seed_record(drawn(12, 11)))
    assert again["networks"] == 12
    assert again["reported"] == reported


def test_every_predictor_that_judged_a_seed_is_counted() -> None:
    rows = drawn(9, 12)
    found: dict[str, Any] = {}
    for digest in ("d1", "d1", "d2"):
        found = records.with_reported(found, {1: seed_record(rows, digest)}, None)
    assert records.looks(found, [1]) == 2
    assert records.looks(found, [5]) == 0


def test_fusion_is_pooled_over_characterisations_and_stands_beside_the_dedicated_run(
    tmp_path: Path,
) -> None:
    one = {"pairs": 65, "fused": 7, "found": 6, "wrongly_fused": 6, "undecided": 13}
    other = {"pairs": 65, "fused": 8, "found": 4, "wrongly_fused": 1, "undecided": 16}
    found = records.pooled_fusion([one, None, other])
    assert found is not None
    assert found["precision"] == pytest.approx(10 / 17)
    assert found["recall"] == pytest.approx(10 / 15)
    assert records.pooled_fusion([None]) is None
    path = tmp_path / "fusion.json"
    path.write_text(json.dumps({"platforms": [{"platform": "a", "ours": one}]}))
    assert records.dedicated_fusion("a", path) == one
    assert records.dedicated_fusion("b", path) is None
    assert records.dedicated_fusion("a", tmp_path / "none.json") is None


def test_load_and_stolen_time_are_told_as_far_as_the_board_knows_them() -> None:
    def answer(**conditions: str) -> Measurement:
        return Measurement(
            "r", "h", "p", "network", Outcome.OK, latency_ms=1.0, conditions=conditions
        )

    found = records.load_of(
        [
            answer(load_1m="0.50", steal_share="0.01"),
            answer(load_1m="2.5", steal_share="unknown"),
            answer(),
        ]
    )
    assert found == {"median_1m": 1.5, "most_1m": 2.5, "most_steal_share": 0.01}
    assert records.load_of([])["median_1m"] is None


def test_related_lineages_are_told_or_left_out() -> None:
    assert "resnet18" in script.related_families(False)
    assert "vovnet39" not in script.related_families(False)
    assert script.related_families(True) == []
    plain = JudgingTask(500, 20, "latfarm", 1).config([])
    assert "exclude_kernel_lineages" not in plain
    assert plain["calibration_draw"] == script.mix_of(False) == "convolutional"
    left_out = JudgingTask(500, 20, "nn-meter", 1, ("resnet", "vgg")).config([])
    assert left_out["exclude_lineages"] == left_out["exclude_kernel_lineages"] == ["resnet", "vgg"]
    assert left_out["prior_share"] == 0.625


def test_a_budget_bounds_all_measurements_and_kernels_take_the_plan_without_one() -> None:
    bounded = JudgingTask(500, 20, "latfarm", 1).config([])
    assert (bounded["measurements"], "budget" in bounded) == (500, False)
    unbounded = JudgingTask(500, 20, "latfarm", 1, kernels=450).config([])
    assert (unbounded["budget"], "measurements" in unbounded) == (450, False)


def test_seed_0_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--simulate", "npu", "--report-seeds", "0", "1"])
    assert ended.value.code == 2
    assert "seed 0 is for development" in capsys.readouterr().err


def test_a_process_of_its_own_gets_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    options = argparse.Namespace(report_seeds=[1, 2], quick=True, retrain=False, seed=0, write=True)
    names = ("report_seeds", "quick", "retrain", "seed")
    assert own_process.each_in_its_own_process("m", options, names, [("--platform", "a")]) == 0
    flags = asked[0][asked[0].index("m") + 1 :]
    assert " ".join(flags) == "--report-seeds 1 2 --quick --seed 0 --write --platform a"
    options = argparse.Namespace(report_seeds=[], write=False)
    own_process.each_in_its_own_process("m", options, ("report_seeds",), [("--platform", "a")])
    assert "--report-seeds" not in asked[1]
