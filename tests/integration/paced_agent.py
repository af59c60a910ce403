"""An agent with a simulated board that waits for the test before each measurement.

The module `paced_runtime` describes how a test makes it wait.
Usage: `python paced_agent.py serve ...`, with the arguments of `latfarm-agent`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from latfarm_agent.agent_config import AgentConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.cli import main
from latfarm_agent.confinement.plan import Confinement

RUNTIMES = {"simulated": "paced_runtime:PacedRuntime"}
"""Import path of each runtime; the agent's worker imports it from the folder of this file."""


def make_bench(args: argparse.Namespace, work_dir: Path) -> Bench:
    """Make the bench of the board whose profile the command line names."""
    # the runtime writes beside the profile, from which a confined worker may only read
    shared = Confinement(write=(str(args.simulate.parent.resolve()),))
    options = BenchOptions(
        args.name,
        args.hardware,
        work_dir,
        runtimes=RUNTIMES,
        search_path=[Path(__file__).parent],
        config=AgentConfig(confinement=shared),
    )
    return simulated_bench(options, args.simulate)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], make_bench))
