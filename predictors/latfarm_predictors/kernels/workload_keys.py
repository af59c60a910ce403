"""Keys of kernels: equal keys mean equal workloads. They are faster to make than workloads.

A workload takes 6 us, a key 2 us, and most kernels that an architecture search asks about have been
seen before.
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
    """Makes the keys of the parts of a network, and of every network that has the same parts.

    A workload follows from the form of the part (its ops and their connections), from the types of
    the tensors that cross its border and of the operands and results of its main op and of all ops
    that multiply and add, from a few attributes of these ops, and from the steps of a slice.

    Args:
        graph: one of the networks.
        parts: its parts.
    """

    def __init__(self, graph: Graph, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        needed = [_needed(graph, part) for part in parts]
        types = _places(tensor for tensors, _ in needed for tensor in tensors)
        weights = _places(tensor for part in parts for tensor in part.weights)
        asked = _places(index for _, indices in needed for index in indices)
        steps = _places(name for part in parts for name in _steps(graph, part))
        self._fetch_types = _fetch(tuple(types))
        self._fetch_weights = _fetch(tuple(weights))
        self._fetch_steps = _fetch(tuple(steps))
        self._asked = tuple(asked)
        self._forms = [_form(graph, part) for part in parts]
        # For each part, a function that picks its facts from the list of all facts made in `of`.
        self._picks: list[_Pick] = []
        self._uniform_picks: list[_Pick] = []
        forms = len(parts)
        attributes = forms + len(types) + len(weights)
        for index, (part, (tensors, indices)) in enumerate(zip(parts, needed, strict=True)):
            own = [types[t] for t in tensors] + [len(types) + weights[t] for t in part.weights]
            picked = [index, *(forms + at for at in own), *(attributes + asked[i] for i in indices)]
            stepped = attributes + len(asked)
            picked += [stepped + steps[name] for name in _steps(graph, part)]
            dtypes = stepped + len(steps)
            self._uniform_picks.append(itemgetter(*picked, dtypes))
            self._picks.append(itemgetter(*picked, *(dtypes + at for at in own)))

    def of(self, graph: Graph) -> list[tuple[Hashable, ...]]:
        """The key of each part in `graph`, a network with the same parts."""
        # One list of facts for all parts: looking up the few tensors of each part takes twice as
        # long. It holds plain values: tuples would start the garbage collector at every network.
        kinds = [*self._fetch_types(graph.types)]
        kinds += [weight.type for weight in self._fetch_weights(graph.weights)]
        nodes = graph.nodes
        facts: list[Any] = [*self._forms]
        facts += [kind.shape for kind in kinds]
        facts += [_attributes(nodes[index]) for index in self._asked]
        facts += [weight.values for weight in self._fetch_steps(graph.weights)]
        dtypes = [kind.dtype for kind in kinds]
        # most networks have one element type: with it only once, keys are shorter by a third
        if len(set(dtypes)) == 1:
            facts.append(dtypes[0])
            return [pick(facts) for pick in self._uniform_picks]
        facts += dtypes
        return [pick(facts) for pick in self._picks]


_PLAIN = (None,) * 8


def _attributes(node: Node) -> tuple[AttrValue | None, ...]:
    """The attributes of an op on which a workload may depend."""
    if not node.attrs:
        return _PLAIN
    get = node.attrs.get
    window = get("kernel_shape"), get("strides"), get("dilations")
    return get("group"), get("transA"), get("axis"), get("axes"), get("perm"), *window


def _needed(graph: Graph, part: Part) -> tuple[Sequence[str], Sequence[int]]:
    """Tensors without weights whose types are part of the key, and nodes whose attributes are."""
    nodes = graph.nodes
    asked = tuple(dict.fromkeys([part.main, *part.multiplying]))
    tensors = [*part.inputs, *part.outputs, part.main_input, part.main_output]
    for index in asked:
        tensors += [*graph.data_inputs(nodes[index]), *filter(None, nodes[index].outputs)]
    return tuple(dict.fromkeys(tensors)), asked


def _steps(graph: Graph, part: Part) -> tuple[str, ...]:
    """The constants that hold axes and steps of a part whose main op is a slice with steps."""
    main = graph.nodes[part.main]
    names = main.inputs[3:5] if main.op == "Slice" and len(main.inputs) > 4 else ()
    return tuple([name for name in names if name in graph.weights])


def _form(graph: Graph, part: Part) -> str:
    """Ops and connections as a text; equal for parts that differ only in sizes and attributes."""
    nodes = [graph.nodes[index] for index in part.nodes]
    results = [t for node in nodes for t in node.outputs if t]
    tensors = ["", *part.inputs, *part.weights, *results]
    number = {tensor: place for place, tensor in enumerate(tensors)}
    wiring = [
        (node.op, [number[t] for t in node.inputs], [number[t] for t in node.outputs])
        for node in nodes
    ]
    outputs = [number[t] for t in part.outputs]
    # interned: thousands of keys are compared, and equal texts then have one address
    return sys.intern(repr((len(part.inputs), len(part.weights), wiring, outputs)))


def _places(values: Iterable[Name]) -> dict[Name, int]:
    """Each different value, and its position among them."""
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


def _fetch(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function that looks up all these names in one call."""
    if not names:
        return lambda _: ()
    if len(names) == 1:  # for a single name, itemgetter returns no tuple
        return lambda held: (held[names[0]],)
    return itemgetter(*names)
