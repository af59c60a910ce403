"""How a worker process is started: its command, its environment and its folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Mapping, NamedTuple

from latfarm_agent.confinement import cgroups
from latfarm_agent.worker.failure import WorkerFailure
from latfarm_agent.worker.guard import Bounds
from latfarm_agent.worker.launcher import Launcher
from latfarm_agent.worker.main import WorkerConfig
from latfarm_agent.worker.talk import TAKE_TIMEOUT_MS

START_TIMEOUT_MS = 120_000.0
"""How long a worker may take to load its runtime, unless its limits say otherwise."""

FOLDER_PREFIX = "worker-"
"""Prefix of the names of workers' folders."""


@dataclass(frozen=True)
class WorkerStart:
    """How one worker is started, and what it may use.

    Attributes:
        config: what the worker process is told.
        directory: the worker runs in a folder of its own below it.
        python: interpreter with an environment of its own, which need not hold this distribution;
            empty: the agent's interpreter.
        start_timeout_ms: how long it may take to load its runtime.
        take_timeout_ms: how long it may take to begin with a request.
        bounds: what all processes of the worker together may use during a request.
    """

    config: WorkerConfig
    directory: Path
    python: str = ""
    start_timeout_ms: float = START_TIMEOUT_MS
    take_timeout_ms: float = TAKE_TIMEOUT_MS
    bounds: Bounds = field(default_factory=Bounds)


class Launched(NamedTuple):
    """A worker that was started: its folder, the process, and its control group if it has one."""

    folder: Path
    process: subprocess.Popen[bytes]
    group: Path | None


def launch(launcher: Launcher, start: WorkerStart) -> Launched:
    """Start the process in a new folder.

    Raises:
        WorkerFailure: WORKER_FAILED, it cannot be started.
    """
    python = start.python or sys.executable
    try:
        environment = _environment(start)
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=str(start.directory)))
        config = _with_group(start.config, folder.name)
        arguments = [python, "-m", "latfarm_agent.worker.main", config.dumps()]
        temporary = folder / "tmp"
        temporary.mkdir()
        for name in ("TMPDIR", "TMP", "TEMP"):
            environment[name] = str(temporary)
        process = launcher.popen(arguments, environment, folder)
        return Launched(folder, process, Path(config.group) if config.group else None)
    except OSError as error:
        raise WorkerFailure("WORKER_FAILED", f"no worker could be started: {error}") from error


def _with_group(config: WorkerConfig, name: str) -> WorkerConfig:
    """The configuration with a control group for the worker, or with why there is none."""
    if not config.confinement.enabled:
        return config
    try:
        group = cgroups.make(f"{os.getpid()}-{name}", config.tasks)
    except OSError as error:
        return replace(config, no_group=str(error.strerror or error))
    return replace(config, group=str(group))


def _environment(start: WorkerStart) -> dict[str, str]:
    """The environment variables of a worker, still without its folder for temporary files."""
    environment = dict(os.environ)
    if start.python:
        environment["PYTHONPATH"] = str(_only_the_agent(start.directory))
    # A runtime's own thread pools follow the platform's setting, not the number of cores.
    environment["OMP_NUM_THREADS"] = str(start.config.options.get("threads", 1))
    # The probe measures one core: numpy's own matrix product must not spread over several.
    environment["OPENBLAS_NUM_THREADS"] = "1"
    environment["PYTHONUNBUFFERED"] = "1"
    return for_another_folder(environment)


def for_another_folder(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for a Python that starts in another folder than this process.

    Relative entries of PYTHONPATH would point elsewhere there.
    """
    found = dict(environment)
    if found.get("PYTHONPATH"):
        entries = found["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(str(Path(e).absolute()) for e in entries)
    return found


def _only_the_agent(directory: Path) -> Path:
    """A folder from which another interpreter can import this distribution and nothing else.

    The folder in which this distribution is installed may hold libraries for another Python.
    """
    here = Path(__file__).absolute().parent.parent
    folder = directory / "import"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / here.name
    if not link.is_symlink() or os.readlink(str(link)) != str(here):
        made = folder / f".{here.name}.{os.getpid()}.{threading.get_ident()}"
        with contextlib.suppress(FileNotFoundError):
            made.unlink()
        made.symlink_to(here)
        made.replace(link)
    return folder
