"""The file that says what goes wrong on which board of a rack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.rack.faults import BoardFaults, read_faults, with_faults
from latfarm_agent.runtimes.simulated.profile import BoardProfile, Throttle

BOARDS = ("rack-0001", "rack-0002", "rack-0003")


def read(tmp_path: Path, data: Any) -> dict[str, BoardFaults]:
    path = tmp_path / "faults.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_faults(path, BOARDS)


def test_a_board_has_its_own_faults_and_those_of_all(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "*": {"late_rate": 0.5, "late_ms": 100},
            "rack-0002": {"late_ms": 7, "throttle": {"every": 4, "length": 1}},
        },
    )
    assert sorted(found) == list(BOARDS)
    assert found["rack-0001"] == BoardFaults(late_rate=0.5, late_ms=100)
    assert (found["rack-0002"].late_rate, found["rack-0002"].late_ms) == (0.5, 7)
    changed = with_faults(BoardProfile("p", drift=0.1), found["rack-0002"])
    assert changed == BoardProfile("p", drift=0.1, throttle=Throttle(4, 1))


def test_boards_without_faults_are_left_out(tmp_path: Path) -> None:
    assert list(read(tmp_path, {"rack-0003": {"crash_ops": ["Celu"]}})) == ["rack-0003"]
    assert read(tmp_path, {}) == {}


def test_which_measurements_are_hit_follows_from_board_and_request() -> None:
    faults = BoardFaults(hang_rate=0.3, late_rate=0.3, late_ms=50)
    ids = [f"r{number}" for number in range(1000)]
    first = [faults.hangs("rack-0001", request_id) for request_id in ids]
    assert first == [faults.hangs("rack-0001", request_id) for request_id in ids]
    assert first != [faults.hangs("rack-0002", request_id) for request_id in ids]
    assert 200 < sum(first) < 400
    assert {faults.extra_ms("rack-0001", request_id) for request_id in ids} == {0.0, 50.0}
    assert not any(BoardFaults().hangs("rack-0001", request_id) for request_id in ids)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("{", "is not JSON"),
        ([], "must be an object"),
        ({"rack-0004": {}}, "did you mean rack-000"),
        ({"other": {}}, "there is no board 'other'; the first board is rack-0001"),
        ({"rack-0001": 5}, "rack-0001: must be an object"),
        ({"rack-0001": {"drfit": 1}}, "unknown fault 'drfit'; known: hang_rate"),
        ({"rack-0001": {"hang_rate": 1.5}}, "hang_rate must be a number from 0 to 1"),
        ({"rack-0001": {"late_ms": -1}}, "late_ms must be a number of 0 or more"),
        ({"rack-0001": {"restart_every": 1.5}}, "restart_every must be a whole number"),
        ({"rack-0001": {"noise": -1}}, "noise: must not be negative"),
        ({"rack-0001": {"peak_macs_per_ms": 1}}, "unknown fault 'peak_macs_per_ms'"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, data: Any, told: str) -> None:
    with pytest.raises(AgentUsageError, match="--faults") as caught:
        read(tmp_path, data)
    assert told in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentUsageError, match="cannot be read"):
        read_faults(tmp_path / "none", BOARDS)
