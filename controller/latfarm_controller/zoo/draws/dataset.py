"""nn-Meter's dataset (section 3, table 2): 2,000 variants of each of twelve CNNs, 2,000 cells.

```
for graph in dataset(seed=0):             26,000 graphs, one at a time
    ...
for graph in dataset(seed=0, per_family=3, families=["alexnet", "vgg11"], batch=8):
    ...
```

The paper names families, not members. Where its 24 collected CNNs hold one member, that one stands
here; of several, the one whose variants come nearest to table 2's multiply-adds. Its NAS-Bench-201
models are those of the highest accuracy; here connected cells are drawn uniformly, since latency
knows nothing of accuracy.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

from latfarm_controller.errors import UsageError
from latfarm_controller.zoo import find
from latfarm_controller.zoo.draws.variants import Rule, variant

FAMILIES = (
    "alexnet",
    "vgg11",
    "densenet121",
    "resnet18",
    "squeezenet1.0",
    "googlenet",
    "mobilenet-v1",
    "mobilenet-v2",
    "mobilenet-v3-large",
    "shufflenet-v2",
    "mnasnet-b1",
    "proxyless-mobile",
    "nasbench201",
)
PER_FAMILY = 2000
_PATIENCE = 500  # draws in a row without anything new before a family counts as exhausted


def dataset(
    seed: int = 0,
    per_family: int = PER_FAMILY,
    families: Sequence[str] = FAMILIES,
    batch: int = 1,
    *,
    rule: Rule = "nn-meter",
    resolutions: Sequence[int] | None = None,
) -> Iterator[Graph]:
    """`per_family` graphs of each family in turn, made as they are asked for.

    The graphs of a family have different hashes (`hash.hash_of`), so isomorphic cells count once.
    They are named "family-0", "family-1"...; what they are depends on the seed and the family
    alone, so that a smaller dataset is the beginning of a larger one.

    Args:
        seed: of all draws.
        per_family: how many graphs of each family.
        families: names of zoo families.
        batch: of each graph's input.
        rule: how variants are drawn, see `variants`.
        resolutions: in place of the rule's own, see `variants.variant`.

    Raises:
        UsageError: no such family; while iterating: a family has no more distinct graphs.
        GraphError: while iterating: a family cannot be built by these arguments at all.
    """
    for name in families:
        find(name)
    return itertools.chain.from_iterable(
        family_variants(name, per_family, seed, batch=batch, rule=rule, resolutions=resolutions)
        for name in families
    )


def family_variants(
    name: str,
    count: int,
    seed: int = 0,
    *,
    batch: int = 1,
    rule: Rule = "nn-meter",
    resolutions: Sequence[int] | None = None,
) -> Iterator[Graph]:
    """`count` graphs of one family, no two with one hash; see `dataset`."""

    def make(number: int, label: str) -> Graph:
        return variant(
            name,
            _seed(seed, name, number),
            rule=rule,
            resolutions=resolutions,
            batch=batch,
            label=label,
        )

    known = _FamilyGraphs()
    made = stale = 0
    trouble: GraphError | None = None
    for number in itertools.count():
        if made == count:
            return
        if stale == _PATIENCE:
            if trouble is not None:
                raise trouble
            raise UsageError(
                f"{name} has no {count} distinct variants: {_PATIENCE} draws after the first {made}"
                " gave none"
            )
        try:
            graph = make(number, f"{name}-{made}")
        except GraphError as error:  # drawn kernels may outgrow their maps
            trouble, stale = error, stale + 1
            continue
        if not known.is_new(graph, number, lambda earlier: make(earlier, "")):
            trouble, stale = None, stale + 1
            continue
        made, stale = made + 1, 0
        yield graph


def _seed(seed: int, name: str, number: int) -> int:
    """A seed for each draw of each family, unrelated to its neighbours'."""
    text = f"dataset {seed} {name} {number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


class _FamilyGraphs:
    """The graphs of a family so far.

    Hashing a graph costs as much as making it, and graphs whose tensors differ in shape need no
    hash to be told apart. Only those that share their multiset of shapes with another are hashed.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}  # shapes to the number of the first graph with them
        self._hashes: dict[int, set[str]] = {}

    def is_new(self, graph: Graph, number: int, again: Callable[[int], Graph]) -> bool:
        """Whether no earlier graph has this one's hash; `again` makes an earlier one by number."""
        shapes = hash(tuple(sorted(kind.shape for kind in graph.types.values())))
        first = self._first.setdefault(shapes, number)
        if first == number:
            return True
        hashes = self._hashes.get(shapes)
        if hashes is None:
            hashes = self._hashes[shapes] = {hash_of(again(first))}
        if hash_of(graph) in hashes:
            return False
        hashes.add(hash_of(graph))
        return True
