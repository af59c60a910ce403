"""The agent's conformance suite tests the numpy runtime; this file makes the models for it."""

from __future__ import annotations

import json
from pathlib import Path

from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.testing.runtime_suite import RuntimeSuite
from latfarm_agent.worker.pool import WorkerLimits

RUNTIMES = {"numpy": "latfarm_numpy.runtime:NumpyRuntime"}


def write(path: Path, op: str = "Relu", *shapes: tuple[int, ...]) -> Path:
    """Write a graph of one op."""
    inputs = {f"x{index}": {"shape": shape} for index, shape in enumerate(shapes or ((1, 8),))}
    node = {"name": "only", "op": op, "inputs": list(inputs), "outputs": ["y"]}
    graph = {"nodes": [node], "inputs": list(inputs), "types": inputs, "weights": {}}
    path.write_text(json.dumps(graph))
    return path


class TestNumpy(RuntimeSuite):
    """What the conformance suite needs to know about this runtime."""

    runtime = "numpy"
    model_format = "graph-json"

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        """A bench of the agent with only this runtime."""
        return host_bench(BenchOptions("board", None, directory, runtimes=RUNTIMES, limits=limits))

    def make_model(self, directory: Path) -> Path:
        """A model that runs."""
        return write(directory / "model.json")

    def make_unsupported(self, directory: Path) -> Path | None:
        """A model with an op that this runtime lacks."""
        return write(directory / "unsupported.json", "NoSuchOp")

    def make_greedy(self, directory: Path) -> Path | None:
        """A model that needs 4 GB."""
        return write(directory / "greedy.json", "Add", (1 << 15, 1), (1, 1 << 15))

    def make_lacking(self, directory: Path) -> Bench | None:
        """A bench on which numpy cannot be imported."""
        (directory / "numpy.py").write_text("raise ImportError('not on this board')\n")
        return host_bench(
            BenchOptions("board", None, directory, runtimes=RUNTIMES, search_path=[directory])
        )

    def make_misconfigured(self, directory: Path, option: str) -> Bench | None:
        """A bench with an option that this runtime does not have."""
        config = AgentConfig(runtimes={"numpy": RuntimeConfig(options={option: 1})})
        return host_bench(BenchOptions("board", None, directory, runtimes=RUNTIMES, config=config))
