"""A worker's answer as a `Result`."""

from __future__ import annotations

from typing import Sequence

from latfarm_protos.error_codes import outcome_of
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_agent.board.conditions import shown
from latfarm_agent.worker import rules
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.replies import printable


def fail(result: pb.Result, code: str, message: str) -> None:
    """Make a result that of a failure; what was measured until then does not count."""
    result.outcome = outcome_of(code)
    result.error_code = code
    result.error_message = printable(message)
    del result.sessions[:]
    del result.layers[:]
    result.ClearField("energy")


def _of_sessions(sessions: Sequence[Message], name: str) -> str:
    """A runtime's condition: one value, or each session's in order where they differ."""
    values = [data["conditions"].get(name, "") for data in sessions]
    return values[0] if len(set(values)) == 1 else "; ".join(values)


def fill(result: pb.Result, done: Message, conditions: dict[str, str]) -> None:
    """Put what a worker measured into a result, and what it says of its sessions to `conditions`.

    Args:
        result: to be filled.
        done: the worker's last message.
        conditions: of the measurement; what is there already stays.
    """
    timed = preempted = slow = 0.0
    for data in done["sessions"]:
        result.sessions.append(
            pb.Session(
                load_ms=data["load_ms"],
                compile_ms=data["compile_ms"],
                first_run_ms=data["first_run_ms"],
                runs_ms=data["runs_ms"],
                rejected_runs=data["rejected_runs"],
                cold_ms=data["cold_ms"],
                slowdown=data["slowdown"],
            )
        )
        runs = len(data["runs_ms"]) + data["rejected_runs"]
        timed += runs
        preempted += data["preempted_share"] * runs
        slow += data["slowed_share"] * runs
        if data["stride"] > 1:
            conditions["recorded_every"] = str(data["stride"])
        for name in data["conditions"]:
            conditions.setdefault(name, _of_sessions(done["sessions"], name))
    sessions = sum(data["preempted_kept"] for data in done["sessions"])
    if sessions:
        conditions["preempted_kept"] = f"{sessions} of {len(done['sessions'])} sessions"
    if any(data["fastest_us"] for data in done["sessions"]):
        conditions["preempted_share"] = shown(preempted / timed)
        conditions["slowed_share"] = shown(slow / timed)
        conditions["probe_us"] = shown(rules.median([d["probe_us"] for d in done["sessions"]]))
        conditions["fastest_probe_us"] = shown(done["sessions"][-1]["fastest_us"])
    result.layers.extend(pb.Layer(**layer) for layer in done["layers"])
    result.memory_bytes = done["peak_bytes"]
