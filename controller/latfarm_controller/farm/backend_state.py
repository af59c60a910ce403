"""Whether the processes behind the farm, such as those of Ray, can be used."""

from __future__ import annotations


class BackendState:
    """What was told last about the processes behind the farm.

    Attributes:
        away: why they cannot be used now; empty while they can.
        returns: how often they came back.
    """

    def __init__(self) -> None:
        self.away = ""
        self.returns = 0

    def note(self, available: bool, reason: str = "") -> None:
        """Note that the processes went away or came back.

        Args:
            available: whether they can be used now.
            reason: why they cannot.
        """
        if available and self.away:
            self.returns += 1
        self.away = "" if available else reason or "the processes behind the farm are away"
