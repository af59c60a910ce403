"""Tests campaigns without boards: a simulated platform whose truth is known, and a simple driver.

Whoever writes a campaign drives it with `drive`, which checks what a campaign must keep to, and
measures with a `SimulatedPlatform`, whose fusion rules and latencies are known exactly.
"""

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
    """A platform whose fusion rules, speed and noise are known.

    A kernel takes the time of its first op: that of its multiply-adds, in whole tiles of output
    channels, and that of the bytes it moves. Ops that are fused with it are free. Noise is drawn
    from the request's id, so that it does not depend on the order of requests.

    Attributes:
        rules: the fusion rules by which networks are executed.
        noise: relative standard deviation of a latency.
        overhead_ms: what a call costs besides its kernels.
        tile: number of output channels that are computed together.
        macs_per_ms: multiply-adds in a millisecond.
        bytes_per_ms: bytes moved in a millisecond.
        profiles: whether requests for a profile are answered with layers.
        opaque: whether profiles show a single layer whatever runs, as with a delegate.
        boards: ids of the boards, which answer in turn.
        seed: random seed of the noise.
        drift: factor on latencies by time in seconds; a measurement takes one second.
        failures: the outcome of a request that fails; None for requests that succeed.
        clock_s: the time in seconds.
        answered: all measurements by request id.
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
        """The latency of a graph without noise and drift."""
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
        """Answer a request; the same request gets the same answer again."""
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
    """Ask, measure and tell until the campaign is done.

    Args:
        campaign: a new campaign.
        measure: answers one request.
        shuffle: tell answers in another order and in portions, as a pool of boards would.
        stop_after: stop after so many measurements, as a crash would.
        ask: how many requests to ask for at once.
        known: stored measurements by request id, which are told without measuring again.

    Returns:
        The requests that were measured, in order.

    Raises:
        AssertionError: the campaign neither asks nor ends, gives more requests than asked for, or
            asks the same question twice.
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
            # Keep some answers back while the campaign asks for more; otherwise tell all of them.
            keep = shuffle.randrange(len(waiting) + 1) if requests else 0
            campaign.tell(waiting[keep:])
            waiting = waiting[:keep]
        else:
            campaign.tell(waiting)
            waiting = []
    return measured
