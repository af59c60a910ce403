"""What the board offers: descriptions, platforms, and the room that it has for models."""

from __future__ import annotations

import pytest
from latfarm_agent.bench.records import DescribedBoard
from latfarm_agent.errors import UnknownPlatformError
from latfarm_agent.service.offer import COMPANIONS, ROOM, BoardOffer, with_room
from tests.agent.service.fake_bench import FakeBench


def test_a_board_tells_the_room_for_models_beside_its_other_conditions() -> None:
    board = DescribedBoard(conditions={"governor": "performance"})
    told = with_room(board, 4096)
    assert told.conditions["governor"] == "performance"
    assert told.conditions[ROOM] == "4096"
    assert int(told.conditions[COMPANIONS]) > 0
    assert ROOM not in board.conditions, "the description of others stays as it is"


def test_nothing_is_offered_before_the_first_look() -> None:
    offer = BoardOffer(FakeBench())
    with pytest.raises(UnknownPlatformError, match="offers: none"):
        offer.check("p")
    assert offer.platform("p") is None
