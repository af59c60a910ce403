"""Results that stay in the spool of a board, as a controller that is killed leaves them."""

from __future__ import annotations

from typing import Any

import pytest
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.streaming import StreamingClient

CONFIG = {"settings": {"sessions": 1, "warmup_ms": 0.0, "max_ms": 10.0, "max_runs": 5}}
"""Configuration of a campaign whose networks are measured quickly."""


async def spooled(agent: Any) -> list[str]:
    """The requests whose results are in the spool of a board."""
    async with AgentClient(agent.address, "looker") as client:
        return [result.request_id for result in await client.results()]


def acknowledge_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let boards keep all results."""

    async def nothing(*_: Any) -> int:
        return 0

    monkeypatch.setattr(StreamingClient, "acknowledge", nothing)
