"""Keys that tell when two kernels have the same workload, without working it out.

To work out the workloads of a network's kernels takes longer than to tell their keys (6 us each
against 2), and most kernels that a search comes by have been seen before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from latfarm_predictors.graph.graph import AttrValue, Graph, Node
from latfarm_predictors.kernels.parts import Part

Name = TypeVar("Name", bound=Hashable)

_Pick = Callable[[list[Any]], tuple[Hashable, ...]]


class NetworkKeys:
    """Makes the keys of a network's parts, and of all networks that have the same parts.

    A workload follows from the form of the part (its ops and how they are wired), from the types of
    what crosses its border and of the operands and results of its main op and of all ops that
    multiply and add, and from a few attributes of these. Equal keys mean equal workloads.
    """

    def __init__(self, graph: Graph, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        needed = [_needed(graph, part) for part in parts]
        types = _places(tensor for told, _ in needed for tensor in told)
        weights = _places(tensor for part in parts for tensor in part.weights)
        asked = _places(index for _, indices in needed for index in indices)
        self._fetch_types = _fetch(tuple(types))
        self._fetch_weights = _fetch(tuple(weights))
        self._asked = tuple(asked)
        self._forms = [_form(graph, part) for part in parts]
        # For each part, what picks its own of the network's facts: see `of`.
        self._picks: list[_Pick] = []
        self._uniform_picks: list[_Pick] = []
        forms, tensors = len(parts), len(types) + len(weights)
        attributes = forms + tensors
        for index, (part, (told, indices)) in enumerate(zip(parts, needed, strict=True)):
            own = [types[t] for t in told] + [len(types) + weights[t] for t in part.weights]
            picked = [index, *(forms + at for at in own), *(attributes + asked[i] for i in indices)]
            dtypes = attributes + len(asked)
            self._uniform_picks.append(itemgetter(*picked, dtypes))
            self._picks.append(itemgetter(*picked, *(dtypes + at for at in own)))

    def of(self, graph: Graph) -> list[tuple[Hashable, ...]]:
        """The keys of the parts in `graph`, one for each of `parts`."""
        # One list for all parts: to look up each part's few tensors would take twice as long. And
        # of plain values: pairs would wake the garbage collector at every network.
        kinds = [*self._fetch_types(graph.types)]
        kinds += [weight.type for weight in self._fetch_weights(graph.weights)]
        nodes = graph.nodes
        facts: list[Any] = [*self._forms]
        facts += [kind.shape for kind in kinds]
        facts += [_attributes(nodes[index]) for index in self._asked]
        dtypes = [kind.dtype for kind in kinds]
        # most networks have one element type: told once, it makes keys shorter by a third
        if len(set(dtypes)) == 1:
            facts.append(dtypes[0])
            return [pick(facts) for pick in self._uniform_picks]
        facts += dtypes
        return [pick(facts) for pick in self._picks]


_PLAIN = (None,) * 5


def _attributes(node: Node) -> tuple[AttrValue | None, ...]:
    """All attributes of an op that a workload may depend on."""
    if not node.attrs:
        return _PLAIN
    get = node.attrs.get
    return get("group"), get("transA"), get("kernel_shape"), get("strides"), get("dilations")


def _needed(graph: Graph, part: Part) -> tuple[Sequence[str], Sequence[int]]:
    """Tensors whose types count, weights aside, and nodes whose attributes do."""
    nodes = graph.nodes
    asked = tuple(dict.fromkeys([part.main, *part.multiplying]))
    told = [*part.inputs, *part.outputs]
    for index in asked:
        told += [*graph.data_inputs(nodes[index]), *filter(None, nodes[index].outputs)]
    return tuple(dict.fromkeys(told)), asked


def _form(graph: Graph, part: Part) -> str:
    """Ops and wiring with tensors numbered: equal where parts differ in sizes and attributes."""
    nodes = [graph.nodes[index] for index in part.nodes]
    results = [t for node in nodes for t in node.outputs if t]
    tensors = ["", *part.inputs, *part.weights, *results]
    number = {tensor: place for place, tensor in enumerate(tensors)}
    wiring = [
        (node.op, [number[t] for t in node.inputs], [number[t] for t in node.outputs])
        for node in nodes
    ]
    outputs = [number[t] for t in part.outputs]
    # interned: keys are compared by the thousand, and most by the address of this text
    return sys.intern(repr((len(part.inputs), len(part.weights), wiring, outputs)))


def _places(values: Iterable[Name]) -> dict[Name, int]:
    """Each value once, and where it comes in their order."""
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


def _fetch(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Looks up these names in one call."""
    if not names:
        return lambda _: ()
    if len(names) == 1:  # of one name, itemgetter gives no tuple
        return lambda held: (held[names[0]],)
    return itemgetter(*names)
