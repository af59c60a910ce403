"""Simulated boards that need no file."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_agent.agent_config import AgentConfig
from latfarm_agent.arguments import make_parser
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import SimulatedBoard
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.rack.rack import Rack, RackConfig
from latfarm_agent.runtimes.simulated.built_in import BUILT_IN, built_in
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.runtimes.simulated.runtime import SimulatedRuntime
from latfarm_agent.service.server import ServiceConfig


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
    with pytest.raises(AgentUsageError, match=r"no file tpu, .* built in are: npu, gpu, cpu"):
        SimulatedBoard(options(tmp_path), Path("tpu"), Path("/"))


def test_a_profile_that_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(AgentUsageError, match=r"cannot be read: Is a directory$"):
        SimulatedBoard(options(tmp_path), tmp_path, Path("/"))
    empty = tmp_path / "empty.json"
    empty.touch()
    with pytest.raises(AgentUsageError, match=r"empty\.json: is not JSON: "):
        SimulatedBoard(options(tmp_path), empty, Path("/"))


def test_a_rack_takes_them_too(tmp_path: Path) -> None:
    Rack(RackConfig(Path("gpu"), 2, ServiceConfig(tmp_path)))
    with pytest.raises(AgentUsageError, match=r"PROFILE: there is no file tpu, .* npu, gpu, cpu"):
        Rack(RackConfig(Path("tpu"), 2, ServiceConfig(tmp_path)))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serv"], "did you mean serve?"),
        (["rack", "npu", "--boards", "0"], "'0' is not a whole number above 0"),
        (["serve", "--max-blob-mb", "-1"], "'-1' is not a whole number above 0"),
        (["serve", "--max-spooled", "1e9"], "'1e9' is not a whole number above 0"),
    ],
)
def test_wrong_arguments_of_the_agent_are_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
