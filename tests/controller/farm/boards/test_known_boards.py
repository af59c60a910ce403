"""Which boards offer a platform now: as boards join, leave, change and are removed."""

from __future__ import annotations

import pytest
from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.boards.shard_events import BoardConnected


def told(name: str, *platforms: str, quiet: bool = False, available: bool = True) -> BoardConnected:
    """A board that offers platforms, whose id is its name in capitals."""
    offered = tuple(PlatformInfo(platform, "json", "fp32") for platform in platforms)
    runtimes = (RuntimeInfo("simulated", available, platforms=offered),)
    return BoardConnected(name, BoardInfo(name.upper(), name, runtimes=runtimes), quiet)


@pytest.fixture
def known() -> KnownBoards:
    """Boards c, a and b, added in this order; a and c are connected."""
    boards = KnownBoards()
    boards.add([BoardEntry(name, f"127.0.0.1:{5000 + n}") for n, name in enumerate("cab")])
    boards.joined(0, told("a", "p", "q"))
    boards.joined(0, told("c", "p", quiet=True))
    return boards


def names(known: KnownBoards, platform: str, board_id: str = "") -> list[str]:
    """The boards of a pool, whose size must be told alike."""
    pool = known.pool(platform, board_id)
    assert known.size([platform], board_id) == len(pool)
    assert known.quiet(platform) == any(status.quiet for status in known.pool(platform))
    return [status.name for status in pool]


def test_a_pool_has_the_connected_boards_in_the_order_of_the_inventory(known: KnownBoards) -> None:
    assert (names(known, "p"), names(known, "q"), names(known, "none")) == (["c", "a"], ["a"], [])
    assert names(known, "p", "A") == ["a"]
    assert names(known, "q", "C") == []
    assert known.size(["p", "q"]) == 2, "a board counts once"
    assert known.size([]) == 0
    assert (known.quiet("p"), known.quiet("q")) == (True, False)


def test_a_board_that_joins_with_another_offer_leaves_its_old_pools(known: KnownBoards) -> None:
    known.joined(1, told("a", "q", "r"))
    assert (names(known, "p"), names(known, "q"), names(known, "r")) == (["c"], ["a"], ["a"])
    known.joined(1, told("a", "q", available=False))
    assert (names(known, "q"), names(known, "r")) == ([], [])


def test_boards_that_are_away_or_removed_are_in_no_pool(known: KnownBoards) -> None:
    known.named("c").online = False
    assert names(known, "p") == ["a"]
    assert not known.quiet("p")
    known.remove("a")
    assert names(known, "p") == []
    known.add([BoardEntry("a", "127.0.0.1:5001")])
    assert names(known, "p") == ["a"], "it is connected still"
    known.lose_shard(0, "it died")
    assert names(known, "p") == []
    known.joined(0, told("b", "p"))
    assert names(known, "p") == ["b"]
