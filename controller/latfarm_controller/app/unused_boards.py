"""States of the boards of the inventory that the farm is not connected to.

The farm connects to a board when a campaign or a question first needs its platform. Until then,
metrics would not show the board at all, and nobody would be told that it is unreachable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from latfarm_controller.agents.fleet import BoardView, Fleet
from latfarm_controller.errors import ControllerError
from latfarm_controller.farm.background import RepeatedTrouble
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import Standing
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor

CALL_S = 30.0
"""Pause between two calls of a board that the farm is not connected to, in seconds."""

_HELD = {Standing.QUARANTINED: "quarantined", Standing.DRAINING: "draining"}
"""Decisions of people, as states of `observer.BOARD_STATES`."""

logger = logging.getLogger(__name__)


class UnusedBoards:
    """Asks the boards that the farm is not connected to how they are, every `CALL_S` seconds.

    Use it from one event loop. It starts nothing: neither the farm nor the local agent.

    Args:
        fleet: the boards of the inventory.
        farm: knows the boards that it is connected to.
        desk: knows what was decided about boards.
    """

    def __init__(self, fleet: Fleet, farm: Farm, desk: BoardSupervisor) -> None:
        self._fleet = fleet
        self._farm = farm
        self._desk = desk
        self._answers: dict[str, str] = {}
        self._trouble = RepeatedTrouble(logger, "the inventory cannot be read for metrics")

    def states(self) -> Mapping[str, str]:
        """The state of each board that was asked, by name; one of `observer.BOARD_STATES`."""
        return {
            name: state if state == "away" else _HELD.get(self._desk.standing(name), state)
            for name, state in self._answers.items()
        }

    async def run(self) -> None:
        """Ask again and again; ends only when it is cancelled."""
        while True:
            try:
                await self.ask()
            except ControllerError as error:  # somebody may be editing the inventory
                self._trouble.met(error)
            else:
                self._trouble.over()
            await asyncio.sleep(CALL_S)

    async def ask(self) -> None:
        """Ask once.

        Raises:
            ControllerError: the inventory cannot be read.
        """
        listed = await asyncio.to_thread(self._fleet.listed)
        serving = self._farm.entries()
        views = await self._fleet.look_at([entry for entry in listed if entry.name not in serving])
        self._answers = {view.entry.name: _state(view) for view in views}


def _state(view: BoardView) -> str:
    """What a board's own answer makes of it; a board without an answer is away."""
    if view.info is None:
        return "away"
    return "quarantined" if view.info.state == "quarantined" else "ready"
