"""Runs a benchmark for several platforms, each in a process of its own.

Ray and gRPC read environment variables once. A second Ray cluster in one process would have the
token of the first one, and with gRPC's handlers for forks, no cluster can be started beside a
server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

_ENVIRONMENT = {"GRPC_ENABLE_FORK_SUPPORT": "0"}


def fit_for_a_farm() -> bool:
    """Whether this process has the environment variables that a farm needs."""
    return _ENVIRONMENT.items() <= os.environ.items()


def chosen_platforms(options: argparse.Namespace) -> list[tuple[str, ...]]:
    """The flags of each platform of `--platform` and of each board of `--simulate`."""
    named: list[tuple[str, ...]] = [("--platform", name) for name in options.platform]
    return named + [("--simulate", name) for name in options.simulate]


def each_in_its_own_process(
    module: str,
    options: argparse.Namespace,
    names: Iterable[str],
    chosen: Sequence[Sequence[str]],
) -> int:
    """Run a benchmark for each of `chosen`; gives the highest exit code, or 2 if there are none.

    Args:
        module: module of the benchmark.
        options: the options that were given.
        names: names of the options that all processes get, beside the switch `write`.
        chosen: for each process, the flags that only it gets.
    """
    common = [sys.executable, "-m", module]
    for name in names:
        flag, value = f"--{name.replace('_', '-')}", getattr(options, name)
        if isinstance(value, bool | list):
            each = [] if isinstance(value, bool) else [str(one) for one in value]
            common += [flag, *each] if value else []
        elif value is not None:
            common += [flag, str(value)]
    common += ["--write"] if options.write else []
    environment = os.environ | _ENVIRONMENT
    codes = [
        subprocess.run([*common, *each], env=environment, check=False).returncode for each in chosen
    ]
    return max(codes, default=2)
