"""kill -9 of the serving process under queries, writes, imports and promotions.

Nothing is lost or doubled, no import is half there, and the model in use is the old or the new one.

`make test-database-kills` kills it 50 times, each run of the tests a few times.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.database_client import perform_at_home
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.app.question import Question
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import ControllerError
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.upkeep.verify import verify
from latfarm_controller.training.model_register import read_register
from latfarm_predictors.graph.hash import hash_of

from tests.controller.api.kill_server import (
    MODELS,
    PLATFORM,
    PROMOTED_PLATFORM,
    PROMOTIONS,
    measured,
    other,
    relu,
)

KILLS = int(os.environ.get("LATFARM_DATABASE_KILLS", "3"))
"""How many times the server is killed."""
IMPORTED_ROWS = 2500
"""Rows of each import: more than one step gathers."""
IMPORT_STEPS = 3
"""How often an import tells its progress: its graphs, and its rows in two steps."""
WAIT_S = 120.0
"""Longest wait for a state, in seconds."""
SERVER = Path(__file__).with_name("kill_server.py")
PARAM = "7767517\n2 2\nInput x 0 1 x 0={0} 1={0} 2=3\nReLU r 1 1 x r\n"

pytestmark = pytest.mark.timeout(3600 if KILLS > 3 else 300)


class Load:
    """What clients do to one server until it is killed, and what was acknowledged to them.

    Args:
        config: the home.
        known: rows that earlier servers acknowledged.
        first: number of the first row that is written.
        folder: what is imported.
        kill_at: which client decides when the server is killed, and after how many answers.
    """

    def __init__(
        self,
        config: ControllerConfig,
        known: list[int],
        first: int,
        folder: Path,
        kill_at: tuple[str, int],
    ) -> None:
        self.config = config
        self.written: list[int] = []
        self.sent = first - 1
        self.imported = False
        self.wrong: list[str] = []
        self._known = known
        self._some = threading.Event()
        self._folder = folder
        self._who, self._count = kill_at
        self._now = threading.Event()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LATFARM_")}
        environment |= {"LATFARM_HOME": str(config.home), "LATFARM_LOCAL_AGENT": "false"}
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> None:
        """Load the server, kill it, and wait until all clients have noticed."""
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        assert address.startswith("unix:"), "the server did not start"
        clients: list[Callable[[str], None]] = [self._write, self._ask, self._import]
        threads = [threading.Thread(target=self._client, args=(c, address)) for c in clients]
        for thread in threads:
            thread.start()
        reached = self._now.wait(WAIT_S)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._some.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert reached, f"{self._who} did not answer {self._count} times"
        assert not any(thread.is_alive() for thread in threads)

    def _client(self, client: Callable[[str], None], address: str) -> None:
        try:
            client(address)
        except (ControllerError, OSError, ValueError) as error:
            if not self._now.is_set():
                self.wrong.append(f"{client.__name__}: {error!r}")
                self._now.set()

    def _answered(self, who: str, count: int) -> None:
        if who == self._who and count >= self._count:
            self._now.set()

    def _write(self, _address: str) -> None:
        """Ask for one row after the other, and note each that is acknowledged."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        while True:
            number = self.sent = self.sent + 1
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
            if self.process.stdout.readline() != f"{number}\n":
                return
            self.written.append(number)
            self._some.set()
            self._answered("writes", len(self.written))

    def _ask(self, address: str) -> None:
        """Ask for what was acknowledged; its answer must be there at once, and right."""
        answered = 0
        with grpc.insecure_channel(address, options=MESSAGE_OPTIONS) as channel:
            client = ControllerClient(channel)
            if not self._known:
                self._some.wait(WAIT_S)
            while self._known or self.written:
                known = [*self._known[-1:], *self.written[-1:]]
                for number in known:
                    question = Question(PLATFORM, graph_hash=hash_of(relu(number)), measure=False)
                    found = client.query(question)
                    if found.measurement != measured(number)[0]:
                        self.wrong.append(f"{number} was answered by {found.measurement}")
                    answered += 1
                    self._answered("queries", answered)

    def _import(self, _address: str) -> None:
        """Import a folder; each step that is told counts, the outcome too."""
        steps = 0

        def step(_stage: str, _done: int, _total: int) -> None:
            nonlocal steps
            steps += 1
            self._answered("import", steps)

        done = import_(self.config, self._folder, step)
        self.imported = True
        if done["added"] != IMPORTED_ROWS:
            self.wrong.append(f"{done['added']} rows were imported")
        self._answered("import", IMPORT_STEPS + 1)


