"""A slow and simple reference for the kernels of a network and their workloads, for tests.

All groups of nodes are looked at again until nothing changes, each kernel is cut out as a graph of
its own, and its workload is read from that graph alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import FREE_OPS, RESHAPES
from latfarm_predictors.kernels.composites import composites_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_ops import GATED, gate_of, rule_op
from latfarm_predictors.kernels.kernel import Kernel, extract
from latfarm_predictors.kernels.workload import Workload, workload


def plain_split(graph: Graph, rules: FusionRules) -> list[Kernel]:
    """The kernels that `fusion_search.split` must return; each is checked to be convex."""
    search = _PlainSearch(graph, rules)
    search.join_composites()
    whole = search.join_gates()
    while any([search.fuse(head) for head in range(len(graph.nodes))]):
        pass
    search.part(whole)
    return [extract(graph, [graph.nodes[i] for i in members]) for members in search.in_order()]


def plain_workload(kernel: Kernel) -> Workload:
    """The workload that `workload.workload` must return, read from the kernel's own graph alone."""
    return workload(Kernel(Graph.from_json(kernel.graph.to_json())))


class _PlainSearch:
    """Groups of nodes by index; `fusion_search.split` explains the rules."""

    def __init__(self, graph: Graph, rules: FusionRules) -> None:
        self._graph = graph
        self._rules = rules
        self._groups = [[index] for index in range(len(graph.nodes))]
        self._whole: dict[int, str] = {}  # first node of a composite -> the name of the composite

    def join_composites(self) -> None:
        """Join the nodes of each composite that the rules call whole."""
        for each in composites_of(self._graph):
            if each.name in self._rules.whole and all([i] in self._groups for i in each.joined):
                self._groups = [g for g in self._groups if g[0] not in each.joined]
                self._groups.append(list(each.joined))
                self._whole[each.joined[0]] = each.name
                self._join_tail(each.name, each.joined[0], self._graph.positions[each.result])

    def _join_tail(self, name: str, head: int, last: int) -> None:
        """Join the scale and the bias behind a composite, as far as the rules fuse them."""
        readers = self._readers(last)
        if len(readers) != 1 or self._is_output(last):
            return
        op = rule_op(self._graph, self._node(readers[0]))
        if op.endswith(":const") and self._rules.fuses(name, op):
            self._groups.remove([readers[0]])
            self._group(head).append(readers[0])
            self._join_tail(name, head, readers[0])

    def join_gates(self) -> list[int]:
        """Join products with a sigmoid that a rule fuses as a whole; returns those to part."""
        nodes, found = self._graph.nodes, []
        wholes = {pair[1] for pair, verdict in self._rules.pairs.items() if verdict == "fused"}
        for product, node in enumerate(nodes):
            gate = gate_of(self._graph, node)
            if gate is None or GATED[nodes[gate].op] not in wholes:
                continue
            if self._readers(gate) == [product] and not self._is_output(gate):
                if not self._rules.fuses(self._name([gate]), self._name([product])):
                    found.append(gate)
                self._groups.remove([product])
                self._groups[self._groups.index([gate])] = [gate, product]
        return found

    def part(self, heads: list[int]) -> None:
        """Part the joined activations that no op has taken in."""
        for group in [g for g in self._groups if g[0] in heads]:
            self._groups.remove(group)
            self._groups += [group[:1], group[1:]]

    def fuse(self, head: int) -> bool:
        """Let the group of `head` join another, if `head` is its first node and rules allow it."""
        if self._group(head)[0] != head:
            return False
        chosen = self._choose(head)
        if chosen is None:
            return False
        joined = self._group(head)
        self._groups.remove(joined)
        chosen += joined
        chosen.sort()
        return True

    def in_order(self) -> list[list[int]]:
        """The groups in topological order, ties by position in the file."""
        left = sorted(self._groups)
        order: list[list[int]] = []
        while left:
            ready = next(g for g in left if not any(other in left for other in self._inbound(g)))
            left.remove(ready)
            order.append(ready)
        return order

    def _choose(self, head: int) -> list[int] | None:
        graph, node = self._graph, self._graph.nodes[head]
        if node.op in FREE_OPS:
            sources = self._producers(head)
            if not self._rules.attach_free_ops or len(sources) != 1:
                return None
            alone = self._readers(sources[0]) == [head] and not self._is_output(sources[0])
            return self._group(sources[0]) if alone else None
        gate = gate_of(graph, node)
        if gate is not None:
            group = self._group(gate)
            if self._may_follow(group, head) and self._may_leave(group, head):
                return group
        inbound = self._inbound([head])
        given = {t for t in graph.data_inputs(node) if t not in graph.positions}
        branch = self._rules.multi_inbound if len(inbound) + len(given) > 1 else 1
        if branch == 0:
            return None
        for group in inbound if branch == 1 else inbound[::-1]:
            if self._may_follow(group, head) and self._may_leave(group, head):
                return group
        return None

    def _may_follow(self, group: Sequence[int], head: int) -> bool:
        nodes = self._graph.nodes
        own = {i for c in composites_of(self._graph) if group[0] in self._whole for i in c.nodes}
        closed = any(nodes[m].op in RESHAPES for m in group[1:] if m not in own)
        first, second = self._name(group), self._name(self._group(head))
        return not closed and self._rules.fuses(first, second)

    def _name(self, group: Sequence[int]) -> str:
        """The name of a group in rules: that of its first op, or of an activation of two ops."""
        graph = self._graph
        first = graph.nodes[group[0]]
        if group[0] in self._whole:
            return self._whole[group[0]]
        name = rule_op(graph, first)
        known = {op for pair in self._rules.pairs for op in pair}
        if any(gate_of(graph, graph.nodes[member]) == group[0] for member in group):
            whole = GATED[first.op]
            return whole if whole in known else name
        return first.op if name == "Mul:gate" and name not in known else name

    def _may_leave(self, group: Sequence[int], head: int) -> bool:
        edges = [source for source in self._producers(head) if source in group]
        if not any(self._is_branch(group, source, head) for source in edges):
            return False
        others = [other for other in self._inbound(self._group(head)) if other != group]
        return not self._depends(others, group)

    def _is_branch(self, group: Sequence[int], source: int, head: int) -> bool:
        readers = self._readers(source)
        alone = all(self._group(reader)[0] == head for reader in readers)
        if alone and not self._is_output(source):
            return True
        if self._rules.multi_outbound == 0 or any(reader in group for reader in readers):
            return False
        fusible = [
            reader
            for reader in readers
            if self._group(reader)[0] == reader and self._may_follow(group, reader)
        ]
        return head in (fusible[:1] if self._rules.multi_outbound == 1 else fusible[-1:])

    def _depends(self, starts: Sequence[list[int]], group: Sequence[int]) -> bool:
        todo, seen = list(starts), []
        while todo:
            current = todo.pop()
            if current == group:
                return True
            if current not in seen:
                seen.append(current)
                todo += self._inbound(current)
        return False

    def _group(self, index: int) -> list[int]:
        return next(group for group in self._groups if index in group)

    def _inbound(self, members: Iterable[int]) -> list[list[int]]:
        """Other groups whose results these nodes of one group read, in the order of operands."""
        found: list[list[int]] = []
        for member in members:
            for source in self._producers(member):
                group = self._group(source)
                if member not in group and group not in found:
                    found.append(group)
        return found

    def _producers(self, index: int) -> list[int]:
        made = self._graph.positions
        return list(dict.fromkeys(made[t] for t in self._node(index).inputs if t in made))

    def _readers(self, index: int) -> list[int]:
        made = {t for t in self._node(index).outputs if t}
        nodes = enumerate(self._graph.nodes)
        return [reader for reader, node in nodes if not made.isdisjoint(node.inputs)]

    def _is_output(self, index: int) -> bool:
        return not set(self._graph.outputs).isdisjoint(self._node(index).outputs)

    def _node(self, index: int) -> Node:
        return self._graph.nodes[index]
