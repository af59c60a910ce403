"""The room on the disk of a board: what it lacked for models, and whether it still does."""

from __future__ import annotations

from latfarm_controller.agents.board import BoardInfo


class DiskRoom:
    """Remembers for which models the disk of a board had no room."""

    def __init__(self) -> None:
        self._lacking_bytes = 0  # size of the largest model for which there was no room

    def lacked(self, size_bytes: int) -> None:
        """There was no room for a model of this size."""
        self._lacking_bytes = max(self._lacking_bytes, size_bytes)

    def suffices(self) -> None:
        """There is room again for all models."""
        self._lacking_bytes = 0

    def still_full(self, info: BoardInfo) -> str:
        """Why the disk still has no room for the largest model that it could not take.

        Empty where there is room, or where the board does not tell how much room it has.
        """
        room_bytes, lacking_bytes = info.room_bytes, self._lacking_bytes
        if room_bytes is None or room_bytes >= lacking_bytes:
            return ""
        return (
            f"its disk is still full: room for {room_bytes} bytes, {lacking_bytes} are needed; "
            "it works again once there is room"
        )