def import_(
    config: ControllerConfig, folder: Path, on_progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    options = {
        "folder": str(folder),
        "format": "ncnn",
        "origin": {"source": folder.name, "licence": "", "method": ""},
        "own": False,
        "dry_run": False,
    }
    return perform_at_home(config, "import", options, wait_s=WAIT_S, on_progress=on_progress)


def foreign(folder: Path, number: int) -> Path:
    """A table in the form of ncnn's, which differs from all others."""
    (folder / "models").mkdir(parents=True)
    for size in (4, 5):
        (folder / "models" / f"net{size}.param").write_text(PARAM.format(size))
    head = "board,run,num_threads,powersave,gpu_device,loop_count,model,min_ms,max_ms,avg_ms"
    rows = [f"b{number},{i},1,0,-1,4,net{4 + i % 2},1,3,2" for i in range(IMPORTED_ROWS)]
    (folder / "benchmarks.csv").write_text("\n".join([head, *rows, ""]))
    return folder


def check(config: ControllerConfig, loads: list[Load], folders: list[Path]) -> None:
    """Nothing that was acknowledged is lost, nothing is doubled, and no import is half there."""
    file = DuckDBFile(config.store_file)
    try:
        rows = dict(file.all("SELECT request_id, count(*) FROM measurements GROUP BY 1"))
        assert set(rows.values()) <= {1}
        told = {f"r{number}" for load in loads for number in load.written}
        asked = {f"r{number}" for load in loads for number in range(1, load.sent + 1)}
        assert told <= rows.keys() <= asked
        found = dict(
            file.all(
                "SELECT source, count(*) FROM foreign_measurements JOIN imports USING (import_id) "
                "WHERE state = 'done' GROUP BY 1"
            )
        )
        for load, folder in zip(loads, folders, strict=True):
            allowed = {IMPORTED_ROWS} if load.imported else {0, IMPORTED_ROWS}
            assert found.get(folder.name, 0) in allowed
        assert sum(found.values()) == file.number("SELECT count(*) FROM foreign_measurements")
        assert file.all("SELECT story FROM losses") == []
    finally:
        file.close()


def with_models(config: ControllerConfig) -> None:
    """Put two models of a platform into the home."""
    folder = config.bundles_dir / PROMOTED_PLATFORM
    folder.mkdir(parents=True)
    for number in MODELS:
        (folder / f"{number}.zip").write_bytes(b"")


def check_promoted(config: ControllerConfig, kills: int) -> None:
    """No promotion that was done is lost; each kill leaves at most one that nobody was told of."""
    register = read_register(config.bundles_dir / PROMOTED_PLATFORM)
    file = config.home / PROMOTIONS
    done = file.read_text().split() if file.exists() else []
    promoted = [each.model for each in register.history if each.action == "promote"]
    assert len(done) <= len(promoted) <= len(done) + kills
    assert all(after == other(before) for before, after in itertools.pairwise(promoted))
    assert register.promoted == (promoted[-1] if promoted else MODELS[-1])
    assert sorted(model.state == "promoted" for model in register.models.values()) == [False, True]


def test_a_killed_server_loses_nothing_that_it_acknowledged(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("kills")
    config = ControllerConfig(home=folder / "home", local_agent=False)
    config.make_dirs()
    with_models(config)
    draw = random.Random(19)
    kinds = ("import", "writes", "queries")
    loads: list[Load] = []
    folders: list[Path] = []
    for number in range(KILLS):
        kind = kinds[number % len(kinds)]
        count = draw.randint(1, IMPORT_STEPS) if kind == "import" else draw.randint(1, 40)
        folders.append(foreign(folder / f"import{number}", number))
        first = loads[-1].sent + 1 if loads else 1
        known = [row for earlier in loads for row in earlier.written]
        load = Load(config, known, first, folders[-1], (kind, count))
        loads.append(load)
        try:
            load.run()
        finally:
            load.process.kill()
            load.process.communicate()
        assert load.wrong == []
        check(config, loads, folders)
        check_promoted(config, number + 1)
    for load, place in zip(loads, folders, strict=True):
        done = import_(config, place, lambda _stage, _done, _total: None)
        assert done["imported_before"] or done["added"] == IMPORTED_ROWS
        assert not load.imported or done["imported_before"]
        load.imported = True
    check(config, loads, folders)
    file = DuckDBFile(config.store_file)
    try:
        assert verify(file).sound
        assert file.number("SELECT count(*) FROM staged_measurements") == 0
    finally:
        file.close()
