"""Benches on doubles of OpenVINO's devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, Mapping

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.testing.runtime_suite import PATIENT

HERE = Path(__file__).parent
REFERENCES = {
    "openvino": "latfarm_agent.runtimes.openvino.runtime:OpenVinoRuntime",
    "openvino2021": "latfarm_agent.runtimes.openvino.runtime_2021:OpenVino2021Runtime",
}


class Board:
    """A folder with a double of OpenVINO, and the benches that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugins = folder / "plugins"
        self.benches: list[Bench] = []

    def bench(self, name: str, machine: Mapping[str, Any], **options: Any) -> Bench:
        """Make a bench whose only runtime is `name`, with `options`, on the described machine."""
        if name == "openvino":
            self._put("fake_openvino.py", self.plugins / "openvino.py")
        else:
            self._put("fake_engine.py", self.plugins / "openvino" / "inference_engine.py")
        self.change(machine)
        bench = host_bench(
            BenchOptions(
                "board",
                "hw",
                self.folder / "work",
                runtimes={name: REFERENCES[name]},
                search_path=[self.plugins],
                config=AgentConfig(
                    runtimes={name: RuntimeConfig(options=options)},
                    confinement=Confinement(write=(str(self.plugins),)),
                ),
                limits=PATIENT,
            )
        )
        self.benches.append(bench)
        return bench

    def change(self, machine: Mapping[str, Any]) -> None:
        """Change the devices of the machine, as by plugging a stick in or out."""
        (self.plugins / "machine.json").write_text(json.dumps(machine))

    def told(self, log: str) -> list[dict[str, Any]]:
        """Return what the double has written to a log."""
        return [json.loads(line) for line in (self.plugins / log).read_text().splitlines()]

    def _put(self, source: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((HERE / source).read_text())


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path)
    yield made
    for bench in made.benches:
        bench.close()
