"""Small convolutions for benchmarks of the farm itself: their graphs, and campaigns of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfarm_controller.campaigns.base import MeasurementRequest, Progress
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Settings

QUICK = Settings(
    sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=3, max_runs=3, max_ms=1.0, precision=0.0
)
"""How each request is measured: as quickly as possible."""


def conv_request(channels: int, width: int, platform: str) -> MeasurementRequest:
    """The request for a small convolution; other numbers give another graph, not yet built."""
    return MeasurementRequest(conv_graph(channels, width), platform, "bench", QUICK)


def conv_graph(channels: int, width: int) -> Graph:
    """A convolution and a ReLU on a map of 8 channels."""
    builder = GraphBuilder(f"conv{channels}x{width}")
    x = builder.input((1, 8, width, width))
    return builder.build([builder.relu(builder.conv(x, channels, 3))])


class CountingCampaign:
    """The part of a campaign that counts answers; a class with `ask` and `tell` completes it.

    Args:
        total: number of measurements.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.told = 0

    @property
    def done(self) -> bool:
        """Whether all requests are answered."""
        return self.told == self.total

    def progress(self) -> Progress:
        """How many requests are answered."""
        return Progress("measuring", self.told, self.total)

    def outcome(self) -> Mapping[str, Any]:
        """Nothing, since nothing is looked for."""
        return {}
