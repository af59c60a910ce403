"""Compares MNN's cost model with the latencies that were measured with MNN.

The cost model needs no measurement (`latfarm_predictors.models.published.mnn_cost`). MNN uses it to
choose algorithms and backends, so whether it orders networks correctly (Kendall's tau) says more
than its milliseconds. It is compared as it is, and with one factor that fits all networks best.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np
from latfarm_predictors.evaluate import kendall_tau
from latfarm_predictors.features.mnn_backends import SCHEDULE_MS, MnnBackend, cpu, gpu
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.models.published.mnn_cost import MnnCost, algorithms

from latfarm_controller import zoo

RUNTIME = "mnn"
"""Name of MNN among the runtimes."""
_NAMED_CLOCK = re.compile(r"@ ?(\d+(?:\.\d+)?) ?GHz")
"""The nominal clock in the name of a processor, for example `@ 2.10GHz`."""


@dataclass(frozen=True)
class ModelRow:
    """A network on one of MNN's platforms: measured, and by MNN's cost model.

    Attributes:
        network: its name.
        platform: the platform.
        backend: MNN's backend.
        threads: number of threads; None where that is not a setting of the backend.
        measured_ms: the latency in milliseconds, corrected for the slowdown of the core.
        direct_ms: Eq. 5 with the multiplications of the direct algorithm, in milliseconds.
        chosen_ms: Eq. 5 with the operations of the algorithms that Eqs. 2, 3 and 9 choose, in
            milliseconds.
    """

    network: str
    platform: str
    backend: str
    threads: int | None
    measured_ms: float
    direct_ms: float
    chosen_ms: float


@dataclass(frozen=True)
class Agreement:
    """How well predictions agree with measurements.

    Attributes:
        rows: number of networks.
        factor: the one factor that fits best: the median of measured / predicted.
        error: median absolute relative error without the factor.
        scaled_error: median absolute relative error with the factor.
        pearson: Pearson's correlation; None with fewer than three networks or equal values.
        kendall: Kendall's tau; None as for `pearson`.
    """

    rows: int
    factor: float
    error: float
    scaled_error: float
    pearson: float | None
    kendall: float | None


@dataclass(frozen=True)
class ModelReport:
    """The comparison of MNN's cost model with measurements.

    Attributes:
        rows: the networks on MNN's platforms.
        clock: where the clock of the cores is known from; empty: it is not known.
        agreement: by "all", the number of threads or the backend, then by "direct" and "chosen".
        algorithms: how often each algorithm is chosen in a network, by network.
        layers: convolutions and matrix products for which another algorithm than the direct one is
            chosen, as (node, algorithm), by network.
    """

    rows: tuple[ModelRow, ...] = ()
    clock: str = ""
    agreement: Mapping[str, Mapping[str, Agreement]] = field(default_factory=dict)
    algorithms: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    layers: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return asdict(self)


def against_mnn(outcome: Mapping[str, Any], clock_mhz: float | None = None) -> ModelReport:
    """Compare MNN's cost model with every latency of MNN that was measured, except int8 ones.

    Args:
        outcome: the outcome of an engines campaign.
        clock_mhz: highest clock of the board's cores in MHz; None: as the board reports it.
    """
    offers = {found["name"]: found for found in outcome.get("platforms", ())}
    graphs = {
        found["name"]: _build(found["name"], outcome.get("resolution"))
        for found in outcome.get("networks", ())
    }
    clocks, source = _clocks(outcome, clock_mhz)
    rows = []
    for cell in outcome.get("cells", ()):
        found = offers.get(cell["platform"], {})
        if found.get("runtime") != RUNTIME or found["dtype"] == "int8" or not cell["latency_ms"]:
            continue
        backend = _backend(found, outcome.get("hardware", {}), clocks)
        graph = graphs[cell["network"]]
        rows.append(
            ModelRow(
                network=cell["network"],
                platform=cell["platform"],
                backend=backend.name,
                threads=cell["threads"],
                measured_ms=cell["latency_ms"],
                direct_ms=MnnCost(backend, schemes=False).network_ms(graph),
                chosen_ms=MnnCost(backend, schemes=True).network_ms(graph),
            )
        )
    if not rows:
        return ModelReport()
    chosen = {name: algorithms(graph) for name, graph in graphs.items()}
    return ModelReport(
        rows=tuple(rows),
        clock=source,
        agreement=_agreements(rows),
        algorithms={name: schemes.counts() for name, (_, schemes) in chosen.items()},
        layers={
            name: [
                (node, told)
                for node, told in zip(nodes, schemes.names(), strict=True)
                if told != "direct"
            ]
            for name, (nodes, schemes) in chosen.items()
        },
    )


def _build(name: str, resolution: int | None) -> Graph:
    family, seed = zoo.find(name)
    return family.build(resolution=resolution, seed=seed, label=name)


def _clocks(outcome: Mapping[str, Any], given_mhz: float | None) -> tuple[list[float], str]:
    """Highest clock of each core in MHz, and where it is known from; both empty if it is not known.

    A virtual machine hides the clock, but the name of its processor often has the nominal one.
    """
    hardware = outcome.get("hardware", {})
    told = str(outcome.get("conditions", {}).get("clock_max_khz", ""))
    named = _NAMED_CLOCK.search(str(hardware.get("cpu", "")))
    if given_mhz:
        clock_mhz, source = given_mhz, "the caller"
    elif told.isdecimal() and int(told):
        clock_mhz, source = int(told) / 1e3, "the board"
    elif named:
        clock_mhz, source = 1e3 * float(named[1]), "the processor's name"
    else:
        return [], ""
    cores = str(hardware.get("cores", ""))
    return [clock_mhz] * (int(cores) if cores.isdecimal() else 1), source


def _backend(
    found: Mapping[str, Any], hardware: Mapping[str, str], clocks: Sequence[float]
) -> MnnBackend:
    words = str(found["engine"]).split("-")
    api = next((word for word in words if word in SCHEDULE_MS), "")
    if api:
        settings = found.get("settings", {})
        return gpu(settings.get("gpu") or hardware.get("gpu", ""), api)
    return cpu(found["threads"] or 1, clocks)


def _agreements(rows: Sequence[ModelRow]) -> dict[str, dict[str, Agreement]]:
    groups: dict[str, list[ModelRow]] = {"all": list(rows)}
    for row in rows:
        name = row.backend if row.threads is None else f"{row.threads}t"
        groups.setdefault(name, []).append(row)
    return {
        name: {
            "direct": _agreement([(r.direct_ms, r.measured_ms) for r in found]),
            "chosen": _agreement([(r.chosen_ms, r.measured_ms) for r in found]),
        }
        for name, found in groups.items()
    }


def _agreement(pairs: Sequence[tuple[float, float]]) -> Agreement:
    predicted, measured = (np.array(side, dtype=np.float64) for side in zip(*pairs, strict=True))
    factor = median((measured / predicted).tolist())
    pearson = kendall = None
    if len(pairs) > 2 and predicted.std() > 0 and measured.std() > 0:
        pearson = float(np.corrcoef(predicted, measured)[0, 1])
        tau = kendall_tau(predicted, measured)
        kendall = None if np.isnan(tau) else tau
    return Agreement(
        rows=len(pairs),
        factor=factor,
        error=float(np.median(np.abs(predicted / measured - 1))),
        scaled_error=float(np.median(np.abs(factor * predicted / measured - 1))),
        pearson=pearson,
        kendall=kendall,
    )
