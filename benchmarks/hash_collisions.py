"""Does any network hash stand for two networks? Over variants of all families of the zoo.

    python benchmarks/hash_collisions.py                  100,000 variants, two processes
    python benchmarks/hash_collisions.py --count 2000

Each variant's normal form is also told a second way that shares nothing with the hash: SHA-256 of a
text in which every operand is a place in an order of its own. Two normal forms of one network hash
must be told alike (else: a collision), and two told alike must have one hash (else: a split).
Prints JSON; the exit status is 1 after a collision or a split. Needs no data and no board.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from latfarm_controller.zoo import families
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.equivalences import normal_form
from latfarm_predictors.graph.graph import Graph, Node, Weight
from latfarm_predictors.graph.hash import hash_of

COUNT = 100_000
CHUNK = 50
# Ops whose operands have no order; told apart from the hash's own table on purpose.
UNORDERED = ("Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor")


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: its network hash (that of its normal form), and what tells its structure."""

    family: str
    seed: int
    network: str
    told: str


def told(graph: Graph) -> str:
    """SHA-256 of a graph as text: each op with its operands' places in an order of their own.

    The order is that of a walk from the outputs. Where it may choose (outputs, operands without
    order), it goes by what a tensor is computed from, then by what it is used for.
    """
    ranks = _ranks(graph)
    places: dict[str, int] = {}
    rows: list[object] = []
    stack = sorted(graph.outputs, key=ranks.__getitem__, reverse=True)
    while stack:
        tensor = stack[-1]
        if tensor in places:
            stack.pop()
            continue
        node = graph.producers.get(tensor)
        operands = [] if node is None else _ordered(node, ranks)
        waiting = [t for t in operands if t and t not in places and not _inline(graph, t)]
        if waiting:
            stack.extend(reversed(waiting))
            continue
        stack.pop()
        if node is None:
            rows.append(["given", _typed(graph, tensor)])
            places[tensor] = len(places)
            continue
        shown = [
            _typed(graph, t) if _inline(graph, t) else places[t] if t else "" for t in operands
        ]
        made = [t for t in node.outputs if t]
        rows.append([node.op, _attrs(node), shown, [_typed(graph, t) for t in made]])
        for output in made:
            places[output] = len(places)
    given_out = sorted(places[tensor] for tensor in graph.outputs)
    return _sha([rows, given_out])


def _ranks(graph: Graph) -> dict[str, tuple[str, str]]:
    """For each tensor, digests of what it is computed from and of what it is used for."""
    below: dict[str, str] = {t: _sha(_typed(graph, t)) for t in (*graph.inputs, *graph.weights)}
    for node in graph.nodes:
        operands = [below[t] if t else "" for t in node.inputs]
        if node.op in UNORDERED:
            operands.sort()
        for index, tensor in enumerate(node.outputs):
            below[tensor] = _sha([node.op, _attrs(node), operands, index])
    uses: dict[str, list[str]] = defaultdict(list)
    for tensor in graph.outputs:
        uses[tensor].append("given out")
    above: dict[str, str] = {}
    for node in reversed(graph.nodes):
        for tensor in node.outputs:
            above[tensor] = _sha([below[tensor], sorted(uses[tensor])])
        mark = [above[tensor] for tensor in node.outputs]
        for index, tensor in enumerate(node.inputs):
            uses[tensor].append(_sha([mark, 0 if node.op in UNORDERED else index]))
    for tensor in (*graph.inputs, *graph.weights):
        above[tensor] = _sha([below[tensor], sorted(uses[tensor])])
    return {tensor: (below[tensor], above[tensor]) for tensor in below}


def _ordered(node: Node, ranks: Mapping[str, tuple[str, str]]) -> list[str]:
    if node.op in UNORDERED:
        return sorted(node.inputs, key=ranks.__getitem__)
    return list(node.inputs)


def _inline(graph: Graph, tensor: str) -> bool:
    """A constant vector or scalar has no identity; a matrix may be shared."""
    weight = graph.weights.get(tensor)
    return weight is not None and sum(size > 1 for size in weight.type.shape) < 2


def _typed(graph: Graph, tensor: str) -> list[object]:
    kind = graph.type_of(tensor)
    weight: Weight | None = graph.weights.get(tensor)
    values = None if weight is None or weight.values is None else [float(v) for v in weight.values]
    return [kind.dtype, list(kind.shape), weight is not None, values]


def _attrs(node: Node) -> Sequence[object]:
    return sorted((k, list(v) if isinstance(v, tuple) else v) for k, v in node.attrs.items())


def _sha(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def draw(job: tuple[str, int, int]) -> list[Row]:
    """Variants of a family by the seeds from first to last; those that cannot be built miss."""
    family, first, last = job
    rows = []
    for seed in range(first, last):
        try:
            graph = variant(family, seed)
        except GraphError:  # drawn kernels may outgrow their maps
            continue
        normal = normal_form(graph)
        rows.append(Row(family, seed, hash_of(normal), told(normal)))
    return rows


def jobs(count: int) -> Iterator[tuple[str, int, int]]:
    """The work, all families in turn, in pieces."""
    names = list(families())
    shares = [count // len(names) + (index < count % len(names)) for index in range(len(names))]
    for first in range(0, max(shares), CHUNK):
        for name, share in zip(names, shares, strict=True):
            if first < share:
                yield name, first, min(first + CHUNK, share)


def judge(rows: Sequence[Row]) -> dict[str, object]:
    """Count what is distinct; name pairs that agree in one way and differ in the other."""
    by_hash: dict[str, Row] = {}
    by_told: dict[str, Row] = {}
    collisions, splits = [], []
    for row in rows:
        other = by_hash.setdefault(row.network, row)
        if other.told != row.told:
            collisions.append([other.family, other.seed, row.family, row.seed])
        other = by_told.setdefault(row.told, row)
        if other.network != row.network:
            splits.append([other.family, other.seed, row.family, row.seed])
    return {
        "variants": len(rows),
        "families": len({row.family for row in rows}),
        "distinct_networks": len(by_hash),
        "collisions": collisions,
        "splits": splits,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT, help="variants in all")
    parser.add_argument("--processes", type=int, default=2, help="1 keeps to this one")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    rows: list[Row] = []
    if options.processes == 1:
        for job in jobs(options.count):
            rows += draw(job)
    else:
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
            for found in pool.map(draw, jobs(options.count)):
                rows += found
    result = judge(rows) | {"wall_s": round(time.monotonic() - start, 1)}
    print(json.dumps(result, indent=1))
    return 1 if result["collisions"] or result["splits"] else 0


if __name__ == "__main__":
    sys.exit(main())
