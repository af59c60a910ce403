"""Where a prediction misses: the time of each kernel inside a network beside its prediction.

The total of a network hides which of its kernels is wrong. A profile tells what each layer took,
and `campaigns.profiles.profiled_networks` turns layers into kernels as training does, so that both
columns have the same unit and the same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.answer import Answer, KernelAnswer
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.slow_core import CorrectedLatency

from latfarm_controller.campaigns.profiles.profiled_networks import accounts_for, places_of


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """One kernel of a network: what it is, its time in the profile, and its prediction.

    Attributes:
        type: the ops of the kernel, for example "Conv+Relu".
        nodes: names of its nodes.
        configuration: sizes of the kernel by name.
        profiled_ms: its time inside the network, in ms; None where the profile shows it only
            together with other kernels.
        predicted_ms: its predicted latency in ms.
        interval_ms: ends of the interval of the prediction in ms.
        source: what the prediction rests on, as in `KernelAnswer`.
    """

    type: str
    nodes: tuple[str, ...]
    configuration: Mapping[str, float | int | str]
    profiled_ms: float | None
    predicted_ms: float
    interval_ms: tuple[float, float]
    source: str

    @property
    def excess_ms(self) -> float:
        """The prediction minus the time in the profile, in ms: positive if it is too high.

        It is 0 for a kernel that the profile shows only together with other kernels.
        """
        return 0.0 if self.profiled_ms is None else self.predicted_ms - self.profiled_ms


@dataclass(frozen=True, slots=True)
class NetworkTimes:
    """One network: its latency, its prediction, and its kernels in the order in which they run.

    Attributes:
        network: name of the network.
        latency: its latency without the profiler.
        predicted_ms: its predicted latency in ms.
        interval_ms: ends of the interval of the prediction in ms.
        fixed_ms: what the predictor adds to the kernels for the call and its transfers, in ms.
        kernels: its kernels.
        usable: whether the layers of the profile explain the latency; where they do not, the times
            of its kernels say little.
    """

    network: str
    latency: CorrectedLatency
    predicted_ms: float
    interval_ms: tuple[float, float]
    fixed_ms: float
    kernels: tuple[KernelTimes, ...]
    usable: bool

    @property
    def error(self) -> float:
        """The error of the prediction as a share of the corrected latency; positive: too high."""
        return self.predicted_ms / self.latency.corrected_ms - 1.0

    def to_json(self) -> dict[str, Any]:
        """The network as plain JSON types."""
        told = asdict(self)
        del told["latency"]
        return {**told, **self.latency.to_json(), "error": self.error}


@dataclass(frozen=True, slots=True)
class ConfigurationTimes:
    """All kernels of one configuration in several networks.

    Attributes:
        type: the ops of the kernels.
        configuration: sizes of the kernels by name.
        source: what their prediction rests on.
        networks: in how many networks they are.
        kernels: how many kernels there are.
        profiled_ms: their time inside the networks, in ms, summed.
        predicted_ms: their predictions in ms, summed.
        worst: the largest effect of these kernels on one network, as a share of the corrected
            latency; positive: predicted too high.
    """

    type: str
    configuration: Mapping[str, float | int | str]
    source: str
    networks: int
    kernels: int
    profiled_ms: float
    predicted_ms: float
    worst: float

    def to_json(self) -> dict[str, Any]:
        """The configuration as plain JSON types."""
        return asdict(self)


def predicted_and_profiled(
    predictor: PlatformPredictor, profiled: Sequence[tuple[Graph, Measurement]]
) -> list[NetworkTimes]:
    """The kernels of networks with the times that profiles and the predictor tell.

    Args:
        predictor: of the platform that the networks were measured on.
        profiled: networks, each with a good measurement that has a profile.
    """
    settled = [(graph, predictor.slow_core.settled(told)) for graph, told in profiled]
    answers = predictor.predict_many([graph for graph, _ in settled])
    places = places_of(
        settled, predictor.rules, predictor.call_overhead_ms, predictor.transfer_ms_per_mb
    )
    found = []
    for (graph, told), (_, raw), answer, samples in zip(
        settled, profiled, answers, places, strict=True
    ):
        latency = predictor.slow_core.latency(raw)
        if latency is None:
            continue
        fixed_ms = predictor.fixed_ms(boundary_mb(graph))
        times_ms = {sample.kernel.node_names: sample.latency_ms for sample in samples}
        found.append(
            NetworkTimes(
                graph.name,
                latency,
                answer.latency_ms,
                answer.interval_ms,
                fixed_ms,
                _kernels(answer, times_ms),
                any(times_ms.values()) and accounts_for(told, fixed_ms),
            )
        )
    return found


def _kernels(answer: Answer, times_ms: Mapping[tuple[str, ...], float]) -> tuple[KernelTimes, ...]:
    return tuple(_times(kernel, times_ms.get(kernel.nodes)) for kernel in answer.kernels)


def _times(kernel: KernelAnswer, profiled_ms: float | None) -> KernelTimes:
    return KernelTimes(
        kernel.type,
        kernel.nodes,
        kernel.configuration,
        profiled_ms,
        kernel.latency_ms,
        kernel.interval_ms,
        kernel.source,
    )


def by_configuration(networks: Iterable[NetworkTimes]) -> list[ConfigurationTimes]:
    """The kernels of usable profiles by configuration, those that make networks miss first.

    A configuration is as bad as what all its kernels in one network add to the error of that
    network, at worst: a fault of a large network's kernel counts no more than one of a small one's.
    """
    rows: dict[tuple[object, ...], list[tuple[str, float, KernelTimes]]] = {}
    for network in networks:
        if not network.usable:
            continue
        for kernel in network.kernels:
            if kernel.profiled_ms is not None:
                key = (kernel.type, tuple(sorted(kernel.configuration.items())))
                row = (network.network, network.latency.corrected_ms, kernel)
                rows.setdefault(key, []).append(row)
    return sorted(map(_summed, rows.values()), key=lambda each: -abs(each.worst))


def _summed(rows: Sequence[tuple[str, float, KernelTimes]]) -> ConfigurationTimes:
    """One configuration from its kernels, each with the name and the latency of its network."""
    effects: dict[str, float] = {}
    for name, network_ms, kernel in rows:
        effects[name] = effects.get(name, 0.0) + kernel.excess_ms / network_ms
    first = rows[0][2]
    return ConfigurationTimes(
        first.type,
        first.configuration,
        first.source,
        len(effects),
        len(rows),
        sum(kernel.profiled_ms or 0.0 for _, _, kernel in rows),
        sum(kernel.predicted_ms for _, _, kernel in rows),
        max(effects.values(), key=abs),
    )
