"""The farm benchmark: its figures, what it counts, and one small row of it."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.farm import run as script
from benchmarks.farm.controller_side import FarmCampaign
from benchmarks.farm.figures import (
    CALLED,
    DIALLING,
    MARGIN_S,
    CoreUse,
    FarmRow,
    shares,
    shown,
    utilisation,
    valid,
)
from benchmarks.farm.figures_file import FiguresFile
from benchmarks.farm.machine import core_use, cpu_s, family, memory_bytes
from benchmarks.farm.sockets import carried_bytes
from benchmarks.farm.targets import judged, shown_targets

BEFORE = CoreUse(at_s=10.0, busy_s=50.0, stolen_s=1.0, controller_s=5.0, boards_s=3.0, own_s=0.5)
PAYLOAD = b"x" * 10_000


def test_boards_that_are_always_busy_are_fully_used() -> None:
    starts_s = [100.0 + 0.25 * number for number in range(40) for _ in range(8)]
    assert utilisation(starts_s, 250, 8) == pytest.approx(1.0)
    assert utilisation(starts_s, 250, 16) == pytest.approx(0.5)


def test_pauses_between_measurements_are_not_used() -> None:
    assert utilisation([0.3 * number for number in range(11)], 250, 1) == pytest.approx(2.5 / 3)


def test_no_time_after_the_last_start_counts() -> None:
    # Two boards measure once for five seconds; the second one starts a second later.
    assert utilisation([0.0, 1.0], 5000, 2) == pytest.approx(0.5)
    assert utilisation([4.0, 4.0], 5000, 2) == 0.0
    assert utilisation([], 5000, 2) == 0.0


def test_what_is_not_ours_is_foreign() -> None:
    after = CoreUse(
        at_s=20.0, busy_s=62.0, stolen_s=1.5, controller_s=10.0, boards_s=7.0, own_s=1.0
    )
    foreign, steal = shares(BEFORE, after, cores=2)
    assert foreign == pytest.approx((12.0 - 5.0 - 4.0 - 0.5) / 20)
    assert steal == pytest.approx(0.5 / 20)
    assert not valid(foreign, steal)
    alone = replace(after, busy_s=59.6)
    assert valid(*shares(BEFORE, alone, cores=2))
    # The accounts are read one after the other: less than nothing is nothing.
    assert shares(BEFORE, replace(after, busy_s=55.0), cores=2)[0] == 0.0


def test_a_row_keeps_its_boards_busy_for_so_long() -> None:
    row = FarmRow("64x250", 64, 250, processes=False, target=0.95)
    assert row.measurements(60.0) == 64 * 240
    assert row.measurements(0.1) == 64 * 3
    assert row.longest_s(60.0) == 3 * 60.0 + MARGIN_S


def test_the_table_tells_invalid_rows_and_failures() -> None:
    row = {
        "name": "8x250",
        "boards": 8,
        "measuring_ms": 250,
        "target": 0.95,
        "asked": 100,
        "measurements": 100,
        "failures": 0,
        "utilisation": 0.97,
        "controller_cpu_ms": 2.5,
        "scheduler_ms": 0.05,
        "wire_kb": None,
        "controller_mb": 300.0,
        "join_s": 1.0,
        "first_result_s": 0.4,
        "boards_cpu_ms": 1.0,
        "board_mb": 1.0,
        "foreign_share": 0.01,
        "steal_share": 0.0,
        "valid": True,
    }
    text = shown(
        [row, {**row, "valid": False, "failures": 3, "wire_kb": 3.21}, {**row, "measurements": 7}]
    )
    title, first, second, third = text.splitlines()
    assert title.split()[:3] == ["row", "boards", "each"]
    assert first.endswith("valid")
    assert "? KB" in first
    assert "3.21 KB" in second
    assert second.endswith("INVALID: the cores were used by others; 3 failures")
    assert third.endswith("valid; CUT SHORT after 7 of 100 measurements")


def test_a_campaign_that_takes_too_long_is_cut_short() -> None:
    assert FarmCampaign(10, longest_s=-1.0).done
    patient = FarmCampaign(10, longest_s=3600.0)
    assert not patient.done
    assert len(patient.ask(20)) == 10


def test_a_row_that_fails_is_told_beside_the_others() -> None:
    text = shown([{"name": "64x250", "boards": 64, "error": "the controller has ended"}])
    assert text.splitlines()[1:] == ["64x250: FAILED: the controller has ended"]


def figures(name: str, boards: int, **changes: object) -> dict[str, object]:
    """The figures of a valid row that shows all that it must."""
    return {
        "name": name,
        "boards": boards,
        "measuring_ms": 250,
        "link": "plain",
        "raylets": 0,
        "killed": False,
        "target": 0.95,
        "seconds": 60.0,
        "failures": 0,
        "utilisation": 0.96,
        "controller_cpu_ms": 2.0,
        "scheduler_ms": 0.05,
        "wire_kb": 3.0,
        "controller_mb": 700.0,
        "join_s": 20.0,
        "first_result_s": 3.2,
        "valid": True,
        **changes,
    }


def test_rows_are_judged_by_what_must_be_shown() -> None:
    rows = [
        figures("few", 8),
        figures("some", 64, controller_cpu_ms=3.5),
        figures("many", 1000, controller_cpu_ms=2.7, scheduler_ms=0.2, valid=False),
        figures("called", 8, link="called", target=0.0),
        figures("dialling", 8, link="dialling", target=0.0, utilisation=0.93, wire_kb=3.05),
        figures("killed", 192, raylets=2, killed=True, target=0.0, valid=False),
        {"name": "failed", "boards": 8, "error": "no"},
    ]
    found = judged(rows)
    by_row: dict[str, list[str]] = {}
    for target in found:
        by_row.setdefault(target.row, []).append(target.what)
    assert by_row["few"] == ["utilisation", "wire beyond the model, KB", "first result, s"]
    assert by_row["killed"] == ["failures after the death of a raylet", "raylets that were killed"]
    assert "controller CPU, times that of few" in by_row["many"]
    assert "failed" not in by_row
    missed = [(target.row, target.what) for target in found if not target.met and target.valid]
    assert missed == [
        ("some", "controller CPU, ms"),
        ("dialling", "utilisation, worse than that of called by a share of"),
    ]
    assert not any(target.met for target in found if target.row == "many"), "an invalid row"
    text = shown_targets(found)
    assert "some: controller CPU, ms: 3.5, wanted at most 3: MISSED by 0.5" in text
    assert "few: utilisation: 0.96, wanted at least 0.95: met" in text
    assert "many: joining, s: 20, wanted at most 30: INVALID" in text
    assert all(json.dumps(target.to_json()) for target in found)


def test_the_file_keeps_valid_rows_of_the_same_length(tmp_path: Path) -> None:
    path = tmp_path / "farm.json"
    kept = FiguresFile(path)
    assert kept.valid_row("few", 60.0) is None
    kept.put(figures("few", 8), {"kernel": "6"})
    kept.put(figures("some", 64, valid=False), {"kernel": "6"})
    kept.put({"name": "many", "boards": 1000, "error": "no"}, {"kernel": "6"})
    again = FiguresFile(path)
    assert again.valid_row("few", 60.0) == figures("few", 8)
    assert again.valid_row("few", 30.0) is None
    assert again.valid_row("some", 60.0) is None
    assert again.valid_row("many", 60.0) is None
    assert FiguresFile(path, again=True).valid_row("few", 60.0) is None
    again.put(figures("many", 1000), {"kernel": "6"})
    written = json.loads(path.read_text())
    assert [row["name"] for row in written["rows"]] == ["few", "some", "many"]
    assert written["kernel"] == "6"
    assert {target["row"] for target in written["targets"]} == {"few", "some", "many"}


def test_a_row_that_is_in_the_file_is_not_run_again(tmp_path: Path) -> None:
    kept = FiguresFile(tmp_path / "farm.json")
    row = FarmRow("64x250", 64, 250, processes=False, target=0.95)
    kept.put(figures(row.name, 64), {})
    found = script.run([row], 60.0, [0], kept=kept)
    assert found["rows"] == [figures(row.name, 64)]
    assert found["targets"]


def test_bytes_of_connections_are_counted_at_one_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near:
            far, _ = listener.accept()
            with far:
                before = carried_bytes({port})
                if before is None:
                    pytest.skip("this kernel does not tell what sockets have carried")
                near.sendall(PAYLOAD)
                left = len(PAYLOAD)
                while left:
                    left -= len(far.recv(left))
                far.sendall(b"answer")
                assert near.recv(6) == b"answer"
                near.sendall(b"!")  # with it the kernel of this end acknowledges the answer
                assert far.recv(1) == b"!"
                after = carried_bytes({port})
                assert after is not None
                assert after - before == len(PAYLOAD) + len(b"answer") + len(b"!")
                assert carried_bytes(set()) == 0


def test_what_processes_use_is_read() -> None:
    use = core_use([0], [os.getpid()], [])
    assert use.busy_s > 0
    assert use.controller_s > 0
    assert use.boards_s == 0
    assert memory_bytes([os.getpid()]) > 1 << 20
    assert os.getpid() in {process.pid for process in family(os.getpid())}
    assert cpu_s([]) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "row",
    [
        FarmRow("2x20", 2, 20, processes=False, target=0.0),
        FarmRow("1x20-called", 1, 20, processes=True, target=0.0, link=CALLED),
        FarmRow("1x20-dialling", 1, 20, processes=True, target=0.0, link=DIALLING),
    ],
    ids=lambda row: row.name,
)
def test_a_small_row_runs_through_boards_and_controller(row: FarmRow) -> None:
    cores = sorted(os.sched_getaffinity(0))[-2:]
    found = script.run([row], 0.1, cores, inline=True)
    (ran,) = found["rows"]
    assert "error" not in ran, ran
    assert ran["measurements"] == 5 * row.boards
    assert ran["failures"] == 0
    assert 0.0 < ran["utilisation"] <= 1.0
    assert ran["controller_cpu_ms"] > 0
    assert ran["boards_cpu_ms"] > 0
    assert ran["scheduler_ms"] > 0
    assert ran["controller_mb"] > 0
    assert ran["board_mb"] > 0
    assert ran["join_s"] > 0
    assert ran["first_result_s"] > 0.02
    assert ran["model_kb"] > 0
    assert ran["wire_kb"] is None or ran["wire_kb"] > 0
    assert shown(found["rows"]).count("\n") == 1
