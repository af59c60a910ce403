"""What stands in the place of a shard that has not started yet, or that died."""

from __future__ import annotations

from typing import NoReturn

from latfarm_controller.errors import FarmError


class AbsentShard:
    """A shard that does nothing. Implements `interfaces.Shard`.

    The shard that is started next opens all boards, and the scheduler is told of the loss of those
    that were connected. So nothing is lost that is asked for here.

    Every method but `close` raises:
        FarmError: there is no shard; tells why.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise FarmError(f"there is no board shard now: {self._reason}")

    open = drop = dispatch = withdraw = acknowledge = probe = restart = events = _refuse

    async def close(self) -> None:
        """Do nothing: there is nothing to end."""
