"""Damaged answers of boards, through the controller's conversion and its real store.

Two thirds of the cases are `Result`s, one third `DescribeResponse`s. Each must become a typed value
or a typed error of that board. What becomes a value must be bounded and printable, and the store
must take it and give it back as it was.
"""

from __future__ import annotations

import math
import random
import re
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.agents import results, wire
from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import AgentError
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.store.base import BoardEvent
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_protos.v1 import agent_pb2 as pb

from benchmarks.fuzzing.mutants import Mutants
from benchmarks.fuzzing.part import PartReport

BATCH_CASES = 100
"""How many values are written to the store in one transaction."""
MEMORY_BYTES = 1 << 30
"""Largest growth of the peak memory of the process during a run, in bytes. What the process took
before the run does not count, because in a test run other tests have made it large."""
LONGEST_TEXT = 8192
"""Letters of the longest text that a value may have."""
MOST_PARTS = 100_000
"""Elements of the longest list or mapping that a value may have."""
_CODE = re.compile(r"[A-Z_]{1,40}")


def network() -> Graph:
    """The network that the requests measure."""
    b = GraphBuilder("fuzz")
    return b.build([b.relu(b.conv(b.input((1, 3, 8, 8)), 4, 3))])


def sound_board() -> pb.DescribeResponse:
    """What an honest board says about itself."""
    platforms = [
        pb.Platform(
            name=f"toy-onnxruntime1.31-{dtype}-1t",
            model_format="onnx",
            dtype=dtype,
            settings={"threads": "1"},
            fingerprint=f"{index:032x}",
            real_time=True,
        )
        for index, dtype in enumerate(("fp32", "int8"))
    ]
    return pb.DescribeResponse(
        board=pb.Board(
            board_id="5" * 32,
            name="toy",
            boot_id="0" * 36,
            hardware={"cpu": "Cortex-A76", "cores": "4"},
            conditions={"governor": "performance", "disk_room_bytes": "1000000"},
        ),
        runtimes=[
            pb.Runtime(name="onnxruntime", available=True, version="1.31", platforms=platforms),
            pb.Runtime(name="tflite", missing="it is not installed; pip install ai-edge-litert"),
        ],
        agent_version="0.1.0",
        protocol_version=1,
        state="idle",
    )


def sound_result(request: BoardRequest, board: pb.DescribeResponse) -> pb.Result:
    """An honest answer to a request, with every part that a result can have."""
    platform = board.runtimes[0].platforms[0]
    session = pb.Session(
        load_ms=5.0,
        compile_ms=1.0,
        first_run_ms=2.0,
        runs_ms=[1.0, 1.1, 1.05],
        rejected_runs=1,
        cold_ms=[3.0],
        slowdown=[1.0, 1.01, 1.0],
    )
    return pb.Result(
        request_id=request.request_id,
        outcome="ok",
        sessions=[session, session],
        layers=[pb.Layer(name="conv", op="Conv", latency_ms=0.5, device="cpu")]
        if request.profile
        else [],
        settings=wire.settings_as_pb(request.settings),
        conditions={"governor": "performance", "energy": "ok"},
        board_id=board.board.board_id,
        platform=platform.name,
        fingerprint=platform.fingerprint,
        protocol_version=1,
        measured_at_s=1.7e9,
        board_ms=50.0,
        memory_bytes=1 << 20,
        energy=pb.Energy(energy_mj=1.0, gross_mj=2.0, spread_mj=0.1, idle_mw=3.0, source="nvml:0"),
    )


