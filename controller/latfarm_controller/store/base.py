"""The interface of the store: the only truth that outlives a process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from latfarm_predictors.graph import Graph
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


class Store(Protocol):
    """Measurements, graphs, campaigns. Thread-safe; returned data is never changed by later writes.

    Raises:
        StoreError: from any method, when the data cannot be read or written.
    """

    def put_graph(self, graph: Graph) -> None:
        """Keep a graph by its hash; a second time is no change."""
        ...

    def get_graph(self, graph_hash: str) -> Graph | None:
        """The graph of that hash, if kept."""
        ...

    def add_measurements(
        self, campaign_id: str, measurements: Sequence[tuple[Measurement, Graph]]
    ) -> None:
        """Keep measurements with their graphs in one transaction; (campaign_id, request_id) is unique.

        Telling the same one again replaces a failure by a success and is otherwise no change.
        """
        ...

    def campaign_measurements(self, campaign_id: str) -> dict[str, Measurement]:
        """The campaign's measurements by request id."""
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

    def training_rows(self, platform: str, purpose: str) -> list[tuple[Measurement, Graph]]:
        """All good measurements of a purpose with their graphs, oldest first."""
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

    def export(self, path: Path, table: str = "measurements") -> int:
        """Write a table as CSV or Parquet by the path's suffix; rows written."""
        ...

    def close(self) -> None:
        """Release the file; a second time is no change."""
        ...
