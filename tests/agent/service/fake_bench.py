"""A bench that measures nothing, under a test's control; run as a script it is a whole agent.

As a script it takes the arguments of `latfarm-agent`.
"""

from __future__ import annotations

import hashlib
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from latfarm_agent.cli import main
from latfarm_protos.v1 import agent_pb2 as pb

PLATFORM = "fake-onnxruntime1.0-fp32-1t"


class FakeBench:
    """Answers at once with a latency made from the model's bytes, unless told otherwise.

    `hold()` makes measurements wait for `let_go()` or their cancellation; `answers` (results, or
    exceptions to raise) come before the default one; `started` gets each request as it starts.
    """

    def __init__(self, real_time: bool = True) -> None:
        self.started: queue.Queue[pb.MeasureRequest] = queue.Queue()
        self.answers: list[pb.Result | Exception] = []
        self.measured: list[str] = []
        self.closed = False
        self._real_time = real_time
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self.at_once = 0

    def hold(self) -> None:
        """Let measurements wait."""
        self._open.clear()

    def let_go(self) -> None:
        """Let them end."""
        self._open.set()

    def describe(self) -> tuple[pb.Board, list[pb.Runtime]]:
        """One runtime that is here and one that is missing."""
        platform = pb.Platform(
            name=PLATFORM,
            model_format="onnx",
            dtype="fp32",
            fingerprint="f1",
            real_time=self._real_time,
        )
        here = pb.Runtime(name="onnxruntime", available=True, version="1.0", platforms=[platform])
        missing = pb.Runtime(name="tflite", missing="install latfarm-agent[tflite]")
        board = pb.Board(board_id="board-1", name="fake", boot_id="boot", hardware={"cpu": "fake"})
        return board, [here, missing]

    def measure(
        self,
        request: pb.MeasureRequest,
        model_path: Path,
        *,
        profile: bool,
        on_stage: Callable[[pb.Stage], None],
        cancelled: Callable[[], bool],
    ) -> pb.Result:
        """Two stages and a result."""
        with self._lock:
            self.at_once += 1
            assert self.at_once == 1, "two measurements at once"
        try:
            self.measured.append(request.request_id)
            on_stage(pb.Stage(name="loading", session=1))
            self.started.put(request)
            while not self._open.wait(0.005):
                if cancelled():
                    return pb.Result(outcome="infrastructure_error", error_code="CANCELLED")
            on_stage(pb.Stage(name="timing", session=1, elapsed_ms=1.0))
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            digest = hashlib.sha256(model_path.read_bytes()).hexdigest()
            layers = [pb.Layer(name="conv1", op="Conv", latency_ms=1.0)] if profile else []
            return pb.Result(
                outcome="ok",
                sessions=[pb.Session(load_ms=1.0, runs_ms=[int(digest[:4], 16) / 1000])],
                layers=layers,
                settings=request.settings,
            )
        finally:
            with self._lock:
                self.at_once -= 1

    def close(self) -> None:
        """Remember it."""
        self.closed = True
        self._open.set()


if __name__ == "__main__":
    sys.exit(main(make_bench=lambda args, work_dir: FakeBench()))
