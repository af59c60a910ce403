"""What measures models, as those who drive it know it: the board's own bench, or one far away."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Protocol

from latfarm_protos.v1 import agent_pb2 as pb


class MeasuringBench(Protocol):
    """What measures. It never raises: a failed measurement is a result."""

    def describe(self) -> tuple[pb.Board, list[pb.Runtime]]:
        """The board, and its runtimes with their platforms."""

    def measure(
        self,
        request: pb.MeasureRequest,
        model_path: Path,
        *,
        profile: bool,
        on_stage: Callable[[pb.Stage], None],
        cancelled: Callable[[], bool],
    ) -> pb.Result:
        """Measure a model; blocks until done or `cancelled`."""

    def close(self) -> None:
        """End all worker processes."""
