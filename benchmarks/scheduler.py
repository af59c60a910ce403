"""What the scheduler costs for each measurement, against the number of boards.

    make bench-scheduler

A campaign keeps twice as many requests open as its boards can hold, each for a model of its own, so
that all parts of the scheduler have work: requests arrive, models are built, boards answer. One
event is handled at a time, which is the worst case: the farm hands over all that have come since it
last looked. `--retries` lets a share of the measurements fail. Prints the median and the mean CPU
time of one measurement, from five runs, beside the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import deque
from pathlib import Path
from statistics import median

from latfarm_controller.farm.scheduling.messages import (
    BoardJoined,
    Build,
    BuildReady,
    Deliver,
    Dispatch,
    Event,
    Instruction,
    ModelSpec,
    RequestsQueued,
    ResultReceived,
    Tick,
    Withdraw,
    Withdrawn,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_predictors.measurement import Measurement, Outcome

BOARDS = (8, 64, 256, 1000)
"""Numbers of boards."""
RUNS = 5
"""How often each number of boards is timed."""
MODEL_BYTES = 100_000
"""Size of each model, in bytes."""


class Farm:
    """Boards and builders that do at once what the scheduler says.

    Args:
        boards: number of boards.
        retries: share of the measurements that fail with an error of the board.
    """

    def __init__(self, boards: int, retries: float) -> None:
        self._retries = retries
        self._rng = random.Random(0)
        self._scheduler = Scheduler()
        self._names = [f"b{number}" for number in range(boards)]
        self._at: dict[str, deque[str]] = {name: deque() for name in self._names}
        self._builds: deque[ModelSpec] = deque()
        self._number = 0
        self._now_s = 0.0
        self.delivered = 0
        self.spent_s = 0.0
        self._send(*(BoardJoined(name, ("p",)) for name in self._names))
        self._submit(6 * boards)

    def measure(self, count: int) -> None:
        """Let boards answer until `count` more requests are delivered."""
        target = self.delivered + count
        while self.delivered < target:
            while self._builds:
                self._send(BuildReady(self._builds.popleft(), MODEL_BYTES))
            busy = [name for name in self._names if self._at[name]]
            if not busy:
                self._now_s += 1.0
                self._send(Tick())
            for name in busy:
                if self._at[name]:
                    self._answer(name)

    def _answer(self, name: str) -> None:
        request_id = self._at[name].popleft()
        failed = self._rng.random() < self._retries
        outcome = Outcome.INFRASTRUCTURE_ERROR if failed else Outcome.OK
        measurement = Measurement(
            request_id=request_id,
            graph_hash="",
            platform="p",
            purpose="kernel",
            outcome=outcome,
            error_code="BROKEN" if failed else "",
        )
        self._now_s += 0.001
        self._send(ResultReceived(name, measurement))

    def _submit(self, count: int) -> None:
        works = []
        for _ in range(count):
            self._number += 1
            model = ModelSpec(f"g{self._number}", "onnx", "fp32")
            works.append(Work(f"r{self._number}", "p", model, "kernel", MODEL_BYTES))
        self._send(RequestsQueued("c", tuple(works)))

    def _send(self, *events: Event) -> None:
        started_s = time.process_time()
        instructions = self._scheduler.handle(self._now_s, *events)
        self._scheduler.wake_at_s()
        self.spent_s += time.process_time() - started_s
        self._obey(instructions)

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Build(models):
                    self._builds.extend(models)
                case Dispatch(board_id, request_id):
                    self._at[board_id].append(request_id)
                case Withdraw(board_id, request_id) if request_id in self._at[board_id]:
                    self._at[board_id].remove(request_id)
                    self._send(Withdrawn(board_id, request_id))
                case Deliver():
                    self.delivered += 1
                    self._submit(1)
                case _:
                    pass


def cost_ms(boards: int, count: int, retries: float) -> float:
    """CPU time of the scheduler for one measurement, in ms."""
    farm = Farm(boards, retries)
    farm.measure(boards)
    farm.spent_s = 0.0
    before = farm.delivered
    farm.measure(count)
    return 1e3 * farm.spent_s / (farm.delivered - before)


def main() -> None:
    """Print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--boards", type=int, nargs="+", default=list(BOARDS))
    parser.add_argument("--count", type=int, default=1000, help="measurements of each run")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--retries", type=float, default=0.0, help="share that fails, 0 to 1")
    parser.add_argument("--write", type=Path, help="file for the figures")
    options = parser.parse_args()
    rows = []
    for boards in options.boards:
        costs = [cost_ms(boards, options.count, options.retries) for _ in range(options.runs)]
        row = {
            "boards": boards,
            "median_ms": round(median(costs), 4),
            "runs_ms": [round(c, 4) for c in costs],
        }
        rows.append(row)
        print(f"{boards:5d} boards: {row['median_ms']:.3f} ms a measurement {row['runs_ms']}")
    print(f"load {os.getloadavg()[0]:.2f}")
    if options.write is not None:
        figures = {"retries": options.retries, "load_1m": os.getloadavg()[0], "rows": rows}
        options.write.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
