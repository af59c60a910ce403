"""The interface of the store: the only truth that outlives a process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement


@dataclass(frozen=True)
class CampaignRecord:
    """A campaign as stored. States: running | done | failed | cancelled | interrupted."""

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


@dataclass(frozen=True)
class BoardEvent:
    """Something was decided about a board, or told of it.

    Decisions: drained | quarantined | resumed.
    Told: check_failed | drifted | disk_full | disk_free.

    `actor` is who decided: a certificate's name, `local`, `cusum` or `farm`.
    """

    board: str
    event: str
    reason: str = ""
    board_id: str = ""
    actor: str = ""
    at_s: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


class Store(Protocol):
    """Measurements, graphs, campaigns, bundles. Thread-safe; returned data is never changed later.

    Raises:
        StoreError: from any method, when the data cannot be read or written.
    """

    def get_graph(self, graph_hash: str) -> Graph | None:
        """The graph of that hash, if kept."""
        ...

    def add_measurements(
        self, campaign_id: str, measurements: Sequence[tuple[Measurement, Graph]]
    ) -> None:
        """Keep measurements with their graphs in one transaction.

        (campaign_id, request_id) is unique. Telling the same one again replaces a failure
        by a success and is otherwise no change.
        """
        ...

    def campaign_measurements(self, campaign_id: str) -> dict[str, Measurement]:
        """The campaign's measurements by request id, without those that were put aside."""
        ...

    def measurements(
        self,
        *,
        platform: str = "",
        campaign_id: str = "",
        purpose: str = "",
        graph_hash: str = "",
        limit: int = 0,
    ) -> Iterator[Measurement]:
        """Measurements, newest first; empty filters select all."""
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
        """The newest good measurement of a graph, a stable one before an unstable one; else None.

        Good: ok, of the present protocol version, not put aside. Empty filters select all. Runs
        under a profiler (those that carry layer times) do not say how long the graph takes: left
        out.

        `network_hash` lets other exports of the same network answer as well; the graph's own
        measurements go before theirs, and stable ones before both's unstable ones. `energy` keeps
        to measurements that tell what an inference costs, too.
        """
        ...

    def put_campaign(self, record: CampaignRecord) -> None:
        """Keep or replace a campaign's record."""
        ...

    def get_campaign(self, campaign_id: str) -> CampaignRecord | None:
        """The campaign of that id or name (the newest of that name)."""
        ...

    def campaigns(self) -> list[CampaignRecord]:
        """All campaigns, newest first."""
        ...

    def add_board_event(self, event: BoardEvent) -> None:
        """Keep what was decided about a board."""
        ...

    def board_events(self, board: str = "", limit: int = 0) -> list[BoardEvent]:
        """What was decided about a board, or about any, newest first."""
        ...

    def standings(self) -> dict[str, BoardEvent]:
        """The last decision about each board, by its name; what is only told decides nothing."""
        ...

    def discard_measurements(
        self, board_id: str, since_s: float, reason: str
    ) -> list[tuple[str, str]]:
        """Use no more what a board measured after a moment; campaign and request of each.

        They stay in the store and in listings, but answer no query, train no predictor and count
        as not measured where a campaign goes on. A good measurement of the same request replaces
        them.
        """
        ...

    def sentinels(self, board_id: str, since_s: float = 0.0) -> list[Measurement]:
        """A board's good and stable sentinels that were not put aside, oldest first.

        A measurement that several campaigns were told is listed once.
        """
        ...

    def revision(self, platform: str) -> str:
        """Changes whenever a platform's measurements or campaigns do, those put aside included.

        Cheap: nothing is read but what tells measurements apart.
        """
        ...

    def export(self, path: Path, table: str = "measurements") -> int:
        """Write a table as CSV or Parquet by the path's suffix; rows written.

        Raises:
            UsageError: unknown table or suffix.
        """
        ...

    def snapshot(self, folder: Path) -> dict[str, int]:
        """Write all tables as Parquet at one point in time; rows written by table."""
        ...

    def close(self) -> None:
        """Release the file; a second time is no change."""
        ...
