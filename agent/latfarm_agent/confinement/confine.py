"""A worker confines itself, before it loads a runtime and touches a model.

Each kernel gives what it has, and what was done is told. Nothing of it can be taken back by this
process or by what it starts.
"""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping

from latfarm_agent.confinement import capabilities, landlock, linux, paths, seccomp
from latfarm_agent.confinement.plan import (
    CALLS,
    FILES,
    LIMITS,
    MOST_PROTECTION_CHARS,
    NETWORK,
    OFF,
    ON,
    PRIVILEGES,
    SIGNALS,
    Confinement,
)

_ADDRESSES_BEYOND = 64 << 30
"""Address space beyond the bound of memory: libraries reserve much of it that they never touch."""

_GPU_DEVICES = ("nvidia*", "nvmap", "kfd", "dri/render*", "dxg")
"""Where one of these is below /dev, address space is not bounded: drivers reserve terabytes."""

_SWITCHED_OFF = f"{OFF}: the agent's configuration switches it off"


@dataclass(frozen=True)
class WorkerGround:
    """What a worker has and what it may use.

    Attributes:
        folders: folders that it writes to.
        models: folder with its models, which it reads.
        options: the options of its runtime; files that they name can be read.
        search_path: folders of Python modules that it needs.
        memory_bytes: bound of its memory; 0: none.
        tasks: how many processes and threads it may add to those of its user; 0: no bound.
        own_ipc: whether System V objects end with it, as it has a namespace of its own for them.
    """

    folders: tuple[Path, ...]
    models: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    search_path: tuple[str, ...] = ()
    memory_bytes: int = 0
    tasks: int = 0
    own_ipc: bool = False


def confine(plan: Confinement, ground: WorkerGround) -> dict[str, str]:
    """Confine this process for ever; gives what is told of each protection.

    The process must have one thread.
    """
    if not plan.enabled:
        return dict.fromkeys((FILES, SIGNALS, NETWORK, CALLS, PRIVILEGES), _SWITCHED_OFF)
    if not linux.is_linux():
        lacking = f"{OFF}: this system is not Linux"
        return dict.fromkeys((FILES, SIGNALS, NETWORK, CALLS, PRIVILEGES, LIMITS), lacking)
    hidden = [Path(path) for path in plan.hidden]
    own = {Path(os.path.realpath(str(folder))) for folder in ground.folders}
    named = (*plan.read, *ground.search_path)
    # Python looks for modules in the working folder, but what is written there is not executed.
    programs = [p for p in paths.programs(ground.options, named, hidden) if p not in own]
    told = {LIMITS: _bound(ground)}
    told[PRIVILEGES] = _give_up_privileges(programs)
    found = 0
    try:
        found = landlock.restrict(_grants(plan, ground, programs, hidden))
        told[FILES] = f"{ON}: Landlock {found}"
    except OSError as error:
        told[FILES] = f"{OFF}: {_reason(error)}"
    signals = found >= landlock.VERSION_SIGNALS
    filtered = ""
    try:
        seccomp.install(
            seccomp.FilterNeeds(
                pid=os.getpid(),
                signals=not signals and not plan.ports,
                truncation=found < landlock.VERSION_TRUNCATE,
                lasting=not ground.own_ipc,
                permissions=not plan.ports,  # clients of devices set them
                connections=bool(plan.ports),
                unix_sockets=plan.unix_sockets,
            )
        )
        told[CALLS] = f"{ON}: seccomp"
    except OSError as error:
        filtered = _reason(error)
        told[CALLS] = f"{OFF}: {filtered}"
    told[SIGNALS] = _signals(signals, filtered, plan)
    told[NETWORK] = _network(found, filtered, plan)
    return {name: text[:MOST_PROTECTION_CHARS] for name, text in told.items()}


def _grants(
    plan: Confinement, ground: WorkerGround, programs: list[Path], hidden: list[Path]
) -> landlock.Grants:
    models = [] if ground.models is None else [ground.models]
    return landlock.Grants(
        read=tuple(programs),
        data=(*paths.facts(hidden), *models),
        names=(Path("/dev"),),  # whoever may read all devices reads the disk past all files
        write=(*ground.folders, *(Path(path) for path in plan.write)),
        devices=tuple(paths.devices()),
        ports=plan.ports,
    )


def _give_up_privileges(programs: list[Path]) -> str:
    """Give up capabilities and the way to new ones; gives what is told of it."""
    kept: tuple[int, ...] = ()
    try:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    except OSError as error:
        return f"{OFF}: {_reason(error)}"
    if not capabilities.held():
        return f"{ON}: no new privileges"
    try:
        if not capabilities.can_read_without(programs):
            # Python lies in a folder of another user, for example of the one who called sudo.
            kept = (capabilities.READ_SEARCH,)
        capabilities.drop(kept)
    except OSError as error:
        return f"{OFF}: capabilities stay: {_reason(error)}"
    rest = ", all capabilities dropped" if not kept else ", capabilities dropped but for reading"
    return f"{ON}: no new privileges{rest}"


def _bound(ground: WorkerGround) -> str:
    """Bound what the kernel can bound for one process; gives what is told of it."""
    bounded = ["memory"] if ground.memory_bytes else []
    gpu = any(any(Path("/dev").glob(pattern)) for pattern in _GPU_DEVICES)
    if ground.memory_bytes and not gpu:
        _limit(resource.RLIMIT_AS, ground.memory_bytes + _ADDRESSES_BEYOND)
        bounded.append("address space")
    if ground.tasks and os.getuid() != 0:
        _limit(resource.RLIMIT_NPROC, _tasks_of_user() + ground.tasks)
        bounded.append("processes")
    _limit(resource.RLIMIT_CORE, 0)
    names = ", ".join([*bounded, "core dumps"])
    return f"{ON}: {names}; the agent watches memory, disk, files, processes and threads"


def _tasks_of_user() -> int:
    """Processes and threads of this user: the kernel counts them all against one limit."""
    count = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            lines = (line.partition(":") for line in status.read_text().splitlines())
            fields = {name: value.split() for name, _, value in lines if value}
            if int(fields["Uid"][0]) == os.getuid():
                count += int(fields["Threads"][0])
    return count


def _signals(by_landlock: bool, filtered: str, plan: Confinement) -> str:
    if by_landlock:
        return f"{ON}: Landlock"
    if plan.ports:
        return f"{OFF}: Landlock 6 is needed, as the worker ends programs that it starts"
    return f"{OFF}: {filtered}" if filtered else f"{ON}: seccomp"


def _network(found: int, filtered: str, plan: Confinement) -> str:
    if plan.ports:
        ports = ", ".join(map(str, plan.ports))
        if found >= landlock.VERSION_PORTS:
            return f"{ON}: Landlock, but for port {ports}"
        return f"{OFF}: Landlock 4 is needed, as the worker connects to port {ports}"
    if filtered:
        return f"{OFF}: {filtered}"
    return f"{ON}: seccomp, but for Unix sockets" if plan.unix_sockets else f"{ON}: seccomp"


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (bound, bound))


def _reason(error: OSError) -> str:
    return " ".join(str(error.strerror or error).split())
