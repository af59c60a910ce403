"""A command reads the store of its home, or the copy that the running server makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_controller.api.database_client import TOO_OLD
from latfarm_controller.api.readable_store import COPY_PREFIX, readable_store
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import StoreBusyError, StoreError
from latfarm_controller.store import actions
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.lock import StoreLock, find_holder
from latfarm_controller.store.platform_copy import copy_platform
from latfarm_controller.store.upkeep.verify import verify

from tests.controller.api.kill_server import PLATFORM, measured
from tests.controller.api.test_database_service import Serving

OTHER = "other-sim1.0-fp32-1t"


def fill(store: DuckDBStore) -> None:
    """Two measurements of each platform; one is discarded, and a campaign names a graph."""
    store.add_measurements("c", [measured(1), measured(2)])
    elsewhere = [
        (replace(told, platform=OTHER, board_id="far"), graph)
        for told, graph in map(measured, (3, 4))
    ]
    store.add_measurements("d", elsewhere)
    store.discard_measurements("far", 0.0, "drift")
    named = {"kernels": {measured(3)[0].graph_hash: 1.0}}
    store.put_campaign(CampaignRecord("c", "mine", "padding", PLATFORM, outcome=named))
    store.put_campaign(CampaignRecord("d", "theirs", "kernels", OTHER))


@pytest.fixture
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("s") / "home"
    served = Serving(ControllerConfig(home=home, local_agent=False))
    fill(served.store)
    yield served
    served.close()


def copies(home: Path) -> list[str]:
    return [path.name for path in home.iterdir() if path.name.startswith(COPY_PREFIX)]


def test_a_copy_has_what_one_platform_needs(tmp_path: Path) -> None:
    with DuckDBStore(tmp_path / "all" / "store.duckdb") as store:
        fill(store)
        written = copy_platform(store, PLATFORM, tmp_path / "it's a copy" / "store.duckdb")
        rows_before = store.counts()
        copy_platform(store, OTHER, tmp_path / "other" / "store.duckdb")
        assert store.counts() == rows_before
    assert written == {
        "campaigns": 2,
        "measurements": 2,
        "put_aside": 0,
        "foreign_measurements": 0,
        "imports": 0,
        "graphs": 3,
    }
    with DuckDBStore(tmp_path / "it's a copy" / "store.duckdb") as copy:
        assert [m.request_id for m in copy.measurements()] == ["r2", "r1"]
        assert {record.name for record in copy.campaigns()} == {"mine", "theirs"}
        assert copy.get_graph(measured(3)[0].graph_hash) == measured(3)[1]
        assert copy.get_graph(measured(4)[0].graph_hash) is None
        assert verify(copy.file).sound
    with DuckDBStore(tmp_path / "other" / "store.duckdb") as copy:
        assert len(list(copy.measurements())) == 2
        assert list(copy.measurements(discarded=False)) == []


def test_beside_a_server_the_copy_is_read_and_removed(serving: Serving) -> None:
    with readable_store(serving.config, PLATFORM) as store:
        assert store is not serving.store
        assert copies(serving.config.home) == [store.path.parent.name]
        assert store.path.parent.stat().st_mode & 0o077 == 0
        serving.store.add_measurements("c", [measured(5)])  # the server goes on
        assert [m.request_id for m in store.measurements()] == ["r2", "r1"]
    assert copies(serving.config.home) == []
    with readable_store(serving.config, PLATFORM) as store:
        assert store.counts()["measurements"] == 3


def test_many_copies_at_once(serving: Serving) -> None:
    counts: list[int] = []

    def read(platform: str) -> None:
        with readable_store(serving.config, platform) as store:
            counts.append(store.counts()["measurements"])

    threads = [threading.Thread(target=read, args=[name]) for name in (PLATFORM, OTHER) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [2] * 4


def test_copies_of_killed_commands_are_removed(serving: Serving) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    home = serving.config.home
    (home / f"{COPY_PREFIX}{ended.pid}-left").mkdir()
    (home / f"{COPY_PREFIX}{os.getpid()}-ours").mkdir()
    with readable_store(serving.config, PLATFORM):
        pass
    assert copies(home) == [f"{COPY_PREFIX}{os.getpid()}-ours"]


def test_a_server_that_is_too_old_is_named(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: do for name, do in actions.ACTIONS.items() if name != "copy_platform"}
    monkeypatch.setattr(actions, "ACTIONS", known)
    with (
        pytest.raises(StoreError, match="stop it, and start it again") as caught,
        readable_store(serving.config, PLATFORM),
    ):
        pass
    assert str(caught.value) == TOO_OLD
    assert copies(serving.config.home) == []


def test_a_copy_that_cannot_be_written_is_told(serving: Serving) -> None:
    with pytest.raises(StoreError, match="store"):
        copy_platform(serving.store, PLATFORM, Path("/proc/store.duckdb"))
    assert serving.store.counts()["measurements"] == 4


def test_without_a_server_the_store_is_held_while_it_is_read(tmp_path: Path) -> None:
    config = ControllerConfig(home=tmp_path / "home", local_agent=False)
    config.make_dirs()
    with DuckDBStore(config.store_file) as store:
        fill(store)
    with readable_store(config, PLATFORM) as store:
        assert store.path == config.store_file
        holder = find_holder(config.lock_file)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert find_holder(config.lock_file) is None
    with (
        StoreLock(config.lock_file),
        pytest.raises(StoreBusyError, match="stop it"),
        readable_store(config, PLATFORM),
    ):
        pass
