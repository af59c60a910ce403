"""Measures the networks that `bench-gnn` learns from and judges on, on a real platform.

    make bench-gnn-measure BENCH_FLAGS="-p local-ncnn20261020-fp32-1t"
    python -m benchmarks.gnn.run --store .cache/bench-gnn/store.duckdb -p PLATFORM \\
        --campaigns bench-gnn --write benchmarks/gnn/figures

A small characterisation tells how the platform fuses ops. Then 100 variants of each of the ten
families of NNLQP's Table 3 are measured in two passes. The second pass begins when all networks had
their first one, so that a network's passes are on different occasions. Some networks of each family
are profiled in their first pass: predictors of kernels learn from them.

It takes about an hour on two cores. Everything is kept in --home (LATFARM_HOME), and the same
command continues where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.api.client import ControllerClient
from latfarm_controller.cli.shell.connect import controller
from latfarm_controller.cli.shell.progress import follow
from latfarm_controller.errors import ControllerError
from latfarm_controller.zoo.draws.variants import Rule
from latfarm_predictors.graph.graph import Graph

from benchmarks.gnn.draws import FAMILIES, networks_of
from benchmarks.platforms.own_process import each_in_its_own_process, fit_for_a_farm

PASSES = 2
"""Number of passes of each network."""
SESSIONS = 1
"""Number of sessions in each pass of a network: passes on two occasions tell more than sessions."""
RULE: Rule = "wide"
"""Channels and windows are redrawn layer by layer, as of networks that judge a characterisation."""
MACS = (1e7, 4e9)
"""Least and most multiply-adds of a network. A sixth of the VGGs have so few, and a fifth of a
second is long enough for a run of a network that is measured on a small board."""
CHARACTERISE_WITH = 200
"""Measurements of the characterisation, which tells fusion and fixed costs alone."""
EACH_CAMPAIGN = 50
"""Number of networks in a campaign, whose configuration holds their graphs."""
NAME = "bench-gnn"
"""Beginning of the names of the campaigns that measure networks."""
QUICK = {"per_family": 3, "profiled": 2}
"""Sizes of a run that only shows that everything works."""
_HANDED_ON = ("per_family", "profiled", "home", "quick")


@dataclass(frozen=True)
class Pass:
    """A campaign: some networks in one of their passes.

    Attributes:
        name: of the campaign.
        config: its configuration.
    """

    name: str
    config: Mapping[str, Any]


def passes_of(profiled: Sequence[Graph], others: Sequence[Graph]) -> Iterator[Pass]:
    """The campaigns that measure all networks, in their order.

    Args:
        profiled: the networks that are profiled in their first pass.
        others: all others. Networks of one family do not follow each other.
    """
    for number in range(PASSES):
        for kind, graphs in (("profiled", profiled), ("plain", others)):
            for first in range(0, len(graphs), EACH_CAMPAIGN):
                part = graphs[first : first + EACH_CAMPAIGN]
                yield Pass(
                    f"{NAME}-{kind}-{first // EACH_CAMPAIGN + 1}-pass-{number + 1}",
                    {
                        "graphs": [graph.to_json() for graph in part],
                        "passes": 1,
                        "earlier_passes": number,
                        "profile": kind == "profiled" and number == 0,
                        "seed": number,
                        "settings": {"sessions": SESSIONS},
                    },
                )


def drawn(
    per_family: int, profiled: int, families: Sequence[str] = FAMILIES
) -> tuple[list[Graph], list[Graph]]:
    """The networks that are profiled, and the others; families take turns in both.

    Args:
        per_family: number of networks of each family.
        profiled: how many of them are profiled.
        families: names of families of the zoo.

    Raises:
        ValueError: a family has not so many variants of a fitting size.
    """
    own = [list(networks_of(family, per_family, RULE, MACS)) for family in families]
    turns = [graph for each in zip(*own, strict=True) for graph in each]
    return turns[: profiled * len(own)], turns[profiled * len(own) :]


def measure(client: ControllerClient, platform: str, options: argparse.Namespace) -> None:
    """Characterise a platform, and measure all networks on it."""
    config = {"measurements": CHARACTERISE_WITH, "calibration": 9, "most_macs": MACS[1]}
    began = client.start("characterize", platform, config, f"rules-for-{NAME}")
    outcome = follow(client, began.campaign_id).outcome
    profiles = outcome.get("insight", {}).get("chosen") == "profile"
    if not profiles:
        told = "tells no times of kernels: methods that need them are left out"
        print(f"{platform}: its profiler {told}", file=sys.stderr)
    profiled, others = drawn(options.per_family, options.profiled if profiles else 0)
    every = list(passes_of(profiled, others))
    for number, each in enumerate(every, 1):
        print(f"{platform}: {each.name}, campaign {number} of {len(every)}", file=sys.stderr)
        follow(client, client.start("networks", platform, each.config, each.name).campaign_id)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-p", "--platform", action="append", required=True, help="platform to measure; repeatable")
    add("--per-family", type=int, default=100, help="networks of each family")
    add("--profiled", type=int, default=10, help="how many of them are profiled")
    add("--quick", action="store_true", help="measure very little, to see that everything works")
    add("--home", type=Path, default=Path(".cache/bench-gnn"), help="folder of all state")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    if not 0 < options.profiled <= options.per_family:
        parser.error("--profiled is at least 1 and at most --per-family")
    os.environ.setdefault("LATFARM_HOME", str(options.home.absolute()))
    if len(options.platform) > 1 or not fit_for_a_farm():
        options.write = False
        chosen = [("--platform", name) for name in options.platform]
        return each_in_its_own_process("benchmarks.gnn.measure", options, _HANDED_ON, chosen)
    try:
        with controller() as client:
            for platform in options.platform:
                measure(client, platform, options)
    except ControllerError as error:
        print(f"bench-gnn-measure: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
