"""Per-operator times of a TFLite model, each with the place where it ran.

Two roads. The nodes of an interpreter are timed in the interpreter itself (`tflite.context`): exact
and in every version, but what a delegate took is one row a partition. What XNNPACK does inside such
a partition is told by LiteRT's own profiler (`tflite.litert`), in whole microseconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Callable, Mapping, Sequence

from latfarm_agent.runtimes.base import LayerTime, RuntimeFailure
from latfarm_agent.runtimes.tflite.context import ExecutionStep
from latfarm_agent.runtimes.tflite.litert import Event
from latfarm_agent.runtimes.tflite.xnnpack import Group, lay_along, own_clamp
from latfarm_agent.runtimes.tflite_format.model import TfliteOperator, joined
from latfarm_agent.runtimes.trace import middle_mean

XNNPACK = "XNNPACK"
CPU = "CPU"
STEP = "scratch_"
"""Begins the names of rows that make no tensor of the model, as in the files that are built."""
WARMUP = 3
"""Runs of a fresh session that no profile counts."""

_XNNPACK_KERNEL = "TfLiteXNNPackDelegate"


def place_of(step: ExecutionStep, delegates: Mapping[int, str]) -> str:
    """Where a step runs: the name of its delegate, XNNPACK, or the CPU's own kernels.

    Args:
        step: of an execution plan.
        delegates: names of loaded delegates by their addresses.
    """
    if not step.delegate or not step.kernel:
        return CPU
    named = delegates.get(step.delegate)
    if named:
        return named
    return XNNPACK if step.kernel == _XNNPACK_KERNEL else step.kernel


def by_steps(
    steps: Sequence[ExecutionStep],
    operators: Sequence[TfliteOperator],
    times_ms: Mapping[int, Sequence[float]],
    delegates: Mapping[int, str],
) -> list[LayerTime]:
    """One row a step of the plan, named after the operators that it covers.

    Raises:
        RuntimeFailure: PROFILE_UNAVAILABLE where a step ran unseen.
    """
    found = []
    for step in steps:
        spent = times_ms.get(step.index, ())[WARMUP:]
        if not spent:
            raise RuntimeFailure(
                "PROFILE_UNAVAILABLE", f"the interpreter runs its node {step.index} unseen"
            )
        name, op = joined([operators[index] for index in step.covers])
        found.append(LayerTime(name, op, middle_mean(spent), place_of(step, delegates)))
    return unique(found)


def by_events(
    steps: Sequence[ExecutionStep],
    operators: Sequence[TfliteOperator],
    runs: Sequence[Sequence[Event]],
) -> list[LayerTime]:
    """One row a kernel, with what XNNPACK ran inside of each of its partitions.

    Args:
        steps: the execution plan of the interpreter.
        operators: of the file.
        runs: events of each profiled run.

    Raises:
        RuntimeFailure: PROFILE_UNAVAILABLE where the profiled runs were not those of the plan.
    """
    first = runs[0]
    for events in runs:
        if [_key(event) for event in events] != [_key(event) for event in first]:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", "two profiled runs are not the same")
    spent = [middle_mean([events[at].latency_ms for events in runs]) for at in range(len(first))]
    found: list[LayerTime] = []
    at = 0
    for step in steps:
        if not step.kernel:
            if at >= len(first) or first[at].inside or first[at].number != step.index:
                raise RuntimeFailure("PROFILE_UNAVAILABLE", "the profiled plan is another one")
            operator = operators[step.index]
            found.append(LayerTime(operator.name, operator.op, spent[at], CPU))
            at += 1
            continue
        end = _partition_end(first, at)
        kernels = [event.tag for event in first[at:end]]
        if not kernels:
            raise RuntimeFailure("PROFILE_UNAVAILABLE", "the profiled plan is another one")
        for group in lay_along([operators[index] for index in step.covers], kernels):
            found += _rows(group, first, spent, at)
        at = end
    if at != len(first):
        raise RuntimeFailure("PROFILE_UNAVAILABLE", "the profiled plan is another one")
    return unique(found)


def unique(layers: Sequence[LayerTime]) -> list[LayerTime]:
    """The same rows under names that no two share."""
    taken: Counter[str] = Counter()
    found = []
    for layer in layers:
        taken[layer.name] += 1
        again = taken[layer.name] > 1
        found.append(replace(layer, name=f"{layer.name} #{taken[layer.name]}") if again else layer)
    return found


def timed_events(
    run: Callable[[], None], profile: Callable[[], list[Event]], runs: int
) -> list[list[Event]]:
    """Events of `runs` runs, after some that only warm up."""
    for _ in range(WARMUP):
        run()
    return [profile() for _ in range(runs)]


def _rows(
    group: Group, events: Sequence[Event], spent_ms: Sequence[float], at: int
) -> list[LayerTime]:
    """A row of a group of kernels; two where an operator's own activation is a kernel by itself.

    The kernel before such a clamp makes no tensor of the model, so that it is a step of the
    operator; the clamp makes the operator's tensor and has its name.
    """
    name, op = joined(group.operators)
    kernels = [at + kernel for kernel in group.kernels]
    clamps = own_clamp(group, [events[kernel].tag for kernel in kernels])
    steps = kernels[: len(kernels) - clamps]
    rows = [LayerTime(name, op, sum(spent_ms[kernel] for kernel in steps), XNNPACK)]
    if clamps:
        steps_name = "+".join(STEP + part for part in name.split("+"))
        rows[0] = replace(rows[0], name=steps_name)
        rows.append(LayerTime(name, "Clamp", spent_ms[kernels[-1]], XNNPACK))
    return rows


def _key(event: Event) -> tuple[str, bool, int]:
    return event.tag, event.inside, event.number


def _partition_end(events: Sequence[Event], start: int) -> int:
    """Where the kernels of a partition end: each partition counts its own from 0."""
    end = start
    while end < len(events) and events[end].inside and events[end].number == end - start:
        end += 1
    return end
