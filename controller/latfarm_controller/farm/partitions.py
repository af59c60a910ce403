"""Partitions: the sets of boards that campaigns chose, by tags and by who asks.

The scheduler knows partitions by their names alone, and which boards belong to which. This module
makes the names, and follows what the inventory tells about boards: a board whose tags or access
group have changed joins and leaves partitions at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from latfarm_controller.access_groups import AccessGroups
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.farm.boards.interfaces import BoardStatus
from latfarm_controller.farm.scheduling.messages import BoardPartitioned


@dataclass(frozen=True, slots=True)
class BoardChoice:
    """Which boards may be used.

    Attributes:
        tags: a board must have all of them.
        user: who asks, as the audit log names actors; the access group of a board must admit them.
            None: the farm itself, for its own checks.
    """

    tags: tuple[str, ...] = ()
    user: str | None = None

    def refusal(self, profile: BoardProfile, groups: AccessGroups) -> str:
        """Why a board does not belong to the choice; empty if it does.

        Args:
            profile: what is noted about the board.
            groups: who belongs to which access group.
        """
        missing = [tag for tag in self.tags if tag not in profile.tags]
        if missing:
            return f"it has no tag {', '.join(missing)}"
        return "" if self.user is None else groups.refusal(self.user, profile.access)


EVERY_BOARD = BoardChoice()
"""The choice of all boards."""


class Partitions:
    """The partitions that were used, and the boards of each. Use it from one event loop.

    Args:
        board_id: the id of a board by its name; empty if it was never connected.
        schedule: passes an event to the scheduler.
    """

    def __init__(
        self, board_id: Callable[[str], str], schedule: Callable[[BoardPartitioned], None]
    ) -> None:
        self._board_id = board_id
        self._schedule = schedule
        self._profiles: dict[str, BoardProfile] = {}
        self._groups = AccessGroups()
        self._choices: dict[str, BoardChoice] = {}
        self._told: dict[str, tuple[str, ...]] = {}  # the partitions of each board that has joined

    def describe(
        self, profiles: Mapping[str, BoardProfile], groups: AccessGroups | None = None
    ) -> None:
        """Note what the inventory tells about boards now.

        Args:
            profiles: by the names of boards; a board that is missing has no tags and is for all.
            groups: who belongs to which access group; None: as before.
        """
        groups = self._groups if groups is None else groups
        if profiles == self._profiles and groups == self._groups:
            return
        self._profiles, self._groups = dict(profiles), groups
        self._tell_changes()

    def use(self, choice: BoardChoice) -> str:
        """The name of the partition of a choice; empty if all boards belong to it for ever."""
        choice = self.settled(choice)
        if choice == EVERY_BOARD:
            return ""
        name = _name(choice)
        if name not in self._choices:
            self._choices[name] = choice
            self._tell_changes()
        return name

    def settled(self, choice: BoardChoice) -> BoardChoice:
        """The same choice without its user, if that user may use every board."""
        if choice.user is not None and self._groups.is_admin(choice.user):
            return BoardChoice(choice.tags)
        return choice

    def refusal(self, choice: BoardChoice, name: str) -> str:
        """Why the board of that name does not belong to a choice; empty if it does."""
        return choice.refusal(self._profiles.get(name, BoardProfile()), self._groups)

    def chosen(self, boards: Iterable[BoardStatus], choice: BoardChoice) -> list[BoardStatus]:
        """Those of some boards that belong to a choice."""
        return [board for board in boards if not self.refusal(choice, board.name)]

    def joined(self, name: str) -> tuple[str, ...]:
        """The partitions of a board that joins; from now on, changes are told."""
        found = self._told[name] = self._of(name)
        return found

    def _of(self, name: str) -> tuple[str, ...]:
        choices = self._choices.items()
        return tuple(key for key, choice in choices if not self.refusal(choice, name))

    def _tell_changes(self) -> None:
        """Tell the scheduler of each board whose partitions are others than before."""
        for name, before in self._told.items():
            now = self._of(name)
            if now != before:
                self._told[name] = now
                self._schedule(BoardPartitioned(self._board_id(name), now))


def _name(choice: BoardChoice) -> str:
    """The name of a choice's partition; equal choices have equal names."""
    return json.dumps([choice.tags, choice.user])
