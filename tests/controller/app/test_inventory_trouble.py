"""The inventory is followed whatever one look meets, and one bad entry harms no other board."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.app import inventory_watch
from latfarm_controller.app.inventory_watch import InventoryWatch
from latfarm_controller.config import ControllerConfig

pytestmark = pytest.mark.timeout(60)


def test_an_unexpected_error_of_one_look_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inventory_watch, "PAUSE_S", 0.0)
    looks = 0

    async def play() -> None:
        looked_again = asyncio.Event()
        nothing: Any = None
        watch = InventoryWatch(nothing, nothing)

        async def look() -> None:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise OSError("the disk does not answer")
            looked_again.set()

        monkeypatch.setattr(watch, "look", look)
        watching = asyncio.create_task(watch.run())
        told = asyncio.create_task(looked_again.wait())
        await asyncio.wait({watching, told}, return_when=asyncio.FIRST_COMPLETED)
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, told, return_exceptions=True)

    asyncio.run(play())
    assert looks >= 2


def test_a_board_whose_tls_files_are_missing_here_is_one_that_cannot_be_reached(
    tmp_path: Path,
) -> None:
    async def play() -> str:
        fleet = Fleet(ControllerConfig(home=tmp_path), "test")
        files = ControllerTlsFiles(tmp_path / "ca", tmp_path / "cert", tmp_path / "key")
        (view,) = await fleet.look_at([BoardEntry("a", "127.0.0.1:1", files)])
        assert view.info is None
        assert not view.foreign
        return view.error

    assert str(tmp_path) in asyncio.run(play())
