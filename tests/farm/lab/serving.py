"""`latfarm serve` for the boards that playbooks have enrolled, with Ray, as an operator runs it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.config import ControllerConfig

from tests.farm.boards.patience import scaled_s
from tests.farm.lab.enrolment import LabController
from tests.farm.lab.processes import until

_END_S = 60.0
"""How long the controller may take to end on a quiet host, in seconds; then it is killed."""

_START_S = 180.0
"""How long the controller may take to start on a quiet host, in seconds; Ray starts with it."""


@contextmanager
def serving(controller: LabController, log: Path) -> Iterator[ControllerClient]:
    """Run `latfarm serve` while the `with` block lasts; yields a client of it.

    Args:
        controller: its home folder has the boards.
        log: file for what it prints; it does not exist yet.
    """
    own = {"LATFARM_HOME": str(controller.home), "LATFARM_RAY_CPUS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            controller.command("-v", "serve"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **own},
            start_new_session=True,
        )

    def serves() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        return "latfarm serves on" in log.read_text()

    try:
        until(serves, lambda: log.read_text()[-3000:], _START_S)
        socket = ControllerConfig(home=controller.home).socket_file
        with grpc.insecure_channel(f"unix:{socket}", options=MESSAGE_OPTIONS) as channel:
            yield ControllerClient(channel)
    finally:
        process.terminate()
        try:
            process.wait(scaled_s(_END_S))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
