"""A farm of eight boards is upgraded under a running campaign, and rolled back under another one.

The controller is `latfarm serve` with Ray. Agents, workers and playbooks are real; the boards
compute their latencies, so that two cores can run eight of them. Both releases log what they
measure, so that the boards tell, besides the store, that nothing was lost or measured twice.
Each test starts from the state in which the previous test ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.app.summaries import CampaignSummary
from latfarm_predictors.graph.builder import GraphBuilder

from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeBoards, MakeController
from tests.farm.lab import releases
from tests.farm.lab.enrolment import LabController, PlaybookResult
from tests.farm.lab.monitored_board import PROFILE
from tests.farm.lab.processes import until
from tests.farm.lab.releases import SLOW
from tests.farm.lab.serving import serving

pytestmark = [pytest.mark.farm, pytest.mark.timeout(1800)]

BOARDS = 8
CANARY, BATCH = 1, 4
"""Boards of the first batch of a playbook, and most boards of each later one."""

OLD, NEW = "0.1.0", "0.2.0"
"""Versions of the two releases; a controller works with agents that are one minor version off."""

PLATFORM = "sim1.0-fp32-1t"
PROFILE_FILE = "/srv/board.json"
NETWORKS, PASSES = 100, 20
"""Networks of a campaign, and how often each is measured: far more than boards that measure slowly
carry out while a playbook runs."""

SETTINGS = {
    "sessions": 1,
    "warmup_runs": 1,
    "warmup_ms": 0.0,
    "min_runs": 3,
    "max_runs": 3,
    "max_ms": 1.0,
}
"""How each network is measured; the passes of a network are requests of their own."""

EXACT = {"noise": 0.0, "session_noise": 0.0}
"""Boards without noise: a network has the same latency on each board and under each release."""


@dataclass(frozen=True)
class UpgradeLab:
    """The boards, their controller and a client of it, and folders with wheels of both releases."""

    boards: list[VirtualBoard]
    controller: LabController
    client: ControllerClient
    old: Path
    new: Path

    @property
    def names(self) -> list[str]:
        """Names of the boards."""
        return [board.name for board in self.boards]

    def play(self, name: str, wheels: Path) -> PlaybookResult:
        """Run a playbook in batches; it must succeed."""
        played = self.controller.play(
            name,
            latfarm_own_wheels=str(wheels),
            latfarm_canary=CANARY,
            latfarm_upgrade_serial=BATCH,
        )
        assert played.well, played.out
        return played

    def versions(self) -> set[str]:
        """The versions of the agents that run now."""
        told = (self.controller.latfarm("boards", "check", name, "--json") for name in self.names)
        return {each["agent_version"] for each in told}

    def releases(self) -> set[str]:
        """The releases that the boards use now."""
        return {board.run("readlink /opt/latfarm/venv").stdout.strip() for board in self.boards}

    def decisions(self) -> list[tuple[str, str]]:
        """Boards that were drained or resumed, oldest first: the event and the board's name."""
        events = reversed(self.client.board_events(""))  # they are told newest first
        return [(each.event, each.board) for each in events if each.event in ("drained", "resumed")]


