"""The conformance suite on a real OpenVINO 2021.4 or 2022.3, in a worker with an older Python.

LATFARM_PYTHON_OPENVINO2021 names the interpreter of its environment (docs/how-to/ncs2.md). The
tests measure on the CPU; a stick is used by the same calls.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.testing.runtime_suite import RuntimeSuite, measure
from latfarm_agent.worker.pool import WorkerLimits

PYTHON = os.environ.get("LATFARM_PYTHON_OPENVINO2021", "")
ONLY = {"openvino2021": "latfarm_agent.runtimes.openvino.runtime_2021:OpenVino2021Runtime"}


@pytest.mark.skipif(
    not PYTHON, reason="LATFARM_PYTHON_OPENVINO2021 names no interpreter with openvino 2021.4"
)
class TestOpenVino2021(RuntimeSuite):
    runtime = "openvino2021"
    model_format = "onnx"

    @pytest.fixture(autouse=True)
    def _files(self, onnx_file: Callable[..., Path]) -> None:
        self._write = onnx_file

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        config = AgentConfig(runtimes={"openvino2021": RuntimeConfig(PYTHON)})
        return host_bench(
            BenchOptions("board", None, directory, runtimes=ONLY, config=config, limits=limits)
        )

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model")

    def make_unsupported(self, directory: Path) -> Path | None:
        return self._write(directory / "custom", "custom")

    def make_greedy(self, directory: Path) -> Path | None:
        return self._write(directory / "greedy", "greedy")

    def make_misconfigured(self, directory: Path, option: str) -> Bench | None:
        config = AgentConfig(runtimes={"openvino2021": RuntimeConfig(PYTHON, {option: 1})})
        return host_bench(BenchOptions("board", None, directory, runtimes=ONLY, config=config))

    def test_layers_name_what_was_fused(self, bench: Bench, platform: str, model: Path) -> None:
        result = measure(bench, platform, model, profile=True)
        covered = [part for layer in result.layers for part in layer.name.split("+")]
        assert "conv0+bn0+relu0" in {layer.name for layer in result.layers}
        assert {"conv0", "bn0", "relu0", "conv1", "add1", "sigmoid1"} <= set(covered)
        assert len(covered) == len(set(covered))
        assert all(layer.device.startswith("CPU ") for layer in result.layers)

    @pytest.mark.parametrize(
        ("kind", "code", "says"),
        [
            ("open", "MODEL_INVALID", "open dimension"),
            ("future", "MODEL_UNSUPPORTED", "opset 9999"),
            ("int", "", ""),
        ],
    )
    def test_inputs(
        self, bench: Bench, platform: str, tmp_path: Path, kind: str, code: str, says: str
    ) -> None:
        result = measure(bench, platform, self._write(tmp_path / "m", kind))
        assert result.error_code == code
        assert says in result.error_message


def test_without_it_there_is_a_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "shadow"
    folder.mkdir()
    (folder / "openvino.py").write_text("raise ImportError('not on this board')\n")
    bench = host_bench(BenchOptions("board", None, tmp_path, runtimes=ONLY, search_path=[folder]))
    try:
        (mine,) = bench.describe()[1]
    finally:
        bench.close()
    assert not mine.available
    assert not mine.platforms
    assert "install" in mine.missing
    assert "ncs2.md" in mine.missing
