"""The table of engines: each cell's latency, speed-up and failures, and the fastest of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.engines.platforms import ComparedPlatform

UNSTABLE_SPREAD = 0.02
"""Largest median absolute deviation of a stable latency, as a share of its median."""
UNSTABLE_PASSES = 0.05
"""Largest difference between the passes of a stable latency, as a share of the latency."""
_NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True)
class Cell:
    """A network on a platform. Figures are None where every pass failed or nobody measured them.

    Attributes:
        network: the name of the network.
        graph_hash: the hash of its graph.
        platform: the name of the platform.
        engine: the platform's engine, as tables name it.
        dtype: the platform's element type.
        threads: the platform's number of threads; None for accelerators.
        latency_ms: median over the sessions of all passes; by MNN's protocol the median of the
            passes' means of ten.
        spread: deviation as a share of the latency: the larger of that within the passes and that
            between their sessions (1.4826 times the median absolute deviation).
        passes_ms: latency of each good pass, in order.
        mean_ms: mean latency of the runs, median over the passes.
        uncorrected_ms: latency before the correction for the core's slowdown; None without any
            correction.
        first_run_ms: time of the first run, median over the passes.
        load_ms: time to load the model, median over the passes.
        sessions: number of sessions of all passes.
        runs: number of runs of all passes.
        unstable: whether passes differ by more than 5 %, the deviation is above 2 %, or the board
            had drifted in every good pass.
        busy: share of the time that other processes used the measuring cores, median of the passes.
        energy_mj: energy of an inference above that at rest, where the settings asked for it and
            the board can measure it.
        failures: error code and message of each pass that failed.
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
        network: the cell's row.
        graph: the network's graph.
        found: the cell's column.
        passes: good and failed measurements, in the order in which they were asked.
        mean: report means of runs, as MNN's benchmark does, instead of medians.
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
    between = _NORMAL_MAD * median(abs(t - middle) for t in sessions) / middle
    inside = median((m.mad_ms or 0.0) / (m.latency_ms or 1.0) for m in good)
    apart = (max(each) - min(each)) / latency_ms
    return Cell(
        **common,
        latency_ms=latency_ms,
        spread=max(between, _NORMAL_MAD * inside),
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
    """The cells as plain JSON types, each with its speed-up, and whether it is the fastest.

    `speedup` is the latency of the same engine with one thread over that of this cell; None where
    one of them is missing. `fastest` is true for the fastest platform of an element type, for each
    network.
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
    """A figure among the conditions of a measurement; None where it is missing."""
    try:
        return float(measurement.conditions[name])
    except (KeyError, ValueError):
        return None


def _median(values: Sequence[float | None]) -> float | None:
    """The median of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
