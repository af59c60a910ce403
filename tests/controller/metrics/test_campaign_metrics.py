"""Metrics of campaigns: their names, states and progress, with a bounded number of series."""

from __future__ import annotations

from collections.abc import Mapping

from latfarm_controller.metrics.campaigns import (
    CAMPAIGN_STATES,
    MOST_CAMPAIGNS,
    MOST_NAMES,
    CampaignNames,
)
from latfarm_controller.metrics.metrics import ControllerMetrics
from latfarm_controller.store.base import CampaignRecord
from latfarm_predictors.measurement import Measurement, Outcome

PREFIX = "latfarm_controller_"
NIGHT = {"campaign": "kernels-1", "name": "night", "platform": "p"}


def record(number: int, **fields: object) -> CampaignRecord:
    base: Mapping[str, object] = {
        "campaign_id": f"kernels-{number}",
        "name": f"night {number}",
        "kind": "kernels",
        "platform": "p",
        "started_at_s": float(number),
    }
    return CampaignRecord(**(dict(base) | fields))  # type: ignore[arg-type]


def value(metrics: ControllerMetrics, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(PREFIX + name, labels)


def test_each_state_has_its_number_from_the_start() -> None:
    metrics = ControllerMetrics()
    for state in CAMPAIGN_STATES:
        assert value(metrics, "campaigns", state=state) == 0
    metrics.campaigns.saw([record(1), record(2, state="failed"), record(3, state="failed")])
    assert value(metrics, "campaigns", state="running") == 1
    assert value(metrics, "campaigns", state="failed") == 2
    metrics.campaigns.saw([])
    assert value(metrics, "campaigns", state="failed") == 0


def test_a_campaign_shows_its_name_state_progress_and_answers() -> None:
    metrics = ControllerMetrics()
    metrics.campaigns.saw(
        [
            record(
                1,
                name="night",
                stage="calibration",
                stage_done=3,
                stage_total=12,
                measurements=40,
                failures=2,
                finished_at_s=100.0,  # of an earlier run
            )
        ]
    )
    assert value(metrics, "campaign_state", **NIGHT, state="running") == 1
    assert value(metrics, "campaign_progress_ratio", **NIGHT, stage="calibration") == 0.25
    assert value(metrics, "campaign_answers", **NIGHT, outcome="ok") == 40
    assert value(metrics, "campaign_answers", **NIGHT, outcome="failed") == 2
    assert value(metrics, "campaign_end_timestamp_seconds", **NIGHT) is None


def test_a_failed_campaign_tells_when_it_ended_and_has_no_progress() -> None:
    metrics = ControllerMetrics()
    ended = record(1, name="night", state="failed", stage_total=12, finished_at_s=1234.0)
    metrics.campaigns.saw([ended])
    assert value(metrics, "campaign_state", **NIGHT, state="failed") == 1
    assert value(metrics, "campaign_state", **NIGHT, state="running") is None
    assert value(metrics, "campaign_end_timestamp_seconds", **NIGHT) == 1234.0
    assert "campaign_progress_ratio{" not in metrics.text()


def test_the_open_campaigns_and_the_newest_ones_have_series() -> None:
    metrics = ControllerMetrics()
    many = MOST_CAMPAIGNS + 5
    ended = [record(i, state="done", finished_at_s=float(i)) for i in range(1, many)]
    metrics.campaigns.saw([record(0), *ended])
    text = metrics.text()
    assert text.count(f"{PREFIX}campaign_state{{") == MOST_CAMPAIGNS
    assert 'campaign="kernels-0"' in text, "it still runs, although it is the oldest one"
    assert f'campaign="kernels-{many - 1}"' in text
    assert 'campaign="kernels-1"' not in text


def test_answers_are_counted_under_the_name_of_their_campaign() -> None:
    metrics = ControllerMetrics()
    answer = Measurement(
        request_id="r",
        graph_hash="g",
        platform="p",
        purpose="kernel",
        outcome=Outcome.OK,
        latency_ms=2.0,
    )
    metrics.campaign_started("kernels-1", "night")
    metrics.campaign_started("query-1", "what somebody asked")
    for campaign_id in ("kernels-1", "kernels-2", "query-1"):
        metrics.delivered(campaign_id, answer)
    for campaign, name in (("kernels-1", "night"), ("kernels-2", "kernels-2"), ("query", "query")):
        labels = {"campaign": campaign, "name": name, "platform": "p", "outcome": "ok"}
        assert value(metrics, "campaign_measurements_total", **labels) is not None


def test_names_are_remembered_of_the_newest_campaigns() -> None:
    names = CampaignNames()
    for number in range(MOST_NAMES):
        names.note(f"c{number}", f"name {number}")
    names.note("c0", "")  # it runs again
    names.note("late", "late one")
    assert names.of("c1") == "c1"
    assert (names.of("c0"), names.of("c2"), names.of("late")) == ("c0", "name 2", "late one")
