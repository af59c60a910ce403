"""The campaign of a few measurements, for a question about the latency of a network."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.base import MeasurementRequest, Progress


class QueryCampaign:
    """Measures one graph, once or several times.

    Each campaign is measured, whatever the store knows: its random `nonce` is part of the requests.

    Args:
        graph: the network.
        platform: the platform to ask.
        settings: how to measure.
        repeat: how many times to measure.

    Attributes:
        platform: the platform that is asked.
        nonce: makes the requests different from all earlier ones.
        answers: the measurements so far, some of which may have failed.
    """

    kind = "query"

    def __init__(self, graph: Graph, platform: str, settings: Settings, repeat: int = 1) -> None:
        self.platform = platform
        self.nonce = secrets.token_hex(4)
        self.answers: list[Measurement] = []
        self._total = repeat
        first = int(self.nonce, 16)
        self._requests = [
            MeasurementRequest(
                graph, platform, "query", settings, repeat=first + number, label=graph.name
            )
            for number in range(repeat)
        ]

    def ask(self, count: int) -> list[MeasurementRequest]:
        """The requests, each once."""
        most = max(0, count)
        given, self._requests = self._requests[:most], self._requests[most:]
        return given

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Take answers."""
        self.answers.extend(measurements)

    @property
    def answer(self) -> Measurement | None:
        """The answer with the median latency; a failure if all failed; None before."""
        good = sorted((m for m in self.answers if m.ok), key=lambda m: m.latency_ms or 0.0)
        if good:
            return good[(len(good) - 1) // 2]
        return self.answers[-1] if self.answers else None

    @property
    def done(self) -> bool:
        """Whether all requests were answered."""
        return len(self.answers) >= self._total

    def progress(self) -> Progress:
        """How many measurements are done."""
        return Progress("measuring", len(self.answers), self._total)

    def outcome(self) -> Mapping[str, Any]:
        """The latency, where there is one."""
        return {"latency_ms": self.answer.latency_ms if self.answer else None}
