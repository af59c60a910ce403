"""A board whose disk was full works again once there is room for what it could not take."""

from __future__ import annotations

import pytest
from latfarm_controller.agents.board import ROOM, BoardInfo
from latfarm_controller.farm.boards.disk_room import DiskRoom


def board(room_bytes: int | None) -> BoardInfo:
    return BoardInfo("b", "", conditions={} if room_bytes is None else {ROOM: str(room_bytes)})


@pytest.mark.parametrize(
    ("room_bytes", "full"), [(99, True), (100, False), (101, False), (None, False)]
)
def test_room_for_the_largest_model_that_was_refused_suffices(
    room_bytes: int | None, full: bool
) -> None:
    room = DiskRoom()
    for size_bytes in (10, 100, 50):
        room.lacked(size_bytes)
    told = room.still_full(board(room_bytes))
    assert bool(told) is full
    if full:
        assert "room for 99 bytes, 100 are needed" in told


def test_a_disk_that_was_never_full_is_not_full() -> None:
    assert DiskRoom().still_full(board(0)) == ""


def test_room_that_came_back_is_remembered() -> None:
    room = DiskRoom()
    room.lacked(100)
    room.suffices()
    assert room.still_full(board(1)) == ""
