"""The rounds in which judging networks are measured, with a controller that only notes calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.app.summaries import CampaignSummary
from latfarm_controller.cli.campaigns.judging_rounds import ROUNDS, JudgingRounds
from latfarm_controller.cli.shell.progress import follow

STAGES = ("overhead", "fusion", "kernels", "context", "networks", "training: kernels")


def summary(name: str, **more: Any) -> CampaignSummary:
    return CampaignSummary(name, name, "networks", "sim", **more)


class NotedClient:
    """Answers like a client of the controller, and notes what was asked of it."""

    hosted = True

    def __init__(self, stages: tuple[str, ...]) -> None:
        self.stages = stages
        self.told: list[str] = []
        self.configs: dict[str, Mapping[str, Any]] = {}

    def start(
        self, kind: str, platform: str, config: Mapping[str, Any], name: str
    ) -> CampaignSummary:
        self.told.append(f"start {name}")
        self.configs[name] = {"kind": kind, "platform": platform, **config}
        return summary(name)

    def watch(self, campaign_id: str) -> Iterator[CampaignSummary]:
        for stage in self.stages if campaign_id == "characterize" else ("networks",):
            for done in (0, 1):
                yield summary(campaign_id, state="running", stage=stage, stage_done=done)
        yield summary(campaign_id, state="done", stage=self.stages[-1])
        self.told.append(f"end {campaign_id}")

    def campaign(self, campaign_id: str) -> CampaignSummary:
        return summary(campaign_id, state="done")

    def results(self, *, campaign_id: str, purpose: str) -> list[Any]:
        assert purpose == "network"
        return [SimpleNamespace(campaign=campaign_id)]


def run(stages: tuple[str, ...]) -> tuple[NotedClient, list[Any]]:
    noted = NotedClient(stages)
    client = cast(ControllerClient, noted)
    rounds = JudgingRounds(client, "sim", [{"name": "net"}], "judged", seed=3)
    rounds.before()
    follow(client, "characterize", rounds.on_stage)
    return noted, rounds.after()


def test_the_rounds_are_spread_over_the_characterisation() -> None:
    noted, answers = run(STAGES)
    assert noted.told == [
        "start judged-1",
        "end judged-1",
        "start judged-2",  # when kernels are measured
        "start judged-3",  # when the calibration networks are measured
        "end characterize",
        "end judged-1",
        "end judged-2",
        "end judged-3",
        "start judged-4",
        "end judged-4",
    ]
    assert [answer.campaign for answer in answers] == [f"judged-{n}" for n in (1, 2, 3, 4)]
    assert len(answers) == ROUNDS


def test_each_round_is_a_pass_in_another_order() -> None:
    noted, _ = run(STAGES)
    configs = [noted.configs[f"judged-{n}"] for n in (1, 2, 3, 4)]
    assert [config["passes"] for config in configs] == [1, 1, 1, 1]
    assert [config["earlier_passes"] for config in configs] == [0, 1, 2, 3]
    assert len({config["seed"] for config in configs}) == ROUNDS
    assert all(config["settings"] == {"sessions": 2} for config in configs)
    assert {(config["kind"], config["platform"]) for config in configs} == {("networks", "sim")}


@pytest.mark.parametrize("stages", [("kernels",), ("overhead", "fusion"), ("training",)])
def test_rounds_without_their_stage_are_measured_afterwards(stages: tuple[str, ...]) -> None:
    noted, answers = run(stages)
    started = [told for told in noted.told if told.startswith("start")]
    assert started == [f"start judged-{n}" for n in (1, 2, 3, 4)]
    assert len(answers) == ROUNDS


def test_rounds_that_are_not_allowed_are_left_out() -> None:
    noted = NotedClient(STAGES)
    client = cast(ControllerClient, noted)
    answers = iter([True, False, False, False])
    rounds = JudgingRounds(
        client, "sim", [{"name": "net"}], "judged", allows=lambda: next(answers, False)
    )
    stages: list[str] = []
    assert rounds.before(stages.append).campaign_id == "judged-1"
    assert stages == ["networks"]
    follow(client, "characterize", rounds.on_stage)
    found = cast(list[Any], rounds.after())
    assert [answer.campaign for answer in found] == ["judged-1", "judged-2"]
    assert rounds.started == 2
