"""Times of the operators of a TFLite model, each with the place where it ran.

There are two ways to get them. `tflite.context` times the nodes of an interpreter inside of the
interpreter: this is exact and works with every version, but each partition of a delegate is one
row. `tflite.litert` reads LiteRT's own profiler, which also reports the kernels of XNNPACK inside a
partition, in whole microseconds.
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
"""Device of the kernels that XNNPACK runs."""
CPU = "CPU"
"""Device of the interpreter's own kernels."""
STEP = "scratch_"
"""Prefix of the names of rows that make no tensor of the model. The controller's builder uses the
same prefix for such tensors."""
WARMUP = 3
"""Runs of a fresh session whose times are not counted in a profile."""

_XNNPACK_KERNEL = "TfLiteXNNPackDelegate"


def place_of(step: ExecutionStep, delegates: Mapping[int, str]) -> str:
    """Return where a step runs: the name of its delegate, XNNPACK or CPU.

    Args:
        step: a step of an execution plan.
        delegates: addresses of loaded delegates -> their names.
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
    """Return one row for each step of the plan, named after the operators that it covers.

    Args:
        steps: the execution plan of the interpreter.
        operators: operators of the file.
        times_ms: index of each step -> its time in each run, warm-up included.
        delegates: addresses of loaded delegates -> their names.

    Raises:
        RuntimeFailure: PROFILE_UNAVAILABLE if a step has no times.
    """
    found = []
    for step in steps:
        spent = times_ms.get(step.index, ())[WARMUP:]
        if not spent:
            raise RuntimeFailure(
                "PROFILE_UNAVAILABLE",
                f"the interpreter does not show the time of its node {step.index}",
            )
        name, op = joined([operators[index] for index in step.covers])
        found.append(LayerTime(name, op, middle_mean(spent), place_of(step, delegates)))
    return unique(found)


def by_events(
    steps: Sequence[ExecutionStep],
    operators: Sequence[TfliteOperator],
    runs: Sequence[Sequence[Event]],
) -> list[LayerTime]:
    """Return one row for each kernel, including those that XNNPACK ran inside its partitions.

    Args:
        steps: the execution plan of the interpreter.
        operators: operators of the file.
        runs: events of each profiled run.

    Raises:
        RuntimeFailure: PROFILE_UNAVAILABLE if the events do not match the plan.
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
    """Make the names of rows unique, by appending a number to repeated names."""
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
    """Return the events of `runs` profiled runs, after `WARMUP` runs that only warm up."""
    for _ in range(WARMUP):
        run()
    return [profile() for _ in range(runs)]


def _rows(
    group: Group, events: Sequence[Event], spent_ms: Sequence[float], at: int
) -> list[LayerTime]:
    """Return the row of a group, or two rows if the activation of the operator ran by itself.

    In that case, the kernels before the activation make no tensor of the model, so their row is
    named as a step of the operator. The activation makes the tensor of the operator and has its
    name.
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
    """Return where the kernels of a partition end; the events of each partition count from 0."""
    end = start
    while end < len(events) and events[end].inside and events[end].number == end - start:
        end += 1
    return end
