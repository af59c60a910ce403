"""Restarts a part of the agent at the request of whoever holds the board."""

from __future__ import annotations

import logging

from latfarm_agent.bench.measuring import PARTS, MeasuringBench
from latfarm_agent.errors import BusyError, RequestError
from latfarm_agent.service.offer import BoardOffer

logger = logging.getLogger(__name__)


def restart_part(bench: MeasuringBench, offer: BoardOffer, part: str, *, busy: bool) -> str:
    """Restart a part, and describe the board anew; gives what was done, in words for people.

    Args:
        bench: measures.
        offer: what the board offers.
        part: one of `PARTS`.
        busy: whether a measurement runs or waits.

    Raises:
        RequestError: there is no such part.
        BusyError: it is busy: a restart would wait for the measurement, which may hang.
        StateError: another process measures, and did not restart.
    """
    if part not in PARTS:
        raise RequestError(f"unknown part {part[:40]!r}; known: {', '.join(PARTS)}")
    if busy:
        raise BusyError(f"the {part} is not restarted while a measurement runs or waits")
    done = bench.restart(part)
    offer.look()
    logger.info("restarted: %s", done)
    return done
