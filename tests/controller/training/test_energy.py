"""Energies from the power rail to the prediction, on simulated boards whose truth is known.

The agent is a process of its own, and the data takes the same way as from any board: campaign,
agent, worker, wire, store, training, bundle, answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from latfarm_agent.runtimes.simulated.cost import exact_energy_mj
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_controller import builders, zoo
from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.app.app import Controller
from latfarm_controller.app.question import Found, Question
from latfarm_controller.cli import main
from latfarm_controller.config import ControllerConfig
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import InlineBackend
from latfarm_controller.reports import energy as report
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training import bundles
from latfarm_predictors.bundle import read_provenance
from latfarm_predictors.errors import NoEnergyError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from benchmarks.energy import PROFILE as BOARD

# The campaigns here compute for a minute or more; a busy host makes ten minutes of it.
pytestmark = pytest.mark.timeout(900)

PROFILE: dict[str, Any] = {**BOARD, "noise": 0.005}
CHARACTERIZE: dict[str, Any] = {
    "budget": 100,
    "calibration": 9,
    "calibration_draw": "scaled",  # like the networks that are held out
    "energy_ms": 10.0,
    "insight": "single",
    "exclude_lineages": ["mobilenet", "resnet", "squeezenet"],
    "fusion": {
        "pairs": [["conv", "relu"], ["conv", "bn"], ["relu", "conv"]],
        "sizes": ["small"],
        "profile": False,
    },
    "kernel_settings": {"max_runs": 20},
    "network_settings": {"max_runs": 10},
    "most_macs": 3e8,
}
HELD_OUT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mobilenet-v1", {"width": 0.5, "resolution": 160}),
    ("squeezenet", {"resolution": 128}),
    ("resnet18", {"resolution": 128}),
    ("mobilenet-v2", {"resolution": 96}),
)


class Farmhouse:
    """A home whose boards are simulated."""

    def __init__(self, home: Path, agents: dict[str, LocalAgent]) -> None:
        self.config = ControllerConfig(home=home, local_agent=False)
        self.config.make_dirs()
        for name, agent in agents.items():
            Registry(self.config.boards_file).add(name, agent.address)

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[Controller]:
        with DuckDBStore(self.config.store_file) as store:
            farm = Farm(InlineBackend(), "test", settings=ShardSettings("test", lease_ms=2000))
            controller = Controller(self.config, store, Fleet(self.config, "test"), farm)
            try:
                async with asyncio.timeout(840):
                    yield controller
            finally:
                await controller.close()


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalAgent]]:
    """A board with a power rail, and a board without one."""
    folder = tmp_path_factory.mktemp("boards")
    plain = {name: value for name, value in PROFILE.items() if name != "power"}
    made: dict[str, LocalAgent] = {}
    try:
        for name, profile in (("toy", PROFILE), ("bare", {**plain, "platform": "bare"})):
            file = folder / f"{name}.json"
            file.write_text(json.dumps(profile))
            options = LocalAgentOptions(folder / name, folder / f"{name}.log", name, simulate=file)
            made[name] = LocalAgent(options).__enter__()
        yield made
    finally:
        for agent in made.values():
            agent.__exit__(None, None, None)


@pytest.fixture(scope="module")
def house(
    tmp_path_factory: pytest.TempPathFactory, agents: dict[str, LocalAgent]
) -> Iterator[Farmhouse]:
    """A home in which a board was characterised with its energies."""
    house = Farmhouse(tmp_path_factory.mktemp("house") / "home", agents)

    async def characterize() -> None:
        async with house.controller() as controller:
            record = await controller.campaigns.start("characterize", "toy", CHARACTERIZE, "")
            *_, ended = [state async for state in controller.campaigns.watch(record.campaign_id)]
            assert ended.state == "done", ended.error
            assert ended.outcome["energy"]["measured"] >= 120
            assert ended.outcome["energy"]["unavailable"] == {}
            assert ended.outcome["accuracy"]["energy"]["rail"] == "simulated"

    asyncio.run(characterize())
    yield house
    if not house.config.ray_dir.is_relative_to(house.config.home):
        house.config.ray_dir.rmdir()
        house.config.ray_dir.parent.rmdir()


def truth_mj(graph: Graph) -> float:
    """The true energy, computed from the profile as the agent does it."""
    data = json.loads(builders.build(graph, "graph-json", "fp32"))
    return exact_energy_mj(data, BoardProfile.from_json(PROFILE))


@pytest.fixture(scope="module")
def held_out() -> list[Graph]:
    return [zoo.build(name, **options) for name, options in HELD_OUT]


async def ask(
    controller: Controller, graph: Graph, platform: str, *, energy: bool = True
) -> tuple[Measurement, bool]:
    question = replace(Question.about(graph, platform), tier="survey", energy=energy)
    async for event in controller.questions.ask(question):
        if isinstance(event, Found):
            return event.measurement, event.hit
    raise AssertionError("no answer")


def test_energies_of_networks_never_seen(house: Farmhouse, held_out: list[Graph]) -> None:
    predictor = bundles.open_bundle(house.config.bundles_dir, "toy")
    answers = predictor.predict_energies(held_out)
    errors = [a.energy_mj / truth_mj(g) - 1 for a, g in zip(answers, held_out, strict=True)]
    # This is from 100 kernels; `benchmarks/energy.py` shows the accuracy of a whole survey.
    assert median(map(abs, errors)) < 0.07, errors
    assert max(map(abs, errors)) < 0.12, errors
    more = [
        zoo.build(name, **{**options, "resolution": resolution})
        for name, options in HELD_OUT
        for resolution in (96, 128, 160, 192)
    ]
    inside = [
        answer.interval_mj[0] <= truth_mj(graph) <= answer.interval_mj[1]
        for answer, graph in zip(predictor.predict_energies(more), more, strict=True)
    ]
    # Four networks of a family share their error, so they count as one draw, not as four.
    assert sum(inside) >= 11, f"{sum(inside)} of {len(inside)}, at 90 %"
    for answer in answers:
        assert answer.calibrated
        assert answer.idle_mw == pytest.approx(3000.0, rel=1e-3)
        assert answer.rail == "simulated"


def test_what_a_bundle_tells_of_its_energies(house: Farmhouse) -> None:
    path = bundles.choose(house.config.bundles_dir, "toy")
    told = read_provenance(path)["energy"]
    assert told["rail"] == "simulated"
    assert (told["kernels"], told["networks"], told["left_out"]) == (CHARACTERIZE["budget"], 9, {})
    assert told["call_overhead_mj"] == pytest.approx(0.0255, rel=0.1)


def test_a_question_measures_what_the_profile_says_and_is_known_then(
    house: Farmhouse, held_out: list[Graph]
) -> None:
    async def main() -> None:
        async with house.controller() as controller:
            graph = held_out[0]
            plain, _ = await ask(controller, graph, "toy", energy=False)
            assert plain.energy_mj is None
            found, hit = await ask(controller, graph, "toy")
            assert not hit, "the one before tells no energy"
            assert found.energy_mj == pytest.approx(truth_mj(graph), rel=0.05)
            again, hit = await ask(controller, graph, "toy")
            assert hit
            assert again == found
            answer, energy = await controller.predict(graph, "toy", 0.9, True)
            assert energy is not None
            assert energy.bundle == answer.bundle
            rows = report.energy_rows({hash_of(graph): energy}, [plain, found])
            assert len(rows) == 1
            assert rows[0].inside
            assert "simulated" in report.section(rows)

    asyncio.run(main())


def test_a_board_without_a_rail_answers_and_says_why(
    house: Farmhouse, held_out: list[Graph]
) -> None:
    async def main() -> None:
        async with house.controller() as controller:
            found, _ = await ask(controller, held_out[0], "bare")
            assert found.ok
            assert found.energy_mj is None
            assert found.energy_story.startswith("ENERGY_UNAVAILABLE: ")

    asyncio.run(main())


def test_a_campaign_on_such_a_board_goes_on_without(house: Farmhouse) -> None:
    async def main() -> None:
        async with house.controller() as controller:
            config = {
                "count": 10,
                "settings": {"energy_ms": 10.0, "max_runs": 5, "cold_runs": 0},
            }
            record = await controller.campaigns.start("kernels", "bare", config, "")
            *_, ended = [state async for state in controller.campaigns.watch(record.campaign_id)]
            assert ended.state == "done", ended.error
            told = ended.outcome["energy"]
            assert told["measured"] == 0
            ((reason, count),) = told["unavailable"].items()
            assert reason.startswith("ENERGY_UNAVAILABLE")
            assert count == 6, "asked of the empty model and the sentinel alone"
            assert ended.outcome["kernels"] == 10

    asyncio.run(main())


@pytest.fixture
def latfarm(
    house: Farmhouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setenv("LATFARM_HOME", str(house.config.home))
    monkeypatch.setenv("LATFARM_LOCAL_AGENT", "false")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main.run(list(arguments))
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, held_out: list[Graph]) -> str:
    path = tmp_path_factory.mktemp("models") / "net.onnx"
    path.write_bytes(builders.build(held_out[0], "onnx", "fp32"))
    return str(path)


def test_the_command_line_predicts_millijoules(latfarm: Any, model: str) -> None:
    code, out, err = latfarm("predict", model, "-p", "toy", "--energy")
    assert code == 0, err
    assert "mJ an inference above rest, by simulated, 90% interval" in out
    (header,) = (line for line in out.splitlines() if line.startswith("kernel "))
    assert "mJ" in header
    code, out, err = latfarm("predict", model, "-p", "toy", "--energy", "--json")
    told = json.loads(out)
    assert told["energy"]["energy_mj"] > 0
    assert len(told["energy"]["kernels"]) == len(told["kernels"])
    code, out, err = latfarm("predict", model, "-p", "toy", "--json")
    assert "energy" not in json.loads(out)


def test_a_bundle_without_energies_names_the_remedy(
    house: Farmhouse, latfarm: Any, model: str
) -> None:
    from latfarm_predictors.bundle import save_bundle

    predictor = bundles.open_bundle(house.config.bundles_dir, "toy")
    predictor.energy = None
    predictor.platform = "plain"
    save_bundle(predictor, house.config.bundles_dir / "plain" / "0001.zip")
    with pytest.raises(NoEnergyError):
        predictor.predict_energies([])
    code, out, err = latfarm("predict", model, "-p", "plain", "--energy")
    assert code != 0
    assert out == ""
    assert "latfarm characterize --platform plain --energy" in err
    assert len(err.splitlines()) == 1
