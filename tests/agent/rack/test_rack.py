"""Racks in this process: boards of their own, faults, and restarts."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchRequest
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.errors import AgentUsageError, StateBusyError
from latfarm_agent.rack.faults import BoardFaults
from latfarm_agent.rack.rack import Rack, board_names, chosen_ports
from latfarm_agent.worker.rules import UNSET, TimingSettings
from latfarm_protos.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from tests.agent.rack.conftest import Racks

LONG_MS = 3_600_000.0
"""A measuring time that no test waits for."""


def test_boards_are_distinct_and_offer_one_platform(racks: Racks) -> None:
    rack = racks.start(3)
    boards = rack.inventory()["boards"]
    assert list(boards) == ["rack-0001", "rack-0002", "rack-0003"]
    described = [racks.calls(rack, number).describe() for number in (1, 2, 3)]
    assert [each.board.name for each in described] == list(boards)
    ids = [each.board.board_id for each in described]
    assert len(set(ids)) == 3
    assert [entry["board_id"] for entry in boards.values()] == ids
    assert len({entry["address"] for entry in boards.values()}) == 3
    platforms = [each.runtimes[0].platforms[0] for each in described]
    assert {platform.name for platform in platforms} == {"sim-rack"}
    assert len({platform.fingerprint for platform in platforms}) == 1
    assert not platforms[0].real_time


def test_each_board_has_its_lease_and_its_spool(racks: Racks, model: Path) -> None:
    rack = racks.start(2)
    one, two = racks.calls(rack, 1), racks.calls(rack, 2)
    token = one.acquire()
    with pytest.raises(grpc.RpcError, match="is leased to test"):
        one.acquire()
    assert two.describe().state == "idle"
    other = two.acquire()
    result = one.result(token, one.upload(token, model), "mine")
    assert result.outcome == "ok"
    assert (one.spooled(), two.spooled()) == (["mine"], [])
    with pytest.raises(grpc.RpcError, match="is not on this board"):
        two.result(other, "0" * 64)


def test_a_board_answers_what_an_agent_of_its_own_answers(racks: Racks, model: Path) -> None:
    rack = racks.start(1)
    calls = racks.calls(rack, 1)
    token = calls.acquire()
    result = calls.result(token, calls.upload(token, model), cold_runs=2)
    settings = TimingSettings.from_json(
        {
            **UNSET.to_json(),
            "sessions": 2,
            "warmup_runs": 1,
            "min_runs": 3,
            "max_runs": 5,
            "max_ms": 1.0,
            "cold_runs": 2,
            "compile_timeout_ms": 60_000.0,
            "run_timeout_ms": 60_000.0,
        }
    )
    bench = simulated_bench(
        BenchOptions("rack-0001", "rack", racks.folder / "bench"), racks.profile
    )
    try:
        board, runtimes = bench.describe()
        wanted = bench.measure(
            BenchRequest("r1", "sim-rack", settings),
            model,
            profile=False,
            on_stage=lambda _: None,
            cancelled=lambda: False,
        )
    finally:
        bench.close()
    assert wanted.outcome == result.outcome == "ok"
    assert board.board_id == result.board_id
    assert runtimes[0].platforms[0].fingerprint == result.fingerprint
    for mine, theirs in zip(result.sessions, wanted.sessions):
        assert list(mine.runs_ms) == theirs.runs_ms
        assert list(mine.cold_ms) == theirs.cold_ms
        assert mine.first_run_ms == theirs.first_run_ms
    assert dict(result.conditions) == wanted.conditions


def test_a_restarted_rack_keeps_ids_spools_and_tokens(racks: Racks, model: Path) -> None:
    rack = racks.start(2)
    before = rack.inventory()["boards"]
    calls = racks.calls(rack, 2)
    token = calls.acquire()
    answered = calls.result(token, calls.upload(token, model), "kept")
    racks.stop(rack)

    again = racks.start(2)
    after = again.inventory()["boards"]
    assert [after[name]["board_id"] for name in after] == [e["board_id"] for e in before.values()]
    calls = racks.calls(again, 2)
    assert calls.spooled() == ["kept"]
    assert racks.calls(again, 1).spooled() == []
    newer = calls.acquire()
    assert newer > token
    # The model is still there, and the answer comes from the spool.
    assert calls.result(newer, calls.upload(newer, model), "kept") == answered


def test_the_measuring_time_is_waited_for_and_can_be_cancelled(
    racks: Racks, model: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    rack = racks.start(1, measuring_ms=LONG_MS)
    calls = racks.calls(rack, 1)
    token = calls.acquire()
    events = calls.measure(token, calls.upload(token, model))
    until(lambda: calls.describe().state == "running")
    calls.stub.ReleaseLease(pb.ReleaseLeaseRequest(token=token))
    last = list(events)[-1].result
    assert (last.outcome, last.error_code) == ("infrastructure_error", "LEASE_LOST")
    until(lambda: calls.describe().state == "idle")


def test_faults_of_one_board_are_not_those_of_another(racks: Racks, model: Path) -> None:
    faults = {
        "rack-0002": BoardFaults(profile={"crash_rate": 1.0}),
        "rack-0003": BoardFaults(hang_rate=1.0),
        "rack-0004": BoardFaults(late_rate=1.0, late_ms=LONG_MS),
    }
    rack = racks.start(4, faults=faults)
    prints, codes = set(), []
    for number in (1, 2, 3):
        calls = racks.calls(rack, number)
        prints.add(calls.describe().runtimes[0].platforms[0].fingerprint)
        token = calls.acquire()
        sha256 = calls.upload(token, model)
        result = calls.result(token, sha256, compile_timeout_ms=100.0)
        codes.append(result.error_code)
        assert result.outcome == ("model_error" if result.error_code else "ok")
    assert codes == ["", "MODEL_CRASHED", "MODEL_TIMEOUT"]
    assert len(prints) == 1
    late = racks.calls(rack, 4)
    token = late.acquire()
    stages = late.measure(token, late.upload(token, model))
    assert next(stages).stage.name == "queued"
    assert late.spooled() == []
    stages.cancel()


def test_a_board_that_restarts_comes_back_at_its_address(
    racks: Racks, model: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    faults = {"rack-0001": BoardFaults(restart_every=1, restart_ms=0)}
    rack = racks.start(1, faults=faults, measuring_ms=LONG_MS)
    calls = racks.calls(rack, 1)
    token = calls.acquire()
    sha256 = calls.upload(token, model)
    try:
        code = calls.result(token, sha256).error_code
    except grpc.RpcError:
        code = "AGENT_STOPPED"  # the connection ended before the result was sent
    assert code == "AGENT_STOPPED"

    def comes_back() -> bool:
        try:
            return racks.calls(rack, 1).acquire() > token
        except grpc.RpcError:
            return False  # it is still away

    until(comes_back)


def test_a_second_rack_over_the_same_state_is_refused_and_leaves_nothing(racks: Racks) -> None:
    rack = racks.start(2)
    second = Rack(racks.config(2))
    with pytest.raises(StateBusyError, match=r"board rack-0001: .* is in use by process"):
        second.start()
    assert second.inventory()["boards"] == {}
    assert racks.calls(rack, 1).describe().state == "idle"


def test_a_port_that_is_taken_stops_all_boards(racks: Racks) -> None:
    rack = racks.start(1)
    address = rack.inventory()["boards"]["rack-0001"]["address"]
    config = racks.config(1, name="other", state="other", service={"listen": address})
    second = Rack(config)
    with pytest.raises(AgentUsageError, match="board other-0001: cannot listen on"):
        second.start()
    assert second.inventory()["boards"] == {}


def test_ports_follow_each_other_or_are_those_from_before() -> None:
    names = board_names("b", 3)
    assert names == ["b-0001", "b-0002", "b-0003"]
    assert list(chosen_ports(names, 500, {}).values()) == [500, 501, 502]
    kept = {"b-0001": 7, "b-0002": 70_000, "b-0003": True}
    assert chosen_ports(names, 0, kept) == {"b-0001": 7, "b-0002": 0, "b-0003": 0}
    assert set(chosen_ports(names, 0, ["damaged"]).values()) == {0}


def test_a_port_from_before_that_somebody_took_is_replaced(racks: Racks) -> None:
    rack = racks.start(1)
    racks.stop(rack)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (racks.folder / "state" / "ports.json").write_text(json.dumps({"rack-0001": port}))
        again = racks.start(1)
        assert again.inventory()["boards"]["rack-0001"]["address"] != f"127.0.0.1:{port}"
        assert racks.calls(again, 1).describe().state == "idle"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"boards": 0}, "--boards must be from 1"),
        ({"boards": 10_000}, "--boards must be from 1"),
        ({"name": "../up"}, "--name '../up'"),
        ({"service": {"listen": "127.0.0.1:65535"}}, "the last port is 65535"),
        ({"service": {"listen": "here"}}, "is not HOST:PORT"),
    ],
)
def test_a_rack_that_cannot_be_is_refused(racks: Racks, values: Any, told: str) -> None:
    with pytest.raises(AgentUsageError) as caught:
        Rack(racks.config(**values))
    assert told in str(caught.value)


def test_a_profile_that_is_none_is_refused(racks: Racks) -> None:
    racks.profile.write_text(json.dumps({"peak": 1}))
    with pytest.raises(AgentUsageError, match="unknown key"):
        Rack(racks.config())
