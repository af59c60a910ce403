"""Looks whether the Ray that this process uses still works, and how many cores it has."""

from __future__ import annotations

import importlib
from typing import Any

GUARDED = ("gcs_server", "raylet")
"""The processes of Ray, by Ray's own names, without which nothing works."""


def ended_process() -> str:
    """Which process of a Ray that was started here has ended; empty: none, or Ray was joined.

    Ray itself notices the death of its GCS only after a minute, and then ends this process.
    """
    node: Any = importlib.import_module("ray._private.worker")._global_node
    if node is None:
        return ""
    for kind in GUARDED:
        for found in node.all_processes.get(kind, ()):
            if found.process.poll() is not None:
                return f"{kind} ended with {found.process.returncode}"
    return ""


def ended_child() -> str:
    """Which child of this process, started by Ray, has ended unnoticed; empty: none has.

    While Ray starts, `ended_process` knows none of its processes, and Ray itself waits half a
    minute for a raylet that has ended. A process that Ray ends by itself, to start it once more, is
    not found here, because Ray waits for its end at once.
    """
    import psutil

    for child in psutil.Process().children():
        try:
            if child.name() in GUARDED and child.status() == psutil.STATUS_ZOMBIE:
                return f"{child.name()} ended while Ray was starting"
        except psutil.NoSuchProcess:
            continue
    return ""


def living_cores(node_id: str) -> int:
    """The cores of all living nodes of the cluster. It waits for the cluster, so use a thread.

    Args:
        node_id: of the node that this process uses.

    Raises:
        RuntimeError: this node counts as dead; without it, this process can do nothing.
    """
    ray: Any = importlib.import_module("ray")
    living = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    if node_id not in living:
        raise RuntimeError("the cluster counts the Ray node of this host as dead")
    return int(sum(resources.get("CPU", 0) for resources in living.values()))
