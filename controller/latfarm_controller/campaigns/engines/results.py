"""The table of engines: what the passes say of a cell, speed-ups, the fastest, what failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.engines.offers import ComparedPlatform

UNSTABLE_SPREAD = 0.02
UNSTABLE_PASSES = 0.05
"""METHODS 1.9: MAD / median above 2 %, or repeats that differ by more than 5 %."""


@dataclass(frozen=True)
class Cell:
    """A network on a platform. Latencies in ms; None where every pass failed.

    Attributes:
        latency_ms: median over the sessions of all passes; by MNN's protocol the median of the
            passes' means of ten.
        spread: share of the latency: the larger of the passes' own deviation and what lies between
            their sessions (1.4826 * MAD).
        passes_ms: each good pass's latency, in order.
        uncorrected_ms: as timed, before the core's slowdown was taken out; None if nothing was.
        unstable: passes differ by more than 5 %, or the deviation is above 2 %.
        energy_mj: of an inference above rest, where the settings asked for it and a rail tells.
        busy: share of the time that others used the measuring cores, median of the passes.
        failures: code and message of each pass that failed.
    """

    network: str
    graph_hash: str
    platform: str
    engine: str
    dtype: str
    threads: int | None
    latency_ms: float | None = None
    spread: float | None = None
    passes_ms: tuple[float, ...] = ()
    mean_ms: float | None = None
    uncorrected_ms: float | None = None
    first_run_ms: float | None = None
    load_ms: float | None = None
    sessions: int = 0
    runs: int = 0
    unstable: bool = False
    busy: float | None = None
    energy_mj: float | None = None
    failures: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why there is no latency; empty where there is one."""
        if self.latency_ms is not None:
            return ""
        return self.failures[-1] if self.failures else "not measured"


def pooled(
    network: str,
    graph: Graph,
    found: ComparedPlatform,
    passes: Sequence[Measurement],
    *,
    mean: bool = False,
) -> Cell:
    """A cell from the measurements of its passes.

    Args:
        network: its row.
        graph: what was measured.
        found: its column.
        passes: good and failed ones, in the order in which they were asked.
        mean: report means of runs, as MNN's benchmark does, not medians.
    """
    good = [m for m in passes if m.ok and m.latency_ms is not None]
    failures = tuple(f"{m.error_code}: {m.error_message}" for m in passes if not m.ok)
    common: dict[str, Any] = {
        "network": network,
        "graph_hash": hash_of(graph),
        "platform": found.name,
        "engine": found.engine,
        "dtype": found.dtype,
        "threads": found.threads,
        "failures": failures,
    }
    if not good:
        return Cell(**common)
    each = [_latency_ms(m, mean=mean) for m in good]
    sessions = [t for m in good for t in (m.session_ms or (m.latency_ms or 0.0,))]
    latency_ms = median(each if mean else sessions)
    middle = median(sessions)
    between = 1.4826 * median(abs(t - middle) for t in sessions) / middle
    inside = median((m.mad_ms or 0.0) / (m.latency_ms or 1.0) for m in good)
    apart = (max(each) - min(each)) / latency_ms
    return Cell(
        **common,
        latency_ms=latency_ms,
        spread=max(between, 1.4826 * inside),
        passes_ms=tuple(each),
        mean_ms=_median([_condition(m, "mean_ms") for m in good]),
        uncorrected_ms=_median([_condition(m, "uncorrected_ms") for m in good]),
        first_run_ms=_median([m.first_run_ms for m in good]),
        load_ms=_median([m.load_ms for m in good]),
        sessions=len(sessions),
        runs=sum(m.runs for m in good),
        energy_mj=_median([m.energy_mj for m in good]),
        busy=_median([_condition(m, "core_busy_share") for m in good]),
        unstable=apart > UNSTABLE_PASSES or inside > UNSTABLE_SPREAD,
    )


def cells_json(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Cells as plain JSON types, each with its speed-up and whether it is its row's fastest.

    `speedup`: the same engine's latency with one thread over this one; None without either.
    `fastest`: of all platforms of that element type, for this network.
    """
    alone = {
        (c.network, c.engine, c.dtype): c.latency_ms
        for c in cells
        if c.threads == 1 and c.latency_ms is not None
    }
    best: dict[tuple[str, str], float] = {}
    for cell in cells:
        if cell.latency_ms is not None:
            key = (cell.network, cell.dtype)
            best[key] = min(best.get(key, cell.latency_ms), cell.latency_ms)
    told = []
    for cell in cells:
        one_ms = alone.get((cell.network, cell.engine, cell.dtype))
        known = cell.latency_ms is not None and one_ms is not None and cell.threads is not None
        told.append(
            asdict(cell)
            | {
                "passes_ms": list(cell.passes_ms),
                "failures": list(cell.failures),
                "speedup": one_ms / cell.latency_ms if known else None,  # type: ignore[operator]
                "fastest": cell.latency_ms is not None
                and cell.latency_ms == best[cell.network, cell.dtype],
                "reason": cell.reason,
            }
        )
    return told


def _latency_ms(measurement: Measurement, *, mean: bool) -> float:
    found = _condition(measurement, "mean_ms") if mean else None
    return (measurement.latency_ms or 0.0) if found is None else found


def _condition(measurement: Measurement, name: str) -> float | None:
    """A figure among the conditions; None where it is not told."""
    try:
        return float(measurement.conditions[name])
    except (KeyError, ValueError):
        return None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
