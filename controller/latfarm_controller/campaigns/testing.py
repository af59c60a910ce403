"""To test campaigns without boards: a platform with a known truth, and a driver in ten lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from latfarm_predictors.graph.graph import DTYPE_BYTES, Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

from latfarm_controller.campaigns.base import Campaign, MeasurementRequest


@dataclass
class SimulatedPlatform:
    """A platform whose fusion rules, paces and noise are known.

    A kernel takes its first op's time: multiply-adds in whole tiles of output channels, and the
    bytes that it moves; ops fused behind it are free. Noise is drawn from the request's id, so that
    it does not depend on the order of questions.

    Attributes:
        rules: the hidden truth.
        noise: relative standard deviation of a latency.
        profiles: whether requests for a profile are answered with layers.
        opaque: profiles show one layer whatever runs, as a delegate may.
        drift: factor on latency by time in seconds; a measurement takes one second.
        failures: outcome of a request in place of a latency; None for a good one.
    """

    rules: FusionRules
    noise: float = 0.0
    overhead_ms: float = 0.01
    tile: int = 8
    macs_per_ms: float = 2e7
    bytes_per_ms: float = 1e7
    profiles: bool = False
    opaque: bool = False
    boards: tuple[str, ...] = ("board-0",)
    seed: int = 0
    drift: Callable[[float], float] = lambda _: 1.0
    failures: Callable[[MeasurementRequest], Outcome | None] = lambda _: None
    clock_s: float = 0.0
    answered: dict[str, Measurement] = field(default_factory=dict)
    _exact: dict[str, tuple[float, list[Kernel]]] = field(default_factory=dict)

    def exact_ms(self, graph: Graph) -> float:
        """Latency without noise and drift."""
        return self._split(graph)[0]

    def _split(self, graph: Graph) -> tuple[float, list[Kernel]]:
        if hash_of(graph) not in self._exact:
            kernels = split(graph, self.rules)
            self._exact[hash_of(graph)] = (
                self.overhead_ms + sum(map(self._kernel_ms, kernels)),
                kernels,
            )
        return self._exact[hash_of(graph)]

    def _kernel_ms(self, kernel: Kernel) -> float:
        node, graph = kernel.main, kernel.graph
        first = Graph(
            node.op,
            tuple(dict.fromkeys(graph.data_inputs(node))),
            tuple(t for t in node.outputs if t),
            (node,),
            {t: graph.weights[t] for t in node.inputs if t in graph.weights},
            {t: graph.type_of(t) for t in (*graph.data_inputs(node), *node.outputs) if t},
        )
        work = workload(Kernel(first))
        tiles = math.ceil(work.out_channels / self.tile) * self.tile / max(work.out_channels, 1)
        moved = work.input_bytes + work.output_bytes + work.weight_bytes
        moved = max(moved, DTYPE_BYTES["float32"])
        return tiles * work.macs / self.macs_per_ms + moved / self.bytes_per_ms

    def measure(self, request: MeasurementRequest) -> Measurement:
        """Answer a request; the same one gets the same answer."""
        known = self.answered.get(request.request_id)
        if known is not None:
            return known
        self.clock_s += 1.0
        random = Random(f"{self.seed} {request.request_id}")
        failure = self.failures(request)
        common = {
            "request_id": request.request_id,
            "graph_hash": hash_of(request.graph),
            "platform": request.platform,
            "purpose": request.purpose,
            "board_id": self.boards[len(self.answered) % len(self.boards)],
            "fingerprint": "f0",
            "measured_at_s": self.clock_s,
            "settings": request.settings,
        }
        if failure is not None:
            answer = Measurement(
                **common,  # type: ignore[arg-type]
                outcome=failure,
                error_code="SIMULATED",
                error_message="a simulated failure",
            )
        else:
            exact, kernels = self._split(request.graph)
            factor = self.drift(self.clock_s) * max(0.2, random.gauss(1.0, self.noise))
            answer = Measurement(
                **common,  # type: ignore[arg-type]
                outcome=Outcome.OK,
                latency_ms=exact * factor,
                mad_ms=exact * self.noise * 0.2,
                cold_ms=exact * factor * 1.2 if request.settings.cold_runs else None,
                runs=20,
                board_ms=1000.0,
                layers=self._layers(request, kernels),
            )
        self.answered[request.request_id] = answer
        return answer

    def _layers(
        self, request: MeasurementRequest, kernels: Sequence[Kernel]
    ) -> tuple[ProfiledLayer, ...]:
        if not (self.profiles and request.profile):
            return ()
        layers = [ProfiledLayer(k.node_names[0], k.main.op, self._kernel_ms(k)) for k in kernels]
        return tuple(layers[:1] if self.opaque else layers)


def drive(
    campaign: Campaign,
    measure: Callable[[MeasurementRequest], Measurement],
    *,
    shuffle: Random | None = None,
    stop_after: int | None = None,
    ask: int = 32,
    known: Mapping[str, Measurement] | None = None,
) -> list[MeasurementRequest]:
    """Ask, measure and tell until the campaign is done; what was measured, in order.

    Args:
        campaign: a fresh one.
        measure: answers one request.
        shuffle: tells in another order and in portions, as a pool of boards would.
        stop_after: give up after so many measurements, as a crash would.
        ask: how many to ask for at once.
        known: stored measurements by request id: told at once and not measured.

    Raises:
        AssertionError: the campaign neither asks nor ends, or asks the same question twice.
    """
    stored = known or {}
    measured: list[MeasurementRequest] = []
    seen: set[str] = set()
    waiting: list[Measurement] = []
    while not campaign.done:
        requests = campaign.ask(ask)
        if len(requests) > ask:
            raise AssertionError(f"asked for {ask} requests, got {len(requests)}")
        if not requests and not waiting:
            raise AssertionError(f"stuck: {campaign.progress()}")
        for request in requests:
            if request.request_id in seen:
                raise AssertionError(f"asked twice: {request.label}")
            seen.add(request.request_id)
            if request.request_id in stored:
                waiting.append(stored[request.request_id])
                continue
            if stop_after is not None and len(measured) >= stop_after:
                return measured
            waiting.append(measure(request))
            measured.append(request)
        if shuffle is not None:
            shuffle.shuffle(waiting)
            # Hold some back while more can be asked; when nothing comes, tell all.
            keep = shuffle.randrange(len(waiting) + 1) if requests else 0
            campaign.tell(waiting[keep:])
            waiting = waiting[:keep]
        else:
            campaign.tell(waiting)
            waiting = []
    return measured
