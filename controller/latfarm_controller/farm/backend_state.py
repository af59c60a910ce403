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

    def note_builders(self, reason: str, *, starting: bool) -> None:
        """Note whether models can be built. The first start of builders is no absence.

        Args:
            reason: why none can be built now; empty if models can be built.
            starting: whether the builders are being started.
        """
        if not starting or self.away:
            self.note(not reason, reason)

    def note(self, available: bool, reason: str = "") -> None:
        """Note that the processes went away or came back.

        Args:
            available: whether they can be used now.
            reason: why they cannot.
        """
        if available and self.away:
            self.returns += 1
        self.away = "" if available else reason or "the processes behind the farm are away"
