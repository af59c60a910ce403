"""The interface of the store, which keeps all that must outlive the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement


@dataclass(frozen=True)
class CampaignRecord:
    """A campaign as it is stored.

    `state` is `running`, `waiting`, `paused`, `done`, `failed`, `cancelled`, `interrupted` or
    `removed` (a person took it out of all lists). `config` is what the campaign was made from,
    `outcome` what it found. `waiting_for` says why a waiting campaign waits. `unattended`: it was
    last run by `latfarm serve`, which continues it by itself when it is started again.
    """

    campaign_id: str
    name: str
    kind: str
    platform: str
    config: Mapping[str, Any] = field(default_factory=dict)
    state: str = "running"
    stage: str = ""
    stage_done: int = 0
    stage_total: int = 0
    measurements: int = 0
    failures: int = 0
    board_ms: float = 0.0
    wall_ms: float = 0.0
    started_at_s: float = 0.0
    finished_at_s: float = 0.0
    outcome: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    waiting_for: str = ""
    unattended: bool = False


@dataclass(frozen=True)
class BoardEvent:
    """A decision about a board, or something that was noticed about it.

    `event` is one of the decisions `drained`, `reserved`, `maintenance` (a window has begun),
    `quarantined` and `resumed`, or one of the notices `check_failed`, `drifted`, `disk_full`,
    `disk_free`, `drain_deadline`, `id_pinned` (its id is noted from now on), `id_refused` (it gave
    another id), `result_refused` (it gave a result of another board, platform or fingerprint), and
    those of recoveries and power hooks (docs/farm.md). `actor` is who decided or noticed: the name
    in a person's certificate, `unix:NAME` (a user of the controller's machine; older entries say
    `local`), `cusum` (the test for drift), `recovery` or `farm`.
    """

    board: str
    event: str
    reason: str = ""
    board_id: str = ""
    actor: str = ""
    at_s: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundResult:
    """A finished result that a board kept for a controller that was killed.

    It waits here until a campaign asks for it. `payload` is the message of the board,
    `received_at_s` Unix time by our own clock.
    """

    request_id: str
    board_id: str
    platform: str
    fingerprint: str
    received_at_s: float
    payload: bytes


ANSWERING = ("query", "network")
"""Purposes of the measurements that answer questions about whole networks."""


FOREIGN = ("foreign_source", "foreign_licence", "foreign_method")
"""Conditions of measurements of other farms: who measured, under which licence, and how."""


@dataclass(frozen=True, slots=True)
class AnswerQuery:
    """Which stored measurement is wanted as the answer to a question about a network.

    Attributes:
        graph_hash: of the graph that was asked about.
        platform: on which it was measured.
        network_hash: also take measurements of other exports of the network with this hash; empty:
            of the graph alone.
        purposes: only with one of these purposes; empty: with any.
        tier: only with settings of this tier; like all filters, an empty one selects everything.
        fingerprint: only under this fingerprint of the platform.
        energy: only those that tell the energy of an inference.
        since_s: only those that were received at this Unix time or later.
        foreign: measurements of other farms too. Own ones are preferred to them.
    """

    graph_hash: str
    platform: str
    network_hash: str = ""
    purposes: tuple[str, ...] = ANSWERING
    tier: str = ""
    fingerprint: str = ""
    energy: bool = False
    since_s: float = 0.0
    foreign: bool = False


class Store(Protocol):
    """Keeps measurements, graphs, campaigns and decisions about boards.

    It is thread-safe. Data that it has returned is not changed by later writes. Every method raises
    a StoreError when the data cannot be read or written.
    """

    def get_graph(self, graph_hash: str) -> Graph | None:
        """The graph with that hash; None if the store does not have it."""
        ...

    def add_measurements(
        self, campaign_id: str, measurements: Sequence[tuple[Measurement, Graph]]
    ) -> None:
        """Keep measurements of a campaign, each with its graph, in one transaction.

        There is one measurement for each campaign and request. Where there is one already, a
        success replaces a failure or a discarded measurement; nothing else is replaced.
        """
        ...

    def campaign_measurements(self, campaign_id: str) -> dict[str, Measurement]:
        """The measurements of a campaign by request id, without the discarded ones."""
        ...

    def measurements(
        self,
        *,
        platform: str = "",
        campaign_id: str = "",
        purpose: str = "",
        graph_hash: str = "",
        limit: int = 0,
        foreign: bool = False,
        discarded: bool = True,
    ) -> Iterator[Measurement]:
        """All measurements that match, the newest first.

        Args:
            platform: only of this platform; like all filters, an empty one selects everything.
            campaign_id: only of this campaign.
            purpose: only with this purpose.
            graph_hash: only of the graph with this hash.
            limit: most measurements to return; 0: all.
            foreign: those of other farms too. Their conditions tell source, licence and method.
            discarded: the discarded ones too. Who trains asks without them.
        """
        ...

    def find_answers(self, wanted: Sequence[AnswerQuery]) -> list[Measurement | None]:
        """For each question the best good measurement; None where there is none.

        Own measurements come before those of other farms, stable ones before unstable ones, among
        those the ones of the same graph, among those the newest. A measurement is good if it has a
        latency, is of the present protocol version, and is not discarded. Runs under a profiler
        (those with layer times) are left out, because they do not tell how long the graph takes.
        """
        ...

    def latest(
        self,
        graph_hash: str,
        platform: str,
        purpose: str = "",
        *,
        network_hash: str = "",
        tier: str = "",
        fingerprint: str = "",
        energy: bool = False,
    ) -> Measurement | None:
        """The best good measurement of a graph on this farm; see `AnswerQuery` for the filters.

        Args:
            graph_hash: of the graph.
            platform: on which it was measured.
            purpose: only with this purpose; empty: with any.
            network_hash: also take measurements of other exports of the network with this hash.
            tier: only with settings of this tier.
            fingerprint: only under this fingerprint of the platform.
            energy: only those that tell the energy of an inference.

        Returns:
            None if there is no such measurement.
        """
        ...

    def platforms(self) -> list[str]:
        """The names of all platforms that were measured, here or on other farms."""
        ...

    def put_campaign(self, record: CampaignRecord) -> None:
        """Keep the record of a campaign, in the place of an earlier one."""
        ...

    def get_campaign(self, campaign_id: str) -> CampaignRecord | None:
        """The campaign with that id, else the newest campaign of that name, else None."""
        ...

    def campaigns(self, *, brief: bool = False) -> list[CampaignRecord]:
        """All campaigns, the newest first.

        Args:
            brief: leave configurations and outcomes empty. Those of a single campaign may hold
                megabytes of graphs, which nobody needs who looks for a name or a state.
        """
        ...

    def add_board_event(self, event: BoardEvent) -> None:
        """Keep a decision about a board, or a notice."""
        ...

    def board_events(self, board: str = "", limit: int = 0) -> list[BoardEvent]:
        """The events of a board, or of all boards, the newest first; `limit` 0 returns all."""
        ...

    def standings(self) -> dict[str, BoardEvent]:
        """The last decision about each board, by its name; notices are not decisions."""
        ...

    def discard_measurements(
        self, board_id: str, since_s: float, reason: str
    ) -> list[tuple[str, str]]:
        """Discard what a board measured after `since_s`, Unix time.

        Discarded measurements stay in the store and in listings, but they answer no query, train no
        predictor, and count as not measured when a campaign is resumed. A good measurement of the
        same request replaces a discarded one.

        Returns:
            the campaign id and request id of each measurement that was discarded.
        """
        ...

    def add_found_results(self, results: Sequence[FoundResult]) -> None:
        """Keep results that boards had in their spools, in the place of those of equal requests."""
        ...

    def found_results(self) -> list[FoundResult]:
        """The results of boards' spools for which no campaign has asked yet, the oldest first."""
        ...

    def drop_found_results(self, request_ids: Sequence[str]) -> None:
        """Forget the results of boards' spools for these requests."""
        ...

    def sentinels(self, board_id: str, since_s: float = 0.0) -> list[Measurement]:
        """The good and stable sentinels of a board, the oldest first.

        Discarded ones are left out. A sentinel that several campaigns were told is listed once.
        """
        ...

    def revision(self, platform: str) -> str:
        """A text that changes whenever a platform's measurements or campaigns change.

        It also changes when measurements are discarded. It is cheap, because only the columns are
        read that tell measurements apart.
        """
        ...

    def origins(self, request_ids: Sequence[str]) -> dict[str, list[str]]:
        """For each request, the ids of the campaigns that were told an answer.

        They are in the order in which `measurements` gives these answers. Requests without any are
        left out.
        """
        ...

    def graph_hashes(self, beginning: str, limit: int = 0) -> list[str]:
        """Exact hashes of stored graphs, whose exact or network hash begins like that.

        Args:
            beginning: the first hexadecimal digits; empty: all graphs.
            limit: most hashes to return; 0: all.
        """
        ...

    def export(self, path: Path, table: str = "measurements") -> int:
        """Write a table as CSV or Parquet, by the suffix of the path; returns the number of rows.

        Raises:
            UsageError: the table or the suffix is unknown.
        """
        ...

    def snapshot(self, folder: Path) -> dict[str, int]:
        """Write all tables as Parquet, as of one point in time; the number of rows by table."""
        ...

    def close(self) -> None:
        """Close the store, so that another process can open it; a second call does nothing."""
        ...
