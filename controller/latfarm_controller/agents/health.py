"""Checks whether the agent of one board works, by asking it directly, without a controller."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.call_errors import details_of
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.agents.tls import meet_board
from latfarm_controller.errors import AgentError

HOLDER = "health"
"""The name under which the check calls a board."""
_RETRY_S = 0.25


@dataclass(frozen=True)
class Health:
    """The health of a board.

    `status` is its answer to grpc.health.v1, `info` what it says about itself; `error` says why
    there is no answer.
    """

    entry: BoardEntry
    status: str = "UNKNOWN"
    info: BoardInfo | None = None
    error: str = ""

    @property
    def well(self) -> bool:
        """Whether it serves and offers at least one platform."""
        return self.status == "SERVING" and self.info is not None and bool(self.info.platforms)

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        info = self.info
        return {
            "board": self.entry.name,
            "address": self.entry.where,
            "well": self.well,
            "health": self.status,
            "error": self.error,
            "state": info.state if info else "",
            "agent_version": info.agent_version if info else "",
            "platforms": [platform.name for platform in info.platforms] if info else [],
            "missing": {
                runtime.name: runtime.missing
                for runtime in (info.runtimes if info else ())
                if runtime.missing
            },
            "conditions": dict(info.conditions) if info else {},
        }


async def check(entry: BoardEntry, timeout_ms: float) -> Health:
    """Ask a board again and again until it is well or the time is over; returns the last answer."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_ms / 1e3
    while True:
        found = await _look(entry, max(1_000.0, (deadline_s - loop.time()) * 1e3))
        if found.well or loop.time() + _RETRY_S >= deadline_s:
            return found
        await asyncio.sleep(_RETRY_S)


async def _look(entry: BoardEntry, timeout_ms: float) -> Health:
    patience = Patience(call_ms=timeout_ms, away_ms=timeout_ms, quiet_ms=timeout_ms)
    try:
        async with AgentClient(
            entry.address,
            HOLDER,
            entry.tls,
            patience=patience,
            insecure=entry.insecure,
            board_id=entry.board_id,
        ) as client:
            info = await client.describe(timeout_ms)
        status = await _status(entry, timeout_ms)
    except AgentError as error:
        return Health(entry, error=str(error))
    return Health(entry, status, info)


async def _status(entry: BoardEntry, timeout_ms: float) -> str:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    tls = entry.tls
    if tls is None:
        channel = grpc.aio.insecure_channel(entry.address)
    else:
        proof = await meet_board(entry.address, tls)
        name = tls.server_name
        options = (("grpc.ssl_target_name_override", name),) if name else ()
        channel = grpc.aio.secure_channel(entry.address, proof.credentials(tls.files), options)
    async with channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=""), timeout=timeout_ms / 1e3
            )
        except grpc.aio.AioRpcError as error:
            raise AgentError(f"{entry.address}: health: {details_of(error)}") from error
    kinds = health_pb2.HealthCheckResponse.ServingStatus
    return str(kinds.Name(answer.status)) if answer.status in kinds.values() else "UNKNOWN"
