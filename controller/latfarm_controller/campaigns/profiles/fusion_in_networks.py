"""What profiled networks show about fusion, where pairs behave differently inside a network.

The model of a pair ends after its second op, and some runtimes fuse differently there. For example,
onnxruntime on x86 fuses a HardSwish with the convolution before it, unless its result is an output
of the model or its channels do not fill a vector. Where the layers of whole networks are known,
each edge between two ops is one more case. Ops that run as one kernel at some edges and as two at
others are cut out together, because the time of both together is always known, while the time of
each is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.composites import UNITS, Composite, composites_of
from latfarm_predictors.kernels.fusion import UNIT_PAIRS, FusionRules, Verdict
from latfarm_predictors.kernels.fusion_ops import CONSTANT, GATED, gate_of, rule_op
from latfarm_predictors.measurement import Measurement, ProfiledLayer

from latfarm_controller.campaigns.profiles.profiled_networks import layers_of_nodes, with_steps

LEAST_EDGES, LEAST_NETWORKS = 4, 2
"""Numbers of edges and of networks below which the answer of the pair's own models stays."""
FUSED_IN_ONE = 4
"""Number of fused edges from which a single network is enough. Few families have some activations:
of 60 profiled networks, one may have a HardSwish, and behind each of its convolutions."""
LEAST_FUSED = 0.25
"""Share of fused edges from which the ops of a pair are cut out together."""

_BEHIND_VIEWS = frozenset({"MatMul", "Transpose", "Slice", "Split"})
"""Ops of transformers that run in one layer with a view before them without being one kernel."""

Pair = tuple[str, str]
"""The names of two ops in fusion rules."""


@dataclass(frozen=True)
class Seen:
    """The edges of one pair in profiled networks.

    Attributes:
        fused: how many edges ran within one kernel.
        apart: how many edges ran as two kernels.
        networks: how many networks these edges are from.
    """

    fused: int
    apart: int
    networks: int

    @property
    def verdict(self) -> Verdict:
        """How networks are cut at this pair; "undecided" where too few edges are known."""
        edges = self.fused + self.apart
        known = self.networks >= LEAST_NETWORKS or self.fused >= FUSED_IN_ONE
        if edges < LEAST_EDGES or not known:
            return "undecided"
        return "fused" if self.fused >= LEAST_FUSED * edges else "separate"

    def to_json(self) -> dict[str, Any]:
        """The counts as plain JSON types, for a campaign's outcome."""
        return {"verdict": self.verdict, "fused": self.fused, "apart": self.apart}


def seen_in_networks(profiled: Iterable[tuple[Graph, Measurement]]) -> dict[Pair, Seen]:
    """The edges of each pair in networks whose profiles name the nodes of every layer.

    The first op of a pair is the op that its kernel begins with; a batch normalisation between the
    two counts as a part of it. An edge counts if nothing else reads its tensor, and if the profile
    shows a layer for both of its ends.

    Args:
        profiled: profiled networks with their measurements; failed ones are left out.
    """
    counts: dict[Pair, list[int]] = {}
    networks: dict[Pair, set[str]] = {}
    for graph, measurement in profiled:
        if not measurement.ok:
            continue
        for pair, fused in ProfiledEdges(graph, measurement.layers).told():
            counts.setdefault(pair, [0, 0])[0 if fused else 1] += 1
            networks.setdefault(pair, set()).add(hash_of(graph))
    return {
        pair: Seen(fused, apart, len(networks[pair])) for pair, (fused, apart) in counts.items()
    }


def overruled(rules: FusionRules, seen: Mapping[Pair, Seen]) -> dict[Pair, Seen]:
    """The pairs for which networks show the opposite of what the rules say.

    Pairs that are cut out together as a unit stay together, see `fusion.with_units`.
    """
    return {
        pair: found
        for pair, found in sorted(seen.items())
        if found.verdict != "undecided"
        and (found.verdict == "fused") != rules.fuses(*pair)
        and not (pair in UNIT_PAIRS and rules.fuses(*pair))
    }


def put_right(
    rules: FusionRules, seen: Mapping[Pair, Seen], wholes: Mapping[str, Seen] = MappingProxyType({})
) -> FusionRules:
    """The rules, corrected for the pairs for which networks show the opposite.

    Args:
        rules: what the models of pairs have shown.
        seen: edges of pairs in networks.
        wholes: composites in networks, see `wholes_in_networks`.
    """
    shown = {name for name, found in wholes.items() if found.verdict == "fused"}
    corrected = {pair: found.verdict for pair, found in overruled(rules, seen).items()}
    return replace(rules.replace_pairs(corrected), whole=rules.whole | shown)


def wholes_in_networks(profiled: Iterable[tuple[Graph, Measurement]]) -> dict[str, Seen]:
    """How often each composite ran as one kernel, and how often as several.

    Composites of which the profile does not show every op do not count.

    Args:
        profiled: profiled networks with their measurements; failed ones are left out.
    """
    counts: dict[str, list[int]] = {}
    networks: dict[str, set[str]] = {}
    for graph, measurement in profiled:
        edges = ProfiledEdges(graph, measurement.layers) if measurement.ok else None
        for each in composites_of(graph) if edges is not None else ():
            told = edges.together(each) if edges is not None else None
            if told is not None:
                counts.setdefault(each.name, [0, 0])[0 if told else 1] += 1
                networks.setdefault(each.name, set()).add(hash_of(graph))
    return {
        name: Seen(fused, apart, len(networks[name])) for name, (fused, apart) in counts.items()
    }


