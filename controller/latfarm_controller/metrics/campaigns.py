"""Metrics of campaigns: how many are in each state, and how far the newest ones are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from latfarm_controller.metrics.state import gauge_family
from latfarm_controller.store.base import CampaignRecord

MOST_CAMPAIGNS = 20
"""Most campaigns that have series; the series of the oldest one is removed for a new one."""
MOST_NAMES = 200
"""Most campaigns whose names are remembered, so that memory stays bounded."""
CAMPAIGN_STATES = ("running", "waiting", "paused", "done", "failed", "cancelled", "interrupted")
"""The states of campaigns that have a series from the start; see `CampaignRecord`."""
OPEN = frozenset({"running", "waiting"})
"""States of campaigns that want to measure now."""


class CampaignNames:
    """The names of campaigns by their ids. A campaign without a known name has its id as name."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()

    def note(self, campaign_id: str, name: str) -> None:
        """Remember the name of a campaign; the one that was noted first is forgotten for it."""
        self._names[campaign_id] = name or campaign_id
        self._names.move_to_end(campaign_id)
        if len(self._names) > MOST_NAMES:
            self._names.popitem(last=False)

    def of(self, campaign_id: str) -> str:
        """The name of a campaign."""
        return self._names.get(campaign_id, campaign_id)


class CampaignCollector(Collector):
    """The campaigns as last seen.

    Campaigns that a person took out of the lists are not among them.
    """

    def __init__(self) -> None:
        self._records: Sequence[CampaignRecord] = ()

    def saw(self, records: Sequence[CampaignRecord]) -> None:
        """Remember the campaigns; their order does not matter."""
        self._records = tuple(records)

    def collect(self) -> Iterator[Metric]:
        """The number of campaigns in each state, and the gauges of the newest campaigns."""
        counts = dict.fromkeys(CAMPAIGN_STATES, 0)
        for record in self._records:
            counts[record.state] = counts.get(record.state, 0) + 1
        by_state = gauge_family("campaigns", "Campaigns in the list, by their states.", "state")
        for state, count in counts.items():
            by_state.add_metric([state], count)
        yield by_state
        yield from _single(_newest(self._records))


def _newest(records: Sequence[CampaignRecord]) -> list[CampaignRecord]:
    """The campaigns that have series: those that want to measure come first, then the newest."""
    ranked = sorted(records, key=lambda r: (r.state in OPEN, _moment_s(r)), reverse=True)
    return ranked[:MOST_CAMPAIGNS]


def _moment_s(record: CampaignRecord) -> float:
    """When a campaign ended, or was started if it has not ended, in Unix time."""
    return max(record.started_at_s, record.finished_at_s)


def _single(records: Sequence[CampaignRecord]) -> Iterator[Metric]:
    """The gauges of single campaigns."""
    who = ("campaign", "name", "platform")
    state = gauge_family("campaign_state", "1 for the state that a campaign is in.", *who, "state")
    progress = gauge_family(
        "campaign_progress_ratio",
        "Done share of the stage that a campaign is in, while it measures or trains.",
        *who,
        "stage",
    )
    answers = gauge_family(
        "campaign_answers", "Answers that a campaign has, by outcome.", *who, "outcome"
    )
    ended = gauge_family(
        "campaign_end_timestamp_seconds", "When a campaign ended or was stopped last.", *who
    )
    for record in records:
        labels = [record.campaign_id, record.name or record.campaign_id, record.platform]
        state.add_metric([*labels, record.state], 1.0)
        answers.add_metric([*labels, "ok"], record.measurements)
        answers.add_metric([*labels, "failed"], record.failures)
        if record.state in OPEN and record.stage_total > 0:
            share = min(1.0, record.stage_done / record.stage_total)
            progress.add_metric([*labels, record.stage], share)
        if record.state not in OPEN and record.finished_at_s > 0:
            ended.add_metric(labels, record.finished_at_s)
    yield from (state, progress, answers, ended)
