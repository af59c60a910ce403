"""The campaign of a single measurement, for a question about the latency of a network."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.base import MeasurementRequest, Progress


class QueryCampaign:
    """Measures one graph once.

    Each campaign is measured, whatever the store knows: its random `nonce` is part of the request.

    Attributes:
        platform: the platform that is asked.
        nonce: makes the request different from all earlier ones.
        answer: the measurement, which may have failed; None before.
    """

    kind = "query"

    def __init__(self, graph: Graph, platform: str, settings: Settings) -> None:
        self.platform = platform
        self.nonce = secrets.token_hex(4)
        self.answer: Measurement | None = None
        self._request: MeasurementRequest | None = MeasurementRequest(
            graph, platform, "query", settings, repeat=int(self.nonce, 16), label=graph.name
        )

    def ask(self, count: int) -> list[MeasurementRequest]:
        """The one request, once."""
        if self._request is None or count < 1:
            return []
        request, self._request = self._request, None
        return [request]

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Take the answer."""
        for measurement in measurements:
            self.answer = measurement

    @property
    def done(self) -> bool:
        """Whether the request was answered."""
        return self.answer is not None

    def progress(self) -> Progress:
        """The one measurement, done or not."""
        return Progress("measuring", int(self.done), 1)

    def outcome(self) -> Mapping[str, Any]:
        """The latency, where there is one."""
        return {"latency_ms": self.answer.latency_ms if self.answer else None}
