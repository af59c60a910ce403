"""Boards that dial in: whom the controller takes, and whom a board calls."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.errors import AgentUsageError
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.errors import AgentLostError, ControllerError, UsageError
from latfarm_protos.trust import dialling
from latfarm_protos.trust.identity import AGENT, CONTROLLER, OPERATOR, VIEWER

from tests.agent.service.conftest import Farm
from tests.security.conftest import Home, channel
from tests.security.dialling.dialling_place import (
    ID,
    NAME,
    Place,
    control,
    dialled,
    files_of,
    play,
    told,
    until,
)

pytestmark = pytest.mark.timeout(120)


def test_a_certificate_that_is_revoked_cuts_the_board_off_at_once(place: Place) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            await place.agent()
            await until(lambda: boards.board_id(NAME))
            async with place.client(boards) as client:
                await client.describe()
                place.home.authority.revoke(NAME)
                await until(lambda: not boards.board_id(NAME))
                await until(lambda: place.refused)
                assert "is revoked" in place.refused[-1][1]
                with pytest.raises(AgentLostError):
                    await client.describe(100)
            assert boards.board_id(NAME) == ""

    play(test)


@pytest.mark.parametrize("role", [VIEWER, OPERATOR, CONTROLLER])
def test_only_boards_may_dial_in(place: Place, role: str) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            files = files_of(place.home, "person", role)
            reader, writer = await dialled(place, files, control())
            answer = await told(reader)
            assert answer["kind"] == "refused"
            assert f"has the role {role}, not agent" in answer["reason"]
            assert not boards.board_id("person")
            writer.close()

    play(test)


@pytest.mark.parametrize(
    ("name", "board_id", "says"),
    [
        ("stranger", ID, "is not in the inventory as one that dials in.*boards add stranger"),
        ("toy", ID, "is not in the inventory as one that dials in"),
        (NAME, "", "gives no id"),
        (NAME, "other", "says that its id is other, but it was board-1.*boards accept hidden"),
        ("bound", "other", "says that its id is other, but its certificate is for board-1"),
    ],
)
def test_only_boards_of_the_inventory_with_their_own_ids_are_taken(
    place: Place, name: str, board_id: str, says: str
) -> None:
    async def test() -> None:
        place.registry.add("bound", "", dials_in=True)
        place.registry.pin(NAME, ID)
        async with place.taking() as boards:
            files = files_of(place.home, name, AGENT, board_id=ID if name == "bound" else "")
            reader, writer = await dialled(place, files, control(board_id=board_id))
            answer = await told(reader)
            assert answer["kind"] == "refused"
            assert re.search(says, answer["reason"])
            assert not boards.board_id(name)
            assert [who for who, _ in place.refused] == ([name] if name != "stranger" else [])
            writer.close()

    play(test)


@pytest.mark.parametrize(
    "hello",
    [
        {"kind": "control", "version": 2, "board_id": ID, "instance": "i"},
        {"kind": "control", "version": 1, "board_id": "\n", "instance": "i"},
        {"kind": "control", "version": 1, "board_id": 7},
        {"kind": "data", "version": 1, "key": "0" * 32},
        {"kind": "other", "version": 1},
        {"kind": "x" * dialling.MOST_BYTES, "version": 1},
        {"version": 1},
    ],
)
def test_what_is_no_greeting_ends_the_connection(place: Place, hello: dict[str, object]) -> None:
    async def test() -> None:
        async with place.taking() as boards:
            files = files_of(place.home, NAME, AGENT)
            reader, writer = await dialled(place, files, hello)
            line = await reader.read()
            assert b"welcome" not in line
            assert not boards.board_id(NAME)
            writer.close()

    play(test)


def test_a_board_that_is_removed_from_the_inventory_is_cut_off(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "PING_S", 0.02)

    async def test() -> None:
        async with place.taking() as boards:
            await place.agent()
            await until(lambda: boards.board_id(NAME))
            place.registry.remove(NAME)
            await until(lambda: not boards.board_id(NAME))

    play(test)


def test_a_board_does_not_dial_a_server_that_is_no_controller(place: Place) -> None:
    async def test() -> None:
        async with place.taking(AGENT) as boards:
            _, server = await place.agent()
            counted = re.compile(r'refused_connections_total\{reason="wrong_role"\} [1-9]')
            await until(lambda: counted.search(server.metrics.text()))
            assert not boards.board_id(NAME)

    play(test)


def test_a_certificate_for_dialling_in_does_not_open_the_api(own_home: Home) -> None:
    own_home.authority.issue(NAME, AGENT, dials_in=True)
    issued = own_home.authority.folder / "issued"
    person = own_home.config.model_copy(
        update={
            "tls_cert": issued / f"{NAME}.crt",
            "tls_key": issued / f"{NAME}.key",
            "tls_ca": own_home.authority.cert,
        }
    )

    async def test() -> None:
        server = await ControllerServer.open(own_home.config, listen="127.0.0.1:0")
        try:

            def look() -> None:
                with channel(server, person) as opened:
                    ControllerClient(opened).boards()

            with pytest.raises(ControllerError, match="has the role agent"):
                await asyncio.to_thread(look)
        finally:
            await server.close()

    play(test)


def test_only_a_board_gets_a_certificate_for_dialling_in(own_home: Home) -> None:
    with pytest.raises(UsageError, match="only a board dials in"):
        own_home.authority.issue("ada", OPERATOR, dials_in=True)


def test_a_board_needs_certificates_to_dial(tmp_path: Path) -> None:
    with pytest.raises(AgentUsageError, match="--controller needs --tls-cert"):
        Farm(tmp_path).start(controller="127.0.0.1:1")


def test_a_whole_controller_lists_a_board_that_dials_in(place: Place) -> None:
    async def test() -> None:
        server = await ControllerServer.open(place.home.config, listen="127.0.0.1:0")
        try:
            place.port = int(server.outside.rpartition(":")[2])
            person = place.home.client("person", VIEWER)

            def look() -> dict[str, Any]:
                with channel(server, person) as opened:
                    boards = ControllerClient(opened).boards()
                return {board.name: board for board in boards}

            before = (await asyncio.to_thread(look))[NAME]
            assert (before.address, before.state) == ("dials in", "unreachable")
            assert "is not connected now" in before.detail
            await place.agent()
            while (now := (await asyncio.to_thread(look))[NAME]).state != "idle":
                await asyncio.sleep(0.01)
            assert (now.address, now.board_id) == ("dials in", ID)
            assert place.registry.get(NAME).board_id == ID
        finally:
            await server.close()

    play(test)
