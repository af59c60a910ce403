"""A worker that was taken over reaches nothing: no key, no model, no process, no network.

The board works beside the authority's key in the same home, as the board `local` does. Each act is
done by the runtime itself, in the worker; what it tells is compared with what really happened.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from latfarm_agent.agent_config import AgentConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.confinement.plan import FILES, NETWORK, PRIVILEGES, SIGNALS, Confinement, is_on
from latfarm_agent.files.blobs import BlobStore
from latfarm_agent.testing.runtime_suite import changed, measure, worker_pids
from latfarm_agent.worker import keeper
from tests.agent.bench.bad_kit import BAD, LIMITS, PATIENTLY, SHORT, check, lay_out, plan, steady

ONCE = changed(PATIENTLY, sessions=1)
KEY = b"-----BEGIN PRIVATE KEY-----"


@dataclass(frozen=True)
class Local:
    """A home with the authority's key, and the board `local` in it."""

    folder: Path
    bench: Bench
    key: Path
    blob: Path

    @property
    def protection(self) -> dict[str, str]:
        return dict(self.bench.describe()[0].protection)

    def told(self, act: str) -> dict[str, str]:
        """Do an act; returns what the worker told about it."""
        result = measure(
            self.bench, BAD, plan(self.folder, "prepare", act), settings=ONCE, request_id=act
        )
        assert result.outcome == "ok", result.error_message
        found: dict[str, str] = json.loads(result.conditions["told"])
        return found

    def needs(self, *names: str) -> None:
        """Skip the test where the kernel lacks a protection; then the board says so."""
        for name in names:
            if not is_on(self.protection[name]):
                pytest.skip(f"{name}: {self.protection[name]}")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    folder = lay_out(tmp_path_factory.mktemp("reach"))
    home = folder / "home"
    key = home / "tls" / "ca.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(KEY)
    key.chmod(0o600)
    state = home / "agents" / "local"
    store = BlobStore(state / "blobs")
    data = b"a verified model"
    blob = state / "blobs" / hashlib.sha256(data).hexdigest()
    upload = store.begin(blob.name, len(data), 0)
    assert upload is not None
    with upload:
        upload.write(data)
        upload.finish()
    with socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:
        unix.bind(str(home / "api.sock"))
        unix.listen()
        targets = {
            "key": str(key),
            "home": str(home),
            "blob": str(blob),
            "agent": str(os.getpid()),
            "socket": str(home / "api.sock"),
            "port": str(tcp.getsockname()[1]),
        }
        (folder / "plugins" / "targets.json").write_text(json.dumps(targets))
        bench = local_bench(folder, state / "bench", home)
        yield Local(folder, bench, key, blob)
        bench.close()
    assert sorted(path.name for path in home.iterdir()) == ["agents", "api.sock", "tls"]


def local_bench(
    folder: Path, work_dir: Path, home: Path, confinement: Confinement | None = None
) -> Bench:
    return host_bench(
        BenchOptions(
            "board",
            None,
            work_dir,
            runtimes={"acts": "bad_acts:Acts", "steady": "bad_acts:Steady"},
            search_path=[folder / "plugins"],
            config=AgentConfig(confinement=confinement or Confinement()),
            limits=LIMITS,
            hidden=(home,),
        ),
        cpu=sorted(os.sched_getaffinity(0))[0],
    )


def test_the_worker_beside_the_authority_cannot_read_its_key(local: Local) -> None:
    local.needs(FILES)
    told = local.told("steal")
    assert {name for name, how in told.items() if how == "done"} == set()
    assert local.key.read_bytes() == KEY
    assert local.key.stat().st_mode & 0o777 == 0o600
    steady(local.bench, local.folder)


def test_a_worker_changes_no_model(local: Local) -> None:
    local.needs(FILES)
    told = local.told("overwrite")
    assert {name for name, how in told.items() if how == "done"} == set()
    assert hashlib.sha256(local.blob.read_bytes()).hexdigest() == local.blob.name
    assert local.blob.stat().st_mode & 0o777 == 0o400


def test_a_worker_signals_neither_its_keeper_nor_the_agent(local: Local) -> None:
    local.needs(SIGNALS)
    before = worker_pids()
    told = local.told("kill_others")
    assert {name for name, how in told.items() if how == "done"} == set()
    local.bench.describe()
    result = measure(
        local.bench, BAD, plan(local.folder, "prepare", "signal_by_file"), settings=ONCE
    )
    assert result.outcome == "ok", result.error_message
    assert before <= worker_pids()


def test_stopping_the_keeper_is_refused(local: Local) -> None:
    local.needs(SIGNALS)
    result = measure(local.bench, BAD, plan(local.folder, "run", "stop_the_keeper"), settings=SHORT)
    check(result, "MODEL_FAILED", "PermissionError")


def test_a_worker_speaks_to_nobody(local: Local) -> None:
    local.needs(NETWORK)
    told = local.told("connect")
    assert {name for name, how in told.items() if how == "done"} == set()


def test_a_worker_does_not_change_the_machine(local: Local) -> None:
    local.needs(FILES, PRIVILEGES)
    told = local.told("reach_out")
    assert {name for name, how in told.items() if how == "done"} == set()


def test_a_process_that_was_left_behind_ends_with_its_request(local: Local) -> None:
    left = int(local.told("daemonise")["left"])
    assert not Path(f"/proc/{left}").exists()
    steady(local.bench, local.folder)


def test_what_a_worker_left_ends_although_its_keeper_was_killed(tmp_path: Path) -> None:
    """Somebody else kills the keeper: the control group or the kernel's signal ends the rest."""
    folder = lay_out(tmp_path)
    (folder / "plugins" / "targets.json").write_text("{}")
    bench = local_bench(folder, tmp_path / "work", tmp_path / "home")
    before = worker_pids()
    try:
        steady(bench, folder)
        (worker,) = worker_pids() - before
        parent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        until = time.monotonic() + 30.0
        while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert not Path(f"/proc/{worker}").exists()
        steady(bench, folder)
    finally:
        bench.close()
    assert not keeper.descendants(os.getpid()) & {worker}


def test_the_configuration_switches_it_off_and_the_board_says_so(tmp_path: Path) -> None:
    folder = lay_out(tmp_path)
    (folder / "plugins" / "targets.json").write_text("{}")
    bench = local_bench(folder, tmp_path / "work", tmp_path / "home", Confinement(enabled=False))
    try:
        protection = bench.describe()[0].protection
        steady(bench, folder)
    finally:
        bench.close()
    assert not is_on(protection[FILES])
    assert "configuration" in protection[FILES]


def test_a_blob_that_was_changed_is_not_run(local: Local, tmp_path: Path) -> None:
    wrong = tmp_path / local.blob.name
    wrong.write_bytes(b"another model")
    result = measure(local.bench, BAD, wrong, settings=ONCE)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "BLOB_MISSING")
    assert "damaged" in result.error_message


def test_limits_hold_beside_the_confinement(local: Local) -> None:
    result = measure(
        local.bench, BAD, plan(local.folder, "run", "fork_daemons"), settings=PATIENTLY
    )
    check(result, "LIMIT_EXCEEDED", "processes; 16 are allowed")
    steady(local.bench, local.folder)
