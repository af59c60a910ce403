"""Lists the finished results that a board has kept, page by page."""

from __future__ import annotations

import logging

from latfarm_controller.agents.spooled import MOST_SPOOLED, SpooledResult
from latfarm_controller.errors import AgentError, AgentLostError
from latfarm_controller.farm.boards.board_client import BoardClient

MOST_SPOOLED_BYTES = 64 << 20
"""Bytes of finished results after which a board is not asked for more; the rest waits there."""

logger = logging.getLogger(__name__)


async def spooled_results(client: BoardClient) -> tuple[SpooledResult, ...]:
    """The finished results that a board has kept, each once; none if it cannot list them.

    Raises:
        AgentLostError: the board was lost meanwhile.
    """
    found: dict[str, SpooledResult] = {}
    after, size_bytes = "", 0
    while size_bytes < MOST_SPOOLED_BYTES and len(found) < MOST_SPOOLED:
        try:
            page = await client.results(after)
        except AgentLostError:
            raise
        except AgentError as error:
            logger.warning("the finished results of a board cannot be listed: %s", error)
            break
        fresh = [result for result in page if result.request_id not in found]
        if not fresh:  # the end, or an agent that begins with the first result each time
            break
        found.update((result.request_id, result) for result in fresh)
        size_bytes += sum(len(result.payload) for result in fresh)
        after = fresh[-1].request_id
    return tuple(found.values())
