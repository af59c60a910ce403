"""Boards with execution providers that no test host has, by a double of onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.testing.runtime_suite import PATIENT

HERE = Path(__file__).parent
REFERENCE = {"onnxruntime": "latfarm_agent.runtimes.onnxruntime.runtime:OnnxRuntime"}


class Board:
    """Makes benches on a double of onnxruntime, and reads what their sessions were given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.benches: list[Bench] = []

    def bench(self, machine: dict[str, Any], providers: Any = None, threads: int = 1) -> Bench:
        plugins = self.folder / "plugins"
        plugins.mkdir(exist_ok=True)
        double = (HERE / "fake_onnxruntime.py").read_text()
        (plugins / "onnxruntime.py").write_text(double)
        (plugins / "machine.json").write_text(json.dumps(machine))
        options = {} if providers is None else {"providers": providers}
        config = AgentConfig(
            (threads,),
            {"onnxruntime": RuntimeConfig(options=options)},
            confinement=Confinement(write=(str(plugins),)),
        )
        bench = host_bench(
            BenchOptions(
                "board",
                "hw",
                self.folder / "work",
                runtimes=REFERENCE,
                search_path=[plugins],
                config=config,
                limits=PATIENT,
            )
        )
        self.benches.append(bench)
        return bench

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """What the sessions were given, oldest first, without the probes of `describe`."""
        lines = (self.folder / "plugins" / "sessions.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [told for told in found if not told["probe"]]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path)
    yield made
    for bench in made.benches:
        bench.close()


@pytest.fixture
def missing_of() -> Callable[[Bench], str | None]:
    """A function that returns why onnxruntime is missing on a bench; None if it is not."""

    def ask(bench: Bench) -> str | None:
        (mine,) = bench.describe()[1]
        return str(mine.missing) or None

    return ask
