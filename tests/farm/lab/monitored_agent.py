"""An agent of a simulated board whose sensors are files in a folder, which tests write.

Usage: `python -m tests.farm.lab.monitored_agent FOLDER serve ...`, with the arguments of
`latfarm-agent` after FOLDER.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.cli import main


def serve(folder: Path, arguments: list[str]) -> int:
    """Run the agent with sensors in `folder`; return its exit status."""

    def make_bench(args: argparse.Namespace, work_dir: Path) -> Bench:
        return simulated_bench(
            BenchOptions(args.name, args.hardware, work_dir), args.simulate, root=folder
        )

    return main(arguments, make_bench)


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), sys.argv[2:]))
