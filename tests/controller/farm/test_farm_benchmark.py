"""The farm benchmark: its figures, what it counts, and one small row of it."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import pytest

from benchmarks.farm import run as script
from benchmarks.farm.figures import CoreUse, FarmRow, shares, shown, utilisation, valid
from benchmarks.farm.machine import core_use, cpu_s, family, memory_bytes
from benchmarks.farm.sockets import carried_bytes

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


def test_the_table_tells_invalid_rows_and_failures() -> None:
    row = {
        "name": "8x250",
        "boards": 8,
        "measuring_ms": 250,
        "target": 0.95,
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
    text = shown([row, {**row, "valid": False, "failures": 3, "wire_kb": 3.21}])
    title, first, second = text.splitlines()
    assert title.split()[:3] == ["row", "boards", "each"]
    assert first.endswith("valid")
    assert "? KB" in first
    assert "3.21 KB" in second
    assert second.endswith("INVALID: the cores were used by others; 3 failures")


def test_a_row_that_fails_is_told_beside_the_others() -> None:
    text = shown([{"name": "64x250", "boards": 64, "error": "the controller has ended"}])
    assert text.splitlines()[1:] == ["64x250: FAILED: the controller has ended"]


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
def test_a_small_row_runs_through_rack_and_controller() -> None:
    row = FarmRow("2x20", 2, 20, processes=False, target=0.0)
    cores = sorted(os.sched_getaffinity(0))[-2:]
    found = script.run([row], 0.1, cores, inline=True)
    (figures,) = found["rows"]
    assert figures["measurements"] == 10
    assert figures["failures"] == 0
    assert 0.0 < figures["utilisation"] <= 1.0
    assert figures["controller_cpu_ms"] > 0
    assert figures["boards_cpu_ms"] > 0
    assert figures["scheduler_ms"] > 0
    assert figures["controller_mb"] > figures["board_mb"] > 0
    assert figures["join_s"] > 0
    assert figures["first_result_s"] > 0.02
    assert figures["model_kb"] > 0
    assert figures["wire_kb"] is None or figures["wire_kb"] > 0
    assert shown(found["rows"]).count("\n") == 1
