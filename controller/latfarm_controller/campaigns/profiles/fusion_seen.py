"""What profiled networks show of fusion: a pair by itself is not always the pair inside a network.

A pair's own model ends behind its second op. Some runtimes fuse there otherwise than before more
work: onnxruntime on x86 takes a HardSwish into the convolution before it, unless its result leaves
the model, or its channels fill no vector. Where the layers of whole networks are told, each edge
between two ops is one case more. Ops that run as one kernel here and as two there are cut out
together: what both take is always known, what each of them takes is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.fusion import FusionRules, Verdict
from latfarm_predictors.kernels.fusion_ops import GATED, gate_of, rule_op
from latfarm_predictors.measurement import Measurement, ProfiledLayer

from latfarm_controller.campaigns.profiles.layer_names import with_own_activations
from latfarm_controller.campaigns.profiles.profiled_networks import with_steps

LEAST_EDGES, LEAST_NETWORKS = 4, 2
"""Fewer do not overrule what the pair's own models said."""
LEAST_FUSED = 0.25
"""Share of a pair's edges that have to be fused for its ops to be cut out together."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class Seen:
    """Edges of one pair in profiled networks: how many ran within one kernel, how many did not."""

    fused: int
    apart: int
    networks: int

    @property
    def verdict(self) -> Verdict:
        """How to cut: fused where enough edges are; "undecided" where few are known."""
        edges = self.fused + self.apart
        if edges < LEAST_EDGES or self.networks < LEAST_NETWORKS:
            return "undecided"
        return "fused" if self.fused >= LEAST_FUSED * edges else "separate"

    def to_json(self) -> dict[str, Any]:
        """For a campaign's outcome."""
        return {"verdict": self.verdict, "fused": self.fused, "apart": self.apart}


def seen_in_networks(profiled: Iterable[tuple[Graph, Measurement]]) -> dict[Pair, Seen]:
    """Edges of each pair in networks whose profiles name the nodes of every layer.

    The first op of a pair is the one that its kernel begins with; a batch normalisation between it
    and the second is taken for a part of it. An edge counts where nothing else reads the tensor,
    and where the profile shows a layer of both of its ends.
    """
    counts: dict[Pair, list[int]] = {}
    networks: dict[Pair, set[str]] = {}
    for graph, measurement in profiled:
        if not measurement.ok:
            continue
        for pair, fused in _Edges(graph, measurement.layers).told():
            counts.setdefault(pair, [0, 0])[0 if fused else 1] += 1
            networks.setdefault(pair, set()).add(hash_of(graph))
    return {
        pair: Seen(fused, apart, len(networks[pair])) for pair, (fused, apart) in counts.items()
    }


def overruled(rules: FusionRules, seen: Mapping[Pair, Seen]) -> dict[Pair, Seen]:
    """The pairs for which networks show something else than the rules say."""
    return {
        pair: found
        for pair, found in sorted(seen.items())
        if found.verdict != "undecided" and (found.verdict == "fused") != rules.fuses(*pair)
    }


def put_right(rules: FusionRules, seen: Mapping[Pair, Seen]) -> FusionRules:
    """The rules as networks show them; what those do not tell stays as it is."""
    return rules.replace_pairs(
        {pair: found.verdict for pair, found in overruled(rules, seen).items()}
    )


class _Edges:
    """Edges of one network, and in which of its layers their ends ran."""

    def __init__(self, graph: Graph, layers: Sequence[ProfiledLayer]) -> None:
        self._graph = graph
        self._layer: dict[str, int] = {}
        for index, layer in enumerate(with_steps(with_own_activations(graph, layers))):
            for name in layer.name.split("+"):
                self._layer[name] = index

    def told(self) -> Iterator[tuple[Pair, bool]]:
        """Each pair that an edge tells of, and whether its ends ran as one kernel."""
        gates = {}
        for index in range(len(self._graph.nodes)):
            gate = gate_of(self._graph, self._graph.nodes[index])
            if gate is not None and self._only_reader(gate) == index:
                gates[index] = gate
        within = set(gates.values())
        for index, node in enumerate(self._graph.nodes):
            if index in gates:
                yield from self._activation(gates[index], index)
            elif node.op not in FREE_OPS and index not in within:
                yield from self._plain(index)

    def _activation(self, gate: int, product: int) -> Iterator[tuple[Pair, bool]]:
        """A tensor times its own sigmoid: taken in whole by what is before it, or one, or two."""
        layer, last = self._layer_of(gate), self._layer_of(product)
        if layer is None or last is None:
            return
        source = self._graph.positions.get(self._graph.nodes[gate].inputs[0])
        before = None if source is None else self._layer_of(source)
        both = {gate, product}
        if source is not None and before is not None and self._readers(source) == both:
            head = self._head(source)
            whole = GATED[self._graph.nodes[gate].op]
            if head is not None and (layer == before) == (last == before):
                yield (head, whole), layer == before
        if layer != before:
            yield self._names(gate, product), layer == last

    def _plain(self, index: int) -> Iterator[tuple[Pair, bool]]:
        """An op behind those that make its operands: within the kernel of one of them, or apart."""
        own = self._layer_of(index)
        made = self._graph.positions
        sources = [made[name] for name in self._graph.nodes[index].inputs if name in made]
        edges = [s for s in dict.fromkeys(sources) if self._only_reader(s) == index]
        within = [s for s in edges if self._layer_of(s) == own]
        for source in within[:1] or edges:
            head = self._head(source)
            if own is not None and head is not None and self._layer_of(source) is not None:
                yield (head, rule_op(self._graph, self._graph.nodes[index])), bool(within)

    def _head(self, index: int) -> str | None:
        """What rules call the kernel that ends with this node; None behind more than one op."""
        graph, layer = self._graph, self._layer_of(index)
        node = graph.nodes[index]
        while True:
            before = [graph.positions[name] for name in node.inputs if name in graph.positions]
            same = [i for i in before if self._layer_of(i) == layer]
            if not same:
                return rule_op(graph, node)
            if node.op != "BatchNormalization" and node.op not in FREE_OPS:
                return None
            node = graph.nodes[same[0]]

    def _names(self, first: int, second: int) -> Pair:
        nodes = self._graph.nodes
        return rule_op(self._graph, nodes[first]), rule_op(self._graph, nodes[second])

    def _layer_of(self, index: int) -> int | None:
        return self._layer.get(self._graph.nodes[index].name)

    def _readers(self, index: int) -> set[int]:
        """Who reads a node's results; nobody for sure where the network gives them away."""
        outputs = self._graph.nodes[index].outputs
        if not set(outputs).isdisjoint(self._graph.outputs):
            return set()
        return {reader for name in outputs for reader in self._graph.readers.get(name, ())}

    def _only_reader(self, index: int) -> int | None:
        readers = self._readers(index)
        return next(iter(readers)) if len(readers) == 1 else None
