"""A worker's answer as a `BenchResult`."""

from __future__ import annotations

from typing import Any, Sequence

from latfarm_protos.error_codes import outcome_of

from latfarm_agent.bench.records import BenchResult, MeasuredSession
from latfarm_agent.board.conditions import shown
from latfarm_agent.runtimes.base import LayerTime
from latfarm_agent.worker import rules
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.replies import printable

COUNT_BITS = 32
"""Size of the message fields that hold counts."""

_MEMORY_BITS = 64
"""Size of the message field that holds the peak memory."""


def fail(result: BenchResult, code: str, message: str) -> None:
    """Turn a result into a failure; what was measured until then is dropped."""
    result.outcome = outcome_of(code)
    result.error_code = code
    result.error_message = printable(message)
    result.sessions.clear()
    result.layers.clear()
    result.energy = None


def condition_of_sessions(sessions: Sequence[Message], name: str) -> str:
    """A runtime's condition: one value, or the values of all sessions in order if they differ."""
    values = [data["conditions"].get(name, "") for data in sessions]
    return values[0] if len(set(values)) == 1 else "; ".join(values)


def fill(result: BenchResult, done: Message, conditions: dict[str, str]) -> None:
    """Put what a worker measured into a result, and what it says of its sessions to `conditions`.

    Args:
        result: gets sessions, layers and the worker's peak memory.
        done: the worker's last message.
        conditions: the conditions of the measurement so far; existing entries stay.

    Raises:
        TypeError, ValueError: a value that the result cannot hold.
    """
    timed = preempted = slow = 0.0
    for data in done["sessions"]:
        result.sessions.append(
            MeasuredSession(
                load_ms=data["load_ms"],
                compile_ms=data["compile_ms"],
                first_run_ms=data["first_run_ms"],
                runs_ms=data["runs_ms"],
                rejected_runs=whole_number(data["rejected_runs"], COUNT_BITS),
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
            text = condition_of_sessions(done["sessions"], name)
            if not isinstance(text, str):
                raise TypeError(f"the condition {name} is not a text")
            conditions.setdefault(name, text)
    sessions = sum(data["preempted_kept"] for data in done["sessions"])
    if sessions:
        conditions["preempted_kept"] = f"{sessions} of {len(done['sessions'])} sessions"
    if any(data["fastest_us"] for data in done["sessions"]):
        conditions["preempted_share"] = shown(preempted / timed)
        conditions["slowed_share"] = shown(slow / timed)
        conditions["probe_us"] = shown(rules.median([d["probe_us"] for d in done["sessions"]]))
        conditions["fastest_probe_us"] = shown(done["sessions"][-1]["fastest_us"])
    result.layers.extend(LayerTime(**layer) for layer in done["layers"])
    result.memory_bytes = whole_number(done["peak_bytes"], _MEMORY_BITS)
    result.device_memory_bytes = max(
        whole_number(data.get("device_memory_bytes", 0), _MEMORY_BITS) for data in done["sessions"]
    )


def whole_number(value: Any, bits: int) -> int:
    """A whole number that fits into the result's field on the wire.

    Raises:
        TypeError, ValueError: it is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r:.80} is not a whole number")
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{value} is out of range")
    return value
