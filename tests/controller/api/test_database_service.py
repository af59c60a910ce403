"""What `latfarm db` does while the store is served: the server does it, as the command would."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from latfarm_controller.api import roles
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.database_client import perform_at_home
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.app.question import Question
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import ControllerError, StoreBusyError, UsageError
from latfarm_controller.store.lock import StoreLock
from latfarm_protos.v1 import database_pb2 as pb
from latfarm_protos.v1 import database_pb2_grpc

from tests.controller.api.kill_server import measured
from tests.controller.api.test_database_kills import IMPORTED_ROWS, foreign, import_

ORIGIN = {"source": "us", "licence": "CC0-1.0", "method": "as we do"}
EVERYTHING = {"platform": "", "campaign_id": "", "purpose": ""}


class Serving:
    """A serving controller on an event loop of its own."""

    def __init__(self, config: ControllerConfig) -> None:
        self.config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = self._run(ControllerServer.open(config, public=True))
        self.store = self.server.store

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._run(self.server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("s") / "home"
    served = Serving(ControllerConfig(home=home, local_agent=False))
    served.store.add_measurements("c", [measured(size) for size in (1, 2, 3)])
    yield served
    served.close()


@pytest.fixture
def client(serving: Serving) -> Iterator[ControllerClient]:
    with grpc.insecure_channel(serving.server.address, options=MESSAGE_OPTIONS) as channel:
        yield ControllerClient(channel)


def test_the_server_looks_checks_and_copies(serving: Serving, tmp_path: Path) -> None:
    told = perform_at_home(serving.config, "info", {})
    assert told["rows"]["measurements"] == 3
    stages: list[str] = []
    found = perform_at_home(
        serving.config,
        "verify",
        {},
        on_progress=lambda stage, _done, _total: stages.append(stage),
    )
    assert (found["sound"], found["measurements"], found["graphs"]) == (True, 3, 3)
    assert set(stages) <= {"graphs", "measurements", "foreign_measurements"}
    made = perform_at_home(serving.config, "snapshot", {"folder": str(tmp_path / "snapshot")})
    assert made["rows"]["measurements"] == 3
    assert (tmp_path / "snapshot" / "graphs.parquet").is_file()
    options = {"origin": ORIGIN, "selection": EVERYTHING, "form": "csv"}
    written = perform_at_home(
        serving.config, "export", {**options, "folder": str(tmp_path / "export")}
    )
    assert (written["measurements"], written["graphs"]) == (3, 3)
    with pytest.raises(UsageError, match="exists"):
        perform_at_home(serving.config, "export", {**options, "folder": str(tmp_path / "export")})


def test_what_the_server_imports_answers_at_once_where_it_is_asked_for(
    serving: Serving, client: ControllerClient, tmp_path: Path
) -> None:
    folder = foreign(tmp_path / "theirs", 0)
    done = import_(serving.config, folder, lambda *_: None)
    assert done["added"] == IMPORTED_ROWS
    assert done["origin"]["source"] == "theirs"
    everything = list(client.detailed_results(foreign=True))
    assert len(everything) == IMPORTED_ROWS + 3
    assert len(list(client.detailed_results())) == 3
    theirs, details = next(row for row in everything if row[0].purpose == "network")
    assert theirs.conditions["foreign_licence"] == "BSD-3-Clause"
    assert details["campaign"] == ""
    question = Question(theirs.platform, theirs.graph_hash, measure=False, foreign=True)
    assert client.query(question).measurement.latency_ms == 2.0
    with pytest.raises(ControllerError):
        client.query(Question(theirs.platform, theirs.graph_hash, measure=False))
    assert import_(serving.config, folder, lambda *_: None)["imported_before"]
    actions = [
        json.loads(line)["action"] for line in serving.config.audit_file.read_text().splitlines()
    ]
    assert actions == ["database.import"] * 2


def test_a_graph_that_was_removed_is_kept_again_with_its_next_measurement(
    serving: Serving,
) -> None:
    serving.store.discard_measurements("", 0.0, "drift")
    told = perform_at_home(serving.config, "gc", {"remove": True})
    assert (told["discarded"], told["graphs"]) == (3, 3)
    serving.store.add_measurements("d", [measured(2)])
    found = perform_at_home(serving.config, "verify", {})
    assert (found["sound"], found["measurements"], found["graphs"]) == (True, 1, 1)


def test_a_client_that_leaves_stops_an_import_that_can_be_continued(
    serving: Serving, tmp_path: Path
) -> None:
    folder = foreign(tmp_path / "theirs", 0)
    options = {
        "folder": str(folder),
        "format": "",
        "origin": {"source": "theirs", "licence": "", "method": ""},
        "own": False,
        "dry_run": False,
    }
    with grpc.insecure_channel(serving.server.address, options=MESSAGE_OPTIONS) as channel:
        stub: Any = database_pb2_grpc.DatabaseServiceStub(channel)
        request = pb.PerformRequest(action="import", options_json=json.dumps(options))
        stream = stub.Perform(request)
        next(stream)
        stream.cancel()
    done = import_(serving.config, folder, lambda *_: None)
    assert done["added"] == IMPORTED_ROWS or done["imported_before"]
    rows = serving.store.file.number("SELECT count(*) FROM foreign_measurements")
    assert rows == IMPORTED_ROWS


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("drop", {}),
        ("export", {}),
        ("import", {"folder": "/nowhere", "own": False}),
        ("import", {"folder": "/nowhere", "format": "", "origin": {}, "own": 0, "dry_run": 0}),
        ("snapshot", {"folder": 3}),
    ],
)
def test_what_cannot_be_done_is_refused(
    serving: Serving, action: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        perform_at_home(serving.config, action, options)
    assert perform_at_home(serving.config, "info", {})["rows"]["measurements"] == 3


def test_other_machines_are_not_served() -> None:
    described = pb.DESCRIPTOR.services_by_name["DatabaseService"]
    assert not {method.name for method in described.methods} & set(roles.METHODS)
    assert roles.refusal("operator", f"/{described.full_name}/Perform") is not None


def test_without_a_server(tmp_path: Path) -> None:
    config = ControllerConfig(home=tmp_path / "home", local_agent=False)
    with pytest.raises(UsageError, match="no store yet"):
        perform_at_home(config, "info", {})
    folder = foreign(tmp_path / "theirs", 0)
    options = {"folder": str(folder), "format": "", "origin": {}, "own": False, "dry_run": True}
    done = perform_at_home(config, "import", options, make=True)
    assert (done["added"], done["dry_run"]) == (IMPORTED_ROWS, True)
    assert not config.store_file.exists(), "nothing is made for a rehearsal"
    with StoreLock(config.lock_file), pytest.raises(StoreBusyError):
        perform_at_home(config, "info", {})