def flaws(value: Any, where: str) -> Iterator[str]:
    """What is wrong in a domain object: numbers without bound, unprintable or long texts."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from flaws(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, str):
        if not value.isprintable():
            yield f"{where} is not printable: {value[:40]!r}"
        if len(value) > LONGEST_TEXT:
            yield f"{where} has {len(value)} letters"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{where} is {value}"
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            yield f"{where} is {value}"
    elif isinstance(value, Mapping | tuple | list):
        if len(value) > MOST_PARTS:
            yield f"{where} has {len(value)} elements"
        parts = [*value, *value.values()] if isinstance(value, Mapping) else [*value]
        for part in parts[:MOST_PARTS]:
            yield from flaws(part, f"{where}[]")


class MessageFuzzer:
    """Takes damaged messages as the controller does.

    Args:
        seed: of the damage.
        store: takes what becomes of the messages.
    """

    def __init__(self, seed: int, store: DuckDBStore) -> None:
        self._peak_before_bytes = _peak_bytes()
        self.report = PartReport(seed)
        self._dice = random.Random(seed)
        self._mutants = Mutants(self._dice)
        self._store = store
        self._graph = network()
        self._board = sound_board()
        self._honest = wire.board_from_pb(self._board)
        self._slowest_ms = 0.0
        self._stored = 0

    def take(self, numbers: range) -> None:
        """Make the cases of these numbers; what becomes of them is stored in one transaction."""
        measured: dict[int, Measurement] = {}
        for number in numbers:
            started_s = time.process_time()
            try:
                result = number % 3 > 0
                outcome = self._result(number, measured) if result else self._describe(number)
            except Exception as error:
                outcome = f"{type(error).__name__} is raised"
                self._violate(number, f"{outcome}: {str(error)[:200]!r}")
            self.report.outcomes[outcome] += 1
            spent_ms = 1e3 * (time.process_time() - started_s)
            self._slowest_ms = max(self._slowest_ms, spent_ms)
        self._keep(f"fuzz-{numbers.start}", measured)
        self.report.figures["slowest_ms"] = round(self._slowest_ms, 1)

    def _violate(self, number: int, text: str) -> None:
        self.report.violations.append(f"case {number}: {text}")

    def _result(self, number: int, measured: dict[int, Measurement]) -> str:
        settings = Settings(max_runs=100 + number, energy_ms=float(number % 2) * 100)
        platform = self._board.runtimes[0].platforms[0].name
        profile = number % 5 == 0
        request = BoardRequest.of(
            MeasurementRequest(self._graph, platform, "kernel", settings, profile=profile)
        )
        message = self._mutants.mutant(sound_result(request, self._board))
        if message is None:
            return "result: no message"
        found = results.measurement_from_pb(message, request, self._honest)
        measured[number] = found
        for flaw in flaws(found, "measurement"):
            self._violate(number, flaw)
        code = _CODE.fullmatch(found.error_code)
        return f"result: {code[0] if code else found.outcome}"

    def _describe(self, number: int) -> str:
        message = self._mutants.mutant(self._board)
        if message is None:
            return "describe: no message"
        try:
            info: BoardInfo = wire.board_from_pb(message)
        except AgentError as error:
            for flaw in flaws(str(error), "the error"):
                self._violate(number, flaw)
            return f"describe: {type(error).__name__}"
        for flaw in flaws(info, "board"):
            self._violate(number, flaw)
        event = BoardEvent("toy", "fuzzed", info.state, info.board_id, "farm", 1.0)
        self._store.add_board_event(event)
        return "describe: ok"

    def _keep(self, campaign: str, measured: Mapping[int, Measurement]) -> None:
        """Store values and read them again; a failing transaction is repeated one by one."""
        pairs = [(measurement, self._graph) for measurement in measured.values()]
        try:
            self._store.add_measurements(campaign, pairs)
        except Exception:
            for number, measurement in measured.items():
                try:
                    self._store.add_measurements(campaign, [(measurement, self._graph)])
                except Exception as error:
                    self._violate(number, f"the store raises {type(error).__name__}: {error}")
        try:
            found = self._store.campaign_measurements(campaign)
        except Exception as error:
            self._violate(min(measured), f"reading raises {type(error).__name__}: {error}")
            return
        self._stored += len(found)
        for number, measurement in measured.items():
            if found.get(measurement.request_id) != measurement:
                self._violate(number, "the store does not give back what it was given")

    def check_end(self) -> None:
        """Read all events that were stored, and check the memory that the process took."""
        try:
            self._store.board_events()
        except Exception as error:
            self._violate(-1, f"reading raises {type(error).__name__}: {error}")
        self.report.figures["stored_and_read"] = self._stored
        peak_bytes = _peak_bytes()
        self.report.figures["peak_mib"] = round(peak_bytes / 2**20)
        grown_bytes = peak_bytes - self._peak_before_bytes
        if grown_bytes > MEMORY_BYTES:
            self._violate(-1, f"the process grew by {grown_bytes} bytes")


def _peak_bytes() -> int:
    """The largest memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(count: int, seed: int) -> PartReport:
    """Make `count` damaged answers and take each as the controller does."""
    with tempfile.TemporaryDirectory() as folder, DuckDBStore(Path(folder) / "store") as store:
        fuzzer = MessageFuzzer(seed, store)
        for first in range(0, count, BATCH_CASES):
            fuzzer.take(range(first, min(first + BATCH_CASES, count)))
        fuzzer.check_end()
    return fuzzer.report
