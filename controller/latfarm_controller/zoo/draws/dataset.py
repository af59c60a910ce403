"""nn-Meter's dataset (section 3, table 2): 2,000 variants of each of twelve CNNs, 2,000 cells.

```
for graph in dataset(seed=0):             26,000 graphs, one at a time
    ...
for graph in dataset(seed=0, per_family=3, families=["alexnet", "vgg11"], batch=8):
    ...
```

The paper names families, but not the members that it takes. Where its 24 collected CNNs contain one
member of a family, that one is used here; of several, the one whose variants come closest to the
multiply-adds in table 2. The paper's NAS-Bench-201 models are those of the highest accuracy. Here
connected cells are drawn uniformly, since latency does not depend on accuracy.
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
"""Names of the zoo families of the dataset."""
TRANSFORMERS = (
    "vit-tiny",
    "deit-tiny",
    "eva02-tiny",
    "swin-tiny",
    "mobilevit-xxs",
    "mobilevit-s",
    "efficientformer-l1",
    "convnext-atto",
    "bert-mini",
    "t5-mini",
    "t5-v1.1-small",
)
"""Names of the families of transformers and hybrids that judge a predictor, beside those of the
dataset. One or two of each lineage: the others are left for kernels and calibration."""
PER_FAMILY = 2000
"""Number of graphs of each family, as published."""
_PATIENCE = 500
"""Number of draws in a row without a new graph after which a family has no more."""


def dataset(
    seed: int = 0,
    per_family: int = PER_FAMILY,
    families: Sequence[str] = FAMILIES,
    batch: int = 1,
    *,
    rule: Rule = "nn-meter",
    resolutions: Sequence[int] | None = None,
) -> Iterator[Graph]:
    """`per_family` graphs of one family after the other, each built when it is asked for.

    All graphs of a family have different hashes, so that isomorphic cells count once. They are
    named "family-0", "family-1" and so on. They depend on the seed and the family only, so that a
    smaller dataset is the beginning of a larger one.

    Args:
        seed: random seed of all draws.
        per_family: how many graphs of each family.
        families: names of zoo families.
        batch: batch size of each graph's input.
        rule: how variants are drawn, see `variants`.
        resolutions: resolutions to draw from, instead of those of the rule.

    Raises:
        UsageError: there is no such family; or, while iterating, a family has no more distinct
            graphs.
        GraphError: while iterating, a family cannot be built with these arguments.
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
    """`count` graphs of one family with different hashes; see `dataset` for the arguments."""

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
                f"{name} has fewer than {count} distinct variants: {_PATIENCE} draws after the"
                f" first {made} gave no new one"
            )
        try:
            graph = make(number, f"{name}-{made}")
        except GraphError as error:  # a drawn kernel is larger than its map
            trouble, stale = error, stale + 1
            continue
        if not known.is_new(graph, number, lambda earlier: make(earlier, "")):
            trouble, stale = None, stale + 1
            continue
        made, stale = made + 1, 0
        yield graph


def _seed(seed: int, name: str, number: int) -> int:
    """A seed for each draw of each family; the seeds of neighbouring draws are unrelated."""
    text = f"dataset {seed} {name} {number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


class _FamilyGraphs:
    """The graphs of a family so far.

    Hashing a graph takes as long as building it. Graphs whose tensors have different shapes are
    different without a hash. So only graphs with the same shapes as another one are hashed.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}  # hash of all shapes -> number of the first such graph
        self._hashes: dict[int, set[str]] = {}

    def is_new(self, graph: Graph, number: int, again: Callable[[int], Graph]) -> bool:
        """Whether no earlier graph has its hash; `again` builds an earlier graph by its number."""
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
