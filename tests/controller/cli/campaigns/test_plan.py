"""`latfarm plan`, and the first lines of campaigns, with a controller that only answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.app.summaries import CampaignSummary, PlatformSummary
from latfarm_controller.campaigns.networks.campaign import SETTINGS
from latfarm_controller.cli.campaigns import characterize, plan
from latfarm_controller.cli.shell import connect, host_now
from latfarm_controller.cli.shell.host_now import HostNow
from latfarm_controller.errors import UsageError
from latfarm_predictors.measurement import Measurement, Outcome

BUSY = HostNow(2, 1.9, 0.0, 0.3, 0.5)


class Answering:
    """Answers like a client of the controller that knows one platform of this machine."""

    hosted = True

    def __init__(self, state: str = "") -> None:
        self.state = state

    def platforms(self, tags: Sequence[str]) -> list[PlatformSummary]:
        return [
            PlatformSummary("toy-fp32", boards=("local",), available=True),
            PlatformSummary("far-fp32", boards=("pixel4",), available=True),
        ]

    def results(self, *, platform: str, limit: int) -> Iterator[Measurement]:
        if platform != "toy-fp32":
            raise UsageError("nothing was measured on it")
        for _ in range(9):
            yield Measurement("r", "g", platform, "kernel", Outcome.OK, board_ms=120.0)

    def campaign(self, campaign_id: str) -> CampaignSummary:
        if not self.state:
            raise UsageError("there is no such campaign")
        return CampaignSummary(campaign_id, "c", "characterize", "toy-fp32", state=self.state)


@pytest.fixture
def client(home: Path, monkeypatch: pytest.MonkeyPatch) -> ControllerClient:
    del home
    monkeypatch.setattr(host_now, "look", lambda: BUSY)
    return cast(ControllerClient, Answering())


def test_only_a_board_that_is_this_machine_is_looked_at(client: ControllerClient) -> None:
    near = plan.plan_of(client, "toy-fp32", {"measurements": 500})
    assert near.host is BUSY
    assert {s.stage for s in near.forecast.stages if s.known} == {"kernels"}
    far = plan.plan_of(client, "far-fp32", {"measurements": 500, "budget_minutes": 1.0})
    assert far.host is None
    assert far.forecast.minutes == 1.0
    assert plan.plan_of(client, "toy-fp32", {}, look_at_host=False).host is None


def test_the_sessions_of_calibration_networks_are_divided_among_passes(
    client: ControllerClient,
) -> None:
    far = plan.plan_of(client, "far-fp32", {"measurements": 500, "calibration": 20})
    (networks,) = (s for s in far.forecast.stages if s.stage == "calibration networks")
    assert (networks.measurements, networks.known) == (40, False)
    each_ms = SETTINGS.warmup_ms + SETTINGS.max_ms
    assert networks.minutes == pytest.approx(40 * 3 * each_ms / 60_000)  # three and two sessions


def test_an_unknown_platform_offers_the_nearest(client: ControllerClient) -> None:
    with pytest.raises(UsageError, match="did you mean toy-fp32"):
        plan.plan_of(client, "toy-fp16", {})


def test_the_first_lines_tell_cost_noise_and_what_is_waited_for(
    client: ControllerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.first_line(plan.plan_of(client, "toy-fp32", {"measurements": 500}), starts_ray=True)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("plan: 500 measurements, about ")
    assert second.startswith("this host is too noisy to judge predictions")
    assert "what would help: end other programs" in second
    assert third.startswith("starting Ray")


def test_what_the_noise_allows(client: ControllerClient) -> None:
    told = plan.Plan(plan.plan_of(client, "far-fp32", {}).forecast, None, 0.05)
    assert "68% are within 5 %" in told.allows
    assert "95% within 10 %" in told.allows
    assert told.to_json()["noise"] == 0.05


def test_the_command_prints_a_table(
    client: ControllerClient, latfarm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def answering(_wait_s: float = 0.0) -> Iterator[ControllerClient]:
        yield client

    monkeypatch.setattr(connect, "controller", answering)
    ended = latfarm("plan", "-p", "toy-fp32", "--budget", "200", "--budget-minutes", "0.5")
    assert ended.code == 0, ended
    assert "calibration networks" in ended.out
    assert "leaves out some" in ended.out
    assert "too noisy to judge" in ended.out


@pytest.mark.parametrize(("state", "done"), [("", False), ("interrupted", False), ("done", True)])
def test_a_finished_characterisation_has_no_plan(state: str, done: bool) -> None:
    client = cast(ControllerClient, Answering(state))
    assert characterize._is_done(client, "toy-fp32", {"measurements": 500}, "") is done
