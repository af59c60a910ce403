"""Platforms judged one after the other, each in a process of its own.

Ray and gRPC read their surroundings once: a second cluster in one process has the first one's
token, and with gRPC's fork handlers on, none can be started beside a server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

_SURROUNDINGS = {"GRPC_ENABLE_FORK_SUPPORT": "0"}


def fit_for_a_farm() -> bool:
    """Whether this process was started so that it can have a farm."""
    return _SURROUNDINGS.items() <= os.environ.items()


def chosen_platforms(options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Flags of each platform of `--platform` and of each board of `--simulate`."""
    named: list[tuple[str, ...]] = [("--platform", name) for name in options.platform]
    return named + [("--simulate", name) for name in options.simulate]


def each_in_its_own_process(
    module: str,
    options: argparse.Namespace,
    names: Iterable[str],
    chosen: Sequence[Sequence[str]],
) -> int:
    """Run a benchmark for each of `chosen`; the worst exit code, 2 for none.

    Args:
        module: of the benchmark.
        options: as given to it.
        names: those of the options that all processes get; `write` is a switch of all benchmarks.
        chosen: the flags that are one process's own.
    """
    common = [sys.executable, "-m", module]
    for name in names:
        flag, value = f"--{name.replace('_', '-')}", getattr(options, name)
        common += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
    common += ["--write"] if options.write else []
    environment = os.environ | _SURROUNDINGS
    codes = [
        subprocess.run([*common, *each], env=environment, check=False).returncode for each in chosen
    ]
    return max(codes, default=2)
