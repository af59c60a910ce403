"""Simulated boards that need no file."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_agent.agent_config import AgentConfig
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import SimulatedBoard
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.runtimes.simulated.built_in import BUILT_IN, built_in
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.runtimes.simulated.runtime import SimulatedRuntime


def options(folder: Path) -> BenchOptions:
    return BenchOptions("toy", None, folder, config=AgentConfig())


@pytest.mark.parametrize("kind", sorted(BUILT_IN))
def test_each_is_a_board_with_a_platform_of_its_own(kind: str, tmp_path: Path) -> None:
    assert BoardProfile.read(Path(kind)) == BoardProfile.from_json(built_in(kind))
    board = SimulatedBoard(options(tmp_path), Path(kind), Path("/"))
    given = board.configured["simulated"].options
    (platform,) = SimulatedRuntime(**given).describe().platforms
    assert platform.name == f"sim-{kind}"


def test_a_file_of_that_name_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("npu").write_text('{"platform": "mine"}')
    assert BoardProfile.read(Path("npu")).platform == "mine"
    board = SimulatedBoard(options(tmp_path), Path("npu"), Path("/"))
    assert board.configured["simulated"].options["profile"] == str(tmp_path / "npu")


def test_a_name_that_is_neither_lists_those_that_are_built_in(tmp_path: Path) -> None:
    with pytest.raises(AgentUsageError, match="built in are: npu, gpu, cpu"):
        SimulatedBoard(options(tmp_path), Path("tpu"), Path("/"))
