"""How fast graphs are made: nn-Meter's dataset, in processor seconds of one core.

    python benchmarks/zoo_speed.py            a sample of each family
    python benchmarks/zoo_speed.py --all      all 26,000

For each family: graphs a second made and checked, the same with the hash of each, and as
`zoo.dataset` yields them, no two alike. Prints JSON. Needs no data and no board.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from latfarm_controller.zoo.draws.dataset import FAMILIES, PER_FAMILY, family_variants
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.hash import hash_of

TARGET_PER_S = 150


@dataclass(frozen=True)
class Speed:
    """What making `graphs` graphs of a family took, in processor seconds."""

    family: str
    graphs: int
    nodes: int
    made_s: float
    hashed_s: float
    distinct_s: float


def time_family(name: str, count: int) -> Speed:
    """Make `count` variants of a family, hash them, and make as many that differ."""
    made_s = hashed_s = 0.0
    nodes = graphs = 0
    variant(name, count, rule="nn-meter")  # loads its module
    for number in itertools.count():
        if graphs == count:
            break
        start = time.process_time()
        try:
            graph = variant(name, number, rule="nn-meter")
        except GraphError:  # drawn kernels that outgrow their maps cost their time too
            made_s += time.process_time() - start
            continue
        between = time.process_time()
        _ = hash_of(graph)
        hashed_s += time.process_time() - between
        made_s += between - start
        graphs += 1
        nodes += len(graph.nodes)
    start = time.process_time()
    found = sum(1 for _ in family_variants(name, count))
    if found != count:
        raise RuntimeError(f"{name}: {found} graphs, not {count}")
    return Speed(name, graphs, nodes, made_s, hashed_s, time.process_time() - start)


def summary(speeds: Sequence[Speed]) -> dict[str, object]:
    """Rates of each family and of the dataset, in which all families have the same share."""
    rows = [
        {
            "family": one.family,
            "graphs": one.graphs,
            "nodes": round(one.nodes / one.graphs),
            "made_per_s": round(one.graphs / one.made_s, 1),
            "made_and_hashed_per_s": round(one.graphs / (one.made_s + one.hashed_s), 1),
            "distinct_per_s": round(one.graphs / one.distinct_s, 1),
        }
        for one in speeds
    ]
    graphs = sum(one.graphs for one in speeds)
    made_s = sum(one.made_s for one in speeds)
    hashed_s = sum(one.hashed_s for one in speeds)
    distinct_s = sum(one.distinct_s for one in speeds)
    whole = PER_FAMILY * len(FAMILIES)
    return {
        "families": rows,
        "graphs": graphs,
        "made_per_s": round(graphs / made_s, 1),
        "made_and_hashed_per_s": round(graphs / (made_s + hashed_s), 1),
        "distinct_per_s": round(graphs / distinct_s, 1),
        "dataset_graphs": whole,
        "dataset_s": round(distinct_s / graphs * whole, 1),
        "dataset_measured": graphs == whole,
        "target_per_s": TARGET_PER_S,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit code 1 where graphs are made more slowly than the target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--per-family", type=int, default=60, help="graphs of each family")
    parser.add_argument("--all", action="store_true", help=f"{PER_FAMILY} of each family")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), help="zoo families")
    chosen = parser.parse_args(arguments)
    count = PER_FAMILY if chosen.all else chosen.per_family
    found = summary([time_family(name, count) for name in chosen.families])
    print(json.dumps(found, indent=2))
    return 0 if float(str(found["made_per_s"])) >= TARGET_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