class ProfiledEdges:
    """The edges of one profiled network, and the layers in which their ends ran."""

    def __init__(self, graph: Graph, layers: Sequence[ProfiledLayer]) -> None:
        self._graph = graph
        self._layer: dict[str, int] = {}
        for index, layer in enumerate(with_steps(layers_of_nodes(graph, layers))):
            for name in layer.name.split("+"):
                self._layer[name] = index
        units = [c for c in composites_of(graph) if c.name in UNITS or self.together(c)]
        self._units = {index: each for each in units for index in each.nodes}

    def told(self) -> Iterator[tuple[Pair, bool]]:
        """For each edge its pair, and whether its ends ran as one kernel."""
        gates = {}
        for index in range(len(self._graph.nodes)):
            gate = gate_of(self._graph, self._graph.nodes[index])
            if gate is not None and self.only_reader(gate) == index:
                gates[index] = gate
        within = {*gates.values(), *self._inner()}
        for index, node in enumerate(self._graph.nodes):
            if index in gates:
                yield from self._activation(gates[index], index)
            elif node.op not in FREE_OPS and index not in within:
                yield from self._plain(index)

    def together(self, composite: Composite) -> bool | None:
        """Whether one layer ran all ops of a composite; None if a layer of one is not shown."""
        layers = {self.layer_of(index) for index in composite.nodes}
        return None if None in layers else len(layers) == 1

    def _inner(self) -> set[int]:
        """The nodes of composites but for their first ones, which stand for them."""
        return {index for each in self._units.values() for index in each.nodes[1:]}

    def _activation(self, gate: int, product: int) -> Iterator[tuple[Pair, bool]]:
        """The edges of an activation in two ops, a tensor times its own sigmoid.

        The op before may be fused with both ops or with none; the two ops may be one kernel or two.
        """
        layer, last = self.layer_of(gate), self.layer_of(product)
        if layer is None or last is None:
            return
        source = self._graph.positions.get(self._graph.nodes[gate].inputs[0])
        before = None if source is None else self.layer_of(source)
        both = {gate, product}
        if source is not None and before is not None and self.readers(source) == both:
            head = self.head(source)
            whole = GATED[self._graph.nodes[gate].op]
            if head is not None and (layer == before) == (last == before):
                yield (head, whole), layer == before
        if layer != before:
            yield self._names(gate, product), layer == last

    def _plain(self, index: int) -> Iterator[tuple[Pair, bool]]:
        """The edges between an op and those that make its operands.

        An op that is fused with one of them cannot be fused with the others: only that edge counts.
        """
        own = self.layer_of(index)
        made = self._graph.positions
        sources = [made[name] for name in self._graph.nodes[index].inputs if name in made]
        edges = [s for s in dict.fromkeys(sources) if self._read_by(s, index)]
        within = [s for s in edges if self.layer_of(s) == own]
        for source in within[:1] or edges:
            if self._is_view_before(source, index):
                continue
            head = self.head(source)
            if own is not None and head is not None and self.layer_of(source) is not None:
                yield (head, self._name(index)), bool(within)

    def _is_view_before(self, source: int, index: int) -> bool:
        """Whether a node is a view that begins a layer, before a product or a move."""
        nodes = self._graph.nodes
        if nodes[source].op not in FREE_OPS or nodes[index].op not in _BEHIND_VIEWS:
            return False
        return self.head(source) == nodes[source].op

    def _name(self, index: int) -> str:
        """The name of a node in rules, or of the composite that it is part of."""
        unit = self._units.get(index)
        return rule_op(self._graph, self._graph.nodes[index]) if unit is None else unit.name

    def head(self, index: int) -> str | None:
        """The first op of the kernel that ends at this node; None if there are ops in between.

        Batch normalisations, views, scales and biases are none. No kernel begins with a view: one
        that runs in the layer of a product or a move behind it does not join the two.
        """
        graph, layer = self._graph, self.layer_of(index)
        unit = self._units.get(index)
        if unit is not None:
            maker = graph.positions.get(unit.source)
            alone = maker is None or self.layer_of(maker) != layer
            return unit.name if alone else None
        node = graph.nodes[index]
        before = [graph.positions[name] for name in node.inputs if name in graph.positions]
        same = [i for i in before if self.layer_of(i) == layer]
        if node.op in _BEHIND_VIEWS:
            same = [i for i in same if graph.nodes[i].op not in FREE_OPS]
        if not same:
            return rule_op(graph, node)
        head = self.head(same[0])
        passed = node.op == "BatchNormalization" or node.op in FREE_OPS
        return head if passed or rule_op(graph, node).endswith(CONSTANT) else None

    def _names(self, first: int, second: int) -> Pair:
        nodes = self._graph.nodes
        return rule_op(self._graph, nodes[first]), rule_op(self._graph, nodes[second])

    def layer_of(self, index: int) -> int | None:
        """The number of the layer that a node ran in; None where no layer names it."""
        return self._layer.get(self._graph.nodes[index].name)

    def readers(self, index: int) -> set[int]:
        """The nodes that read a node's results; empty if the network gives a result out."""
        outputs = self._graph.nodes[index].outputs
        if not set(outputs).isdisjoint(self._graph.outputs):
            return set()
        return {reader for name in outputs for reader in self._graph.readers.get(name, ())}

    def _read_by(self, source: int, index: int) -> bool:
        """Whether only a node, or the composite that it is part of, reads another's results."""
        unit = self._units.get(index)
        own = {index} if unit is None else set(unit.nodes)
        readers = self.readers(source)
        return bool(readers) and readers <= own

    def only_reader(self, index: int) -> int | None:
        """The only node that reads a node's results; None if several or none do."""
        readers = self.readers(index)
        return next(iter(readers)) if len(readers) == 1 else None
