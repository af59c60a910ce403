"""Search for an architecture within a latency limit, with predictions instead of measurements.

Usage: `python examples/nas_loop.py BUNDLE --limit-ms 0.8`

This is a small evolutionary search over mobile networks. It predicts each generation in one batch,
which is faster than one prediction at a time. It maximises the number of multiply-adds in place of
accuracy; a real search would train and test its candidates here. A candidate is within the limit if
the upper end of its 90 % interval is.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from latfarm_predictors import load_bundle
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of

WIDTHS = (8, 16, 24, 32, 48, 64, 96)
"""Numbers of channels that a stage may have."""

KERNELS = (3, 5, 7)
"""Sizes of depthwise kernels that a stage may have."""

DEPTHS = (1, 2, 3)
"""Numbers of blocks that a stage may have."""

STAGES = 4
"""Number of stages of each network."""

POPULATION = 32
"""Number of candidates in each generation."""

GENERATIONS = 5
"""Number of generations."""

PARENTS = 8
"""Number of best candidates that survive into the next generation and are mutated."""


@dataclass(frozen=True)
class Candidate:
    """One architecture: the channels, the kernel size and the depth of each stage."""

    widths: tuple[int, ...]
    kernels: tuple[int, ...]
    depths: tuple[int, ...]

    def graph(self) -> Graph:
        """The network: each stage halves the image and has depthwise-separable convolutions."""
        b = GraphBuilder(str(self))
        x = b.relu(b.batch_norm(b.conv(b.input((1, 3, 128, 128)), 16, 3, stride=2)))
        for width, kernel, depth in zip(self.widths, self.kernels, self.depths, strict=True):
            for block in range(depth):
                stride = 2 if block == 0 else 1
                x = b.relu(b.batch_norm(b.depthwise(x, kernel, stride=stride)))
                x = b.relu(b.batch_norm(b.conv(x, width, 1)))
        return b.build([b.fc(b.flatten(b.global_avg_pool(x)), 1000)])

    def mutated(self, random: Random) -> Candidate:
        """A copy of this candidate in which one choice of one stage is drawn again."""
        stage = random.randrange(STAGES)
        field, choices = random.choice(
            (("widths", WIDTHS), ("kernels", KERNELS), ("depths", DEPTHS))
        )
        values = list(getattr(self, field))
        values[stage] = random.choice(choices)
        return replace(self, **{field: tuple(values)})


def drawn(random: Random) -> Candidate:
    """A candidate with every choice drawn at random."""
    return Candidate(
        tuple(random.choice(WIDTHS) for _ in range(STAGES)),
        tuple(random.choice(KERNELS) for _ in range(STAGES)),
        tuple(random.choice(DEPTHS) for _ in range(STAGES)),
    )


def main() -> None:
    """Run the search and print the best candidate of each generation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path, help="a bundle, which contains a predictor")
    parser.add_argument("--limit-ms", type=float, default=0.8, help="highest latency allowed")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    given = parser.parse_args()

    predictor = load_bundle(given.bundle)
    random = Random(given.seed)
    population = [drawn(random) for _ in range(POPULATION)]
    for generation in range(GENERATIONS):
        graphs = [candidate.graph() for candidate in population]
        answers = predictor.predict_many(graphs)
        judged = [
            (macs_of(graph), answer, candidate)
            for graph, answer, candidate in zip(graphs, answers, population, strict=True)
            if answer.interval_ms[1] <= given.limit_ms
        ]
        judged.sort(key=lambda entry: -entry[0])
        if not judged:
            raise SystemExit(f"no candidate stays within {given.limit_ms} ms: raise --limit-ms")
        macs, answer, best = judged[0]
        print(
            f"generation {generation}: {len(judged)} of {len(population)} within the limit; best "
            f"{macs / 1e6:.1f} M multiply-adds, {answer.latency_ms:.3f} ms, {best.widths}"
        )
        parents = [candidate for _, _, candidate in judged[:PARENTS]]
        children = [random.choice(parents).mutated(random) for _ in range(POPULATION - PARENTS)]
        population = [*parents, *children]


if __name__ == "__main__":
    main()
