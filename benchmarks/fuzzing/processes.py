"""The processes that are attacked: an agent with and without TLS, and a controller."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.api.client import ControllerClient
from latfarm_protos.trust.contexts import Files

from benchmarks.fuzzing.attacks import Port

PROFILE = {
    "platform": "toy",
    "peak_macs_per_ms": 2e6,
    "bandwidth_bytes_per_ms": 4e6,
    "overhead_ms": 0.01,
    "noise": 0.01,
}
"""The simulated board that the agent under attack is."""
AGENT_METHODS = ("Describe", "AcquireLease", "RenewLease", "GetBlob", "UploadBlob", "Measure",
                 "Profile", "ListResults", "Acknowledge", "ReleaseLease", "Work")  # fmt: skip
CONTROLLER_METHODS = ("ListBoards", "Predict", "Query", "StartCampaign", "GetCampaign",
                      "DrainBoard", "ListResults", "WatchBoard")  # fmt: skip


@contextmanager
def started(
    command: list[str], folder: Path, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended with the block.

    Args:
        command: its command line.
        folder: its home; its output goes to the file `log` there.
        environment: variables that are added to the environment.
    """
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, text=True, start_new_session=True,
            env={**os.environ, "LATFARM_HOME": str(folder), "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(find: Callable[[], str], process: subprocess.Popen[str], what: str) -> str:
    """Call `find` until it returns a text; `what` names the process in errors."""
    deadline_s = time.monotonic() + 60
    while True:
        found = find()
        if found:
            return found
        assert process.poll() is None, f"{what} ended"
        assert time.monotonic() < deadline_s, f"{what} was not ready"
        select.select([], [], [], 0.05)


@contextmanager
def agent(folder: Path, tls: ControllerTlsFiles | None, files: Files | None) -> Iterator[Port]:
    """An agent with a simulated board.

    Args:
        folder: its home, which is made.
        tls: our files for calls through its gate; None: it serves without TLS.
        files: the same, as the attacks use them.
    """
    folder.mkdir()
    profile = folder / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    port_file = folder / "port"
    command = [sys.executable, "-m", "latfarm_agent.cli", "serve", "--listen", "127.0.0.1:0"]
    command += ["--simulate", str(profile), "--name", "toy", "--state-dir", str(folder / "state")]
    command += ["--port-file", str(port_file)]
    if files is not None:
        shown = folder.parent / "tls" / "issued"
        command += ["--tls-cert", str(shown / "toy.crt"), "--tls-key", str(shown / "toy.key")]
        command += ["--tls-ca", str(files.ca)]
    with started(command, folder) as process:
        address = wait_for(lambda: _text(port_file), process, "the agent")
        host, _, port = address.rpartition(":")

        def works() -> None:
            asyncio.run(_measure(address, tls))

        yield Port(
            "agent" if tls is None else "agent behind TLS", host, int(port),
            psutil.Process(process.pid), "latfarm_protos.v1.AgentService", AGENT_METHODS, works,
            files,
        )  # fmt: skip


async def _measure(address: str, tls: ControllerTlsFiles | None) -> None:
    """Lease the board, upload a model and measure it, as a campaign does."""
    import hashlib

    from latfarm_controller.farm.boards.interfaces import BoardRequest, GraphName
    from latfarm_predictors.graph.builder import GraphBuilder
    from latfarm_predictors.graph.hash import hash_of
    from latfarm_predictors.measurement import Settings

    b = GraphBuilder("probe")
    graph = b.build([b.relu(b.conv(b.input((1, 3, 16, 16)), 8, 3))])
    data = graph.dumps().encode()
    sha256 = hashlib.sha256(data).hexdigest()
    quick = Settings(sessions=1, warmup_runs=1, warmup_ms=0.0, min_runs=3, max_runs=5, max_ms=5.0)
    async with AgentClient(address, "fuzz", tls) as client:
        platform = (await client.describe()).platforms[0].name
        await client.acquire(30_000)
        await client.upload(sha256, data)
        question = BoardRequest(
            f"r{time.monotonic_ns()}", platform, "query", quick, False, GraphName(hash_of(graph))
        )
        answer = await client.measure(question, sha256)
        await client.release()
    assert answer.ok, answer


def _text(path: Path) -> str:
    text = path.read_text() if path.exists() else ""
    return text.strip() if text.endswith("\n") else ""


@contextmanager
def controller(folder: Path) -> Iterator[Port]:
    """A controller that runs `latfarm serve --listen`; `folder` is its home."""
    from latfarm_controller.cli.shell.connect import remote_channel
    from latfarm_controller.config import ControllerConfig

    shown = folder / "tls" / "issued"
    files = Files(shown / "ada.crt", shown / "ada.key", folder / "tls" / "ca.crt")
    command = [sys.executable, "-m", "latfarm_controller.cli.main", "serve"]
    command += ["--listen", "127.0.0.1:0"]
    log = folder / "log"
    log.unlink(missing_ok=True)
    with started(command, folder, LATFARM_LOCAL_AGENT="false") as process:
        mark = "latfarm serves other machines on "

        def find() -> str:
            text = log.read_text() if log.exists() else ""
            return text.partition(mark)[2].partition("\n")[0].strip() if mark in text else ""

        address = wait_for(find, process, "the controller")
        host, _, port = address.rpartition(":")
        config = ControllerConfig(
            home=folder, controller=address, tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca
        )

        def works() -> None:
            with remote_channel(config) as opened:
                ControllerClient(opened).campaigns()

        yield Port(
            "controller behind TLS", host, int(port), psutil.Process(process.pid),
            "latfarm_protos.v1.ControllerService", CONTROLLER_METHODS, works, files,
        )  # fmt: skip
