"""A bench that measures nothing and is controlled by a test; as a script it is a whole agent.

As a script it takes the arguments of `latfarm-agent`.
"""

from __future__ import annotations

import hashlib
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from latfarm_agent.bench.records import (
    BenchRequest,
    BenchResult,
    BenchStage,
    DescribedBoard,
    MeasuredSession,
    OfferedPlatform,
    OfferedRuntime,
)
from latfarm_agent.cli import main
from latfarm_agent.runtimes.base import LayerTime

PLATFORM = "fake-onnxruntime1.0-fp32-1t"


class FakeBench:
    """Answers at once, with a latency that is computed from the model's bytes.

    `hold()` makes measurements wait for `let_go()` or their cancellation; `answers` (results, or
    exceptions to raise) come before the default one; `started` gets each request as it starts.
    """

    def __init__(self, real_time: bool = True) -> None:
        self.started: queue.Queue[BenchRequest] = queue.Queue()
        self.answers: list[BenchResult | Exception] = []
        self.measured: list[str] = []
        self.restarted: list[str] = []
        self.closed = False
        self.fingerprint = "f1"
        self._real_time = real_time
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self.at_once = 0

    def hold(self) -> None:
        """Let measurements wait from now on."""
        self._open.clear()

    def let_go(self) -> None:
        """Let measurements end again."""
        self._open.set()

    def describe(self) -> tuple[DescribedBoard, list[OfferedRuntime]]:
        """One runtime that is available, and one that is missing."""
        platform = OfferedPlatform(
            name=PLATFORM,
            model_format="onnx",
            dtype="fp32",
            fingerprint=self.fingerprint,
            real_time=self._real_time,
        )
        here = OfferedRuntime(
            name="onnxruntime", available=True, version="1.0", platforms=(platform,)
        )
        missing = OfferedRuntime(name="tflite", missing="install latfarm-agent[tflite]")
        board = DescribedBoard(
            board_id="board-1", name="fake", boot_id="boot", hardware={"cpu": "fake"}
        )
        return board, [here, missing]

    def measure(
        self,
        request: BenchRequest,
        model_path: Path,
        *,
        profile: bool,
        on_stage: Callable[[BenchStage], None],
        cancelled: Callable[[], bool],
    ) -> BenchResult:
        """Report two stages and give a result."""
        with self._lock:
            self.at_once += 1
            assert self.at_once == 1, "two measurements at once"
        try:
            self.measured.append(request.request_id)
            on_stage(BenchStage(name="loading", session=1))
            self.started.put(request)
            while not self._open.wait(0.005):
                if cancelled():
                    return BenchResult(outcome="infrastructure_error", error_code="CANCELLED")
            on_stage(BenchStage(name="timing", session=1, elapsed_ms=1.0))
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            digest = hashlib.sha256(model_path.read_bytes()).hexdigest()
            layers = [LayerTime(name="conv1", op="Conv", latency_ms=1.0)] if profile else []
            return BenchResult(
                outcome="ok",
                sessions=[MeasuredSession(load_ms=1.0, runs_ms=[int(digest[:4], 16) / 1000])],
                layers=layers,
                settings=request.settings,
            )
        finally:
            with self._lock:
                self.at_once -= 1

    def restart(self, part: str) -> str:
        """Remember the part."""
        self.restarted.append(part)
        return f"the {part} is new"

    def close(self) -> None:
        """Remember that the bench was closed."""
        self.closed = True
        self._open.set()


if __name__ == "__main__":
    sys.exit(main(make_bench=lambda args, work_dir: FakeBench()))