@pytest.fixture(scope="module")
def lab(
    make_controller: MakeController,
    make_boards: MakeBoards,
    own_wheels: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[UpgradeLab]:
    folder = tmp_path_factory.mktemp("releases")
    own = own_wheels[0].parent
    old, new = (releases.release(own, folder / version, version) for version in (OLD, NEW))
    boards = make_boards(*(f"nuc-{number}" for number in range(BOARDS)))
    for board in boards:
        board.write(PROFILE_FILE, json.dumps({"platform": PLATFORM, **PROFILE, **EXACT}))
    controller = make_controller(
        boards,
        latfarm_own_wheels=str(old),
        latfarm_runtimes=[],
        latfarm_work_options=["--simulate", PROFILE_FILE],
        latfarm_hardware="sim",
        latfarm_compile=False,
    )
    enrolled = controller.play("enroll.yml")
    assert enrolled.well, enrolled.out
    with serving(controller, folder / "serve.log") as client:
        yield UpgradeLab(boards, controller, client, old, new)


def campaign_config(least_width: int) -> dict[str, Any]:
    """The configuration of a campaign of small networks; each width gives a different network."""
    graphs = []
    for width in range(least_width, least_width + NETWORKS):
        builder = GraphBuilder(f"net-{width}")
        x = builder.input((1, 3, 8, 8))
        graphs.append(builder.build([builder.relu(builder.conv(x, width, 3))]).to_json())
    return {"graphs": graphs, "settings": SETTINGS, "passes": PASSES}


def all_measure(lab: UpgradeLab, campaign: CampaignSummary, version: str) -> bool:
    """Whether each board has measured for the campaign with agents of this version."""
    results = lab.client.results(campaign_id=campaign.campaign_id, purpose="network")
    stored = {each.request_id for each in results}
    done = (each for each in releases.carried_out(lab.boards) if each.version == version)
    return {each.board for each in done if each.request_id in stored} == set(lab.names)


def play_under_a_campaign(
    lab: UpgradeLab, playbook: str, wheels: Path, versions: tuple[str, str], least_width: int
) -> CampaignSummary:
    """Change the release of all boards while a campaign runs; gives the campaign when it is done.

    Args:
        lab: the farm.
        playbook: changes the release.
        wheels: folder with the wheels of the checkout from which the playbook is run.
        versions: version of the agents before and after it.
        least_width: of the campaign's networks.
    """
    for board in lab.boards:
        board.write(SLOW, "")
    config = campaign_config(least_width)
    campaign = lab.client.start("networks", PLATFORM, config, playbook)
    before, after = versions
    until(partial(all_measure, lab, campaign, before), f"each board measures as {before}")
    lab.play(playbook, wheels)
    now = lab.client.campaign(campaign.campaign_id)
    assert now.state == "running", now
    until(partial(all_measure, lab, campaign, after), f"each board measures as {after}")
    for board in lab.boards:
        board.run(["rm", SLOW])
    *_, ended = lab.client.watch(campaign.campaign_id)
    return ended


def check_that_each_request_was_measured_once(lab: UpgradeLab, campaign: CampaignSummary) -> None:
    """The store has one good result of each request, and boards have measured no request twice."""
    assert campaign.state == "done", campaign.error
    assert campaign.failures == 0
    found = list(lab.client.results(campaign_id=campaign.campaign_id, purpose="network"))
    assert {(each.outcome, each.error_code) for each in found} == {("ok", "")}
    passes = Counter(each.graph_hash for each in found)
    assert len(passes) == NETWORKS
    assert set(passes.values()) == {PASSES}
    asked = {each.request_id for each in found}
    assert len(asked) == len(found) == NETWORKS * PASSES
    # What the boards have measured, in their own words, is what the store has: nothing twice.
    ids = {name: entry["board_id"] for name, entry in lab.controller.boards.items()}
    done = [each for each in releases.carried_out(lab.boards) if each.request_id in asked]
    ends = Counter(each.outcome for each in done)
    assert ends == {"ok": len(found)}, (ends, releases.reasons(lab.boards))
    stored = sorted((each.request_id, each.board_id) for each in found)
    assert sorted((each.request_id, ids[each.board]) for each in done) == stored
    latencies = {(each.graph_hash, each.latency_ms) for each in found}
    assert len(latencies) == NETWORKS, "a release or a board changes latencies"


def check_batches(decisions: list[tuple[str, str]], names: list[str]) -> None:
    """Each board was drained and resumed once: the canary alone, the others in batches."""
    assert Counter(decisions) == Counter(
        (event, name) for event in ("drained", "resumed") for name in names
    )
    (_, canary), follows = decisions[0], decisions[1]
    assert follows == ("resumed", canary)
    away = [0]  # how many boards are drained after each decision
    for event, _ in decisions[2:]:
        away.append(away[-1] + (1 if event == "drained" else -1))
    assert max(away) == BATCH


def test_a_farm_is_upgraded_under_a_running_campaign(lab: UpgradeLab) -> None:
    before = lab.releases()
    assert len(before) == 1
    assert lab.versions() == {OLD}
    decided = len(lab.decisions())
    campaign = play_under_a_campaign(lab, "upgrade.yml", lab.new, (OLD, NEW), 1)
    assert lab.versions() == {NEW}
    after = lab.releases()
    assert len(after) == 1
    assert after != before
    check_batches(lab.decisions()[decided:], lab.names)
    check_that_each_request_was_measured_once(lab, campaign)


def test_a_farm_is_rolled_back_under_a_running_campaign(lab: UpgradeLab) -> None:
    upgraded = lab.releases()
    decided = len(lab.decisions())
    campaign = play_under_a_campaign(lab, "rollback.yml", lab.new, (NEW, OLD), 1 + NETWORKS)
    assert lab.versions() == {OLD}
    (former,) = lab.releases()
    assert former not in upgraded
    check_batches(lab.decisions()[decided:], lab.names)
    check_that_each_request_was_measured_once(lab, campaign)
    for board in lab.boards:
        assert board.failed_units() == []
    again = lab.play("rollback.yml", lab.new)
    assert again.changed == dict.fromkeys(lab.names, 0)
