"""The agent's side of an energy measurement: which power rails are read, when, and what they tell.

The worker lets the board rest, runs the model back to back, lets it rest again, and tells when it
did so. The agent samples the rails meanwhile and computes the energy of an inference. If a runtime
has its own energy account, as simulated boards have, that account is used and no rail is read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from latfarm_agent.bench.records import BenchResult, MeasuredEnergy
from latfarm_agent.bench.results import COUNT_BITS, whole_number
from latfarm_agent.board.conditions import Sensors, shown
from latfarm_agent.power.gpu import NvmlPower
from latfarm_agent.power.integration import (
    COUNTER,
    EnergyUnavailable,
    Figure,
    Record,
    Span,
    figure,
)
from latfarm_agent.power.rails import PowerConfig, Rail, Rails, Recorder
from latfarm_agent.worker.rules import ENERGY_UNAVAILABLE

CONDITION = "energy"
"""The condition of a result that is "ok", or tells why there is no energy.

The reason begins with `ENERGY_UNAVAILABLE`.
"""

RESTING = "resting"
"""The stage with which the sampling of rails begins."""

_TICKS_A_SECOND = 100.0
"""The kernel's ticks per second, where the system does not tell."""


def _host_nvml() -> NvmlPower | None:
    from latfarm_agent.nvidia.nvml import open_nvml

    return open_nvml()


class Recording:
    """The energy of one measurement. Call `begin` for each stage, and `finish` at the end.

    Args:
        rails: the rails to sample; empty: there are none.
        why: why there are no rails.
        record: begins to sample the rails.
        asked: False: no energy is asked for, and nothing is done.
    """

    def __init__(
        self, rails: Sequence[Rail], why: str, record: Callable[[], Recorder], *, asked: bool = True
    ) -> None:
        self._asked = asked
        self._rails = list(rails)
        self._why = why
        self._record = record
        self._recorder: Recorder | None = None

    @property
    def has_rail(self) -> bool:
        """Whether a rail can measure the worker's runs and rests."""
        return bool(self._rails)

    def begin(self, stage: str) -> None:
        """A stage begins; the rails are sampled from the first rest on."""
        if stage == RESTING and self._rails and self._recorder is None:
            self._recorder = self._record()

    def close(self) -> None:
        """Stop sampling. Idempotent."""
        if self._recorder is not None:
            self._recorder.stop()

    def finish(
        self, told: Mapping[str, Any] | None, result: BenchResult, conditions: dict[str, str]
    ) -> None:
        """Put the energy of an inference into a result, or into its conditions why there is none.

        Args:
            told: what `measure_energy.run_for_energy` gave in the worker; empty: it did not run.
            result: gets the energy, if there is one.
            conditions: get `CONDITION` and details, if energy was asked for.
        """
        if not self._asked:
            return
        try:
            source, found = self._figure(told or {})
        except EnergyUnavailable as error:
            conditions[CONDITION] = f"{ENERGY_UNAVAILABLE}: {error}"
            return
        result.energy = MeasuredEnergy(
            energy_mj=found.energy_mj,
            gross_mj=found.gross_mj,
            spread_mj=found.spread_mj,
            idle_mw=found.idle_mw,
            idle_spread_mw=found.idle_spread_mw,
            source=source,
            runs=whole_number(found.runs, COUNT_BITS),
            span_ms=found.span_ms,
        )
        conditions[CONDITION] = "ok"
        conditions["energy_spans"] = "{} of {}".format(*found.spans)
        conditions["energy_rests_mw"] = ",".join(shown(value) for value in found.rests_mw)

    def _figure(self, told: Mapping[str, Any]) -> tuple[str, Figure]:
        if told.get("unavailable"):
            raise EnergyUnavailable(str(told["unavailable"]))
        try:
            spans = [_span(values) for values in told.get("spans", ())]
            own = _own_account(told) if told.get("source") else None
        except (TypeError, ValueError, KeyError) as error:
            raise EnergyUnavailable(f"the worker's account makes no sense: {error}") from error
        if own is not None:
            return own.name, figure([own], spans, None)
        if not self._rails:
            raise EnergyUnavailable(self._why)
        if self._recorder is None:
            raise EnergyUnavailable("the worker did not run the model for it")
        records, busy = self._recorder.stop()
        return "+".join(rail.name for rail in self._rails), figure(records, spans, busy)


class EnergyMeter:
    """Makes the recordings of a board.

    Args:
        root: folder below which /proc and /sys are found.
        config: which rails to read, and how often.
        nvml: opens NVML; None: the library of this machine, if `root` is its own root.
    """

    def __init__(
        self,
        root: Path,
        config: PowerConfig | None = None,
        nvml: Callable[[], NvmlPower | None] | None = None,
    ) -> None:
        if nvml is None:
            nvml = _host_nvml if Path(root) == Path("/") else lambda: None
        self._rails = Rails(root, config, nvml)
        self._sensors = Sensors(
            (), root
        )  # of all cores, as the energy counter of a package covers all of them

    def recording(
        self, *, settings: Mapping[str, str] | None, real_time: bool, cores: Sequence[int]
    ) -> Recording:
        """The recording of one measurement.

        Args:
            settings: settings of the platform; None: no energy is asked for.
            real_time: False: time is computed, so no rail can measure the work.
            cores: the measuring cores; the sampling thread does not run on them.
        """
        rails: list[Rail] = []
        why = "its time is computed, not measured: no power rail of this board can measure its work"
        if real_time and settings is not None:
            rails, why = self._rails.chosen(settings)
        hz = self._rails.config.hz
        return Recording(
            rails,
            why,
            lambda: Recorder(rails, self._busy_s, hz, cores),
            asked=settings is not None,
        )

    def shown(self) -> str:
        """The rail for platforms of the CPU, or why there is none, and the names of other rails."""
        rails, why = self._rails.chosen({})
        used = "+".join(rail.name for rail in rails) or f"none: {why}"
        others = [name for name in self._rails.found() if name != used]
        return used + (f" (others: {', '.join(others)})" if others else "")

    def _busy_s(self) -> float | None:
        ticks = self._sensors.ticks()
        return None if ticks is None else ticks.busy / _ticks_a_second()


def _ticks_a_second() -> float:
    try:
        return float(os.sysconf("SC_CLK_TCK"))
    except (ValueError, OSError, AttributeError):
        return _TICKS_A_SECOND


def _span(values: Sequence[Any]) -> Span:
    begin_s, end_s, runs, cpu_s, _ = values
    return Span(float(begin_s), float(end_s), int(runs), float(cpu_s))


def _own_account(told: Mapping[str, Any]) -> Record:
    """A runtime's own account, which it read at the ends of the spans with its own clock."""
    points: dict[float, float] = {}
    for begin_s, end_s, _, _, (begin_mj, end_mj) in told["spans"]:
        points[float(begin_s)], points[float(end_s)] = float(begin_mj), float(end_mj)
    times = sorted(points)
    values = [points[moment] for moment in times]
    step_mj = float(told.get("step_mj", 0.0))
    return Record(str(told["source"]), COUNTER, times, values, exact=True, step=step_mj)
