"""Boards of a farm that give the id of another board, and boards that get a new id."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.board_hooks import BoardHooks, Hook
from latfarm_controller.errors import IdentityError
from latfarm_controller.farm.board_monitor import BoardMonitor
from latfarm_controller.farm.boards.board_client import BoardClient
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.boards.shard import connect
from latfarm_controller.farm.boards.shard_events import BoardConnected
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.scheduling.messages import BoardLost, Event
from latfarm_predictors.measurement import Measurement

from tests.controller.farm.conftest import Lab, collect, until
from tests.controller.farm.fake_board import FakeClient


class Listener:
    """Notes which boards were refused because of their ids."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def refused(self, name: str, reason: str) -> None:
        self.told.append((name, reason))

    def measured(self, name: str, measurement: Measurement) -> None:
        return

    def recovered(self, name: str) -> None:
        return


def test_the_second_holder_of_an_id_gets_no_work(lab: Lab) -> None:
    honest, thief = lab.board("a"), lab.board("b", claims="a", alive=False)
    listener = Listener()

    async def scenario() -> None:
        async with lab.farm() as farm:
            farm.listen_to_boards(listener)
            await farm.wait_for("p", 60)
            thief.alive = True
            await until(lambda: listener.told)
            farm.listen("c")
            farm.submit("c", [lab.request(i) for i in range(8)])
            answers = await collect(farm, "c", 8)
            assert {answer.board_id for answer in answers.values()} == {"a"}
            statuses = {status.name: status for status in farm.boards()}
            assert statuses["a"].online
            assert not statuses["b"].online

    asyncio.run(scenario())
    assert thief.measured == []
    assert len(honest.measured) == 8
    assert {name for name, _ in listener.told} == {"b"}
    assert "which is that of board a" in listener.told[0][1]


def test_the_second_holder_in_another_shard_is_not_heard() -> None:
    boards, scheduled, listener = KnownBoards(), list[Event](), Listener()
    monitor = BoardMonitor(boards, FarmObserver(), scheduled.append)
    monitor.listener = listener
    boards.add([BoardEntry("a", "h:1"), BoardEntry("b", "h:2")])
    boards.named("a").shard, boards.named("b").shard = 0, 1
    monitor.take(0, BoardConnected("a", BoardInfo("1", "a"), False))
    monitor.take(1, BoardConnected("b", BoardInfo("1", "b"), False))
    assert [name for name, _ in listener.told] == ["b"]
    monitor.take(1, BoardLost("1", "", "the thief ended"))
    assert boards.named("a").online
    assert len(scheduled) == 1, "only the honest board joined"
    monitor.take(0, BoardLost("1", "", "the honest one ended"))
    assert not boards.named("a").online


class PinnedClient(FakeClient):
    """Believes only the id that the inventory has, as `AgentClient` does."""

    def __init__(self, lab: Lab, entry: BoardEntry) -> None:
        super().__init__(next(board for board in lab.boards if board.board_id == entry.name))
        self.wanted = entry.board_id

    async def describe(self, timeout_ms: float | None = None) -> BoardInfo:
        info = await super().describe(timeout_ms)
        if info.board_id != self.wanted:
            raise IdentityError(f"its id is {info.board_id}, but the inventory says {self.wanted}")
        return info


class PinningLab(Lab):
    """A lab whose clients believe only the ids of the inventory."""

    def connect(self, entry: BoardEntry, holder: str) -> BoardClient:
        return PinnedClient(self, entry)

    def entry(self, board_id: str) -> BoardEntry:
        return BoardEntry(board_id, "127.0.0.1:1", board_id=board_id)


def test_a_board_whose_new_id_was_accepted_works_again_without_a_restart() -> None:
    lab = PinningLab()
    lab.board("a", claims="new")
    listener = Listener()

    async def scenario() -> None:
        async with lab.farm() as farm:
            farm.listen_to_boards(listener)
            await until(lambda: listener.told)
            assert "latfarm boards accept a" in listener.told[0][1]
            await farm.add_boards([lab.entry("a")])
            assert not farm.boards()[0].online
            await farm.add_boards([replace(lab.entry("a"), board_id="new")])
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(1)])
            await collect(farm, "c", 1)
            assert farm.board_id("a") == "new"

    asyncio.run(scenario())


def test_an_id_that_was_accepted_while_the_board_works_replaces_its_connection() -> None:
    lab = PinningLab()
    board = lab.board("a")

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            board.claims = "new"
            await farm.add_boards([replace(lab.entry("a"), board_id="new")])
            await until(lambda: farm.board_id("a") == "new")
            farm.listen("c")
            farm.submit("c", [lab.request(i) for i in range(4)])
            assert all(answer.ok for answer in (await collect(farm, "c", 4)).values())

    asyncio.run(scenario())


def test_the_client_of_a_board_knows_the_id_of_its_entry() -> None:
    client = connect(BoardEntry("a", "127.0.0.1:1", board_id="1"), "me")
    assert isinstance(client, AgentClient)
    assert client.board_id == "1"


def test_no_hook_reaches_a_shard_which_may_run_on_another_machine() -> None:
    boards = KnownBoards()
    hooks = BoardHooks(reboot=Hook(("ssh", "secret")))
    (entry,) = boards.add([BoardEntry("a", "h:1", hooks=hooks)])
    assert entry.hooks == BoardHooks()
    assert boards.all_entries()["a"].hooks == BoardHooks()
