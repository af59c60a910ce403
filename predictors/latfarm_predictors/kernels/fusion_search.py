"""The kernels of a network under fusion rules: nn-Meter's Algorithm 1."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import FREE_OPS, RESHAPES
from latfarm_predictors.kernels.composites import composites_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_ops import CONSTANT, GATE, GATED, gate_of, rule_op
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.parts import Part, part_of


def split(graph: Graph, rules: FusionRules, device: str = "cpu") -> list[Kernel]:
    """The kernels of a network under fusion rules, in an order in which they can run.

    It is nn-Meter's Algorithm 1, made independent of the order in which a file lists its nodes: an
    op is looked at when the kernels of its producers are known, and again while anything changes,
    instead of depth first. An op joins the kernel of at most one producer; the op that the rules
    see is the first op of that kernel. A fusion that would close a cycle is refused, so every
    kernel is convex. Every node is in exactly one kernel.
    """
    return [Kernel.of_part(graph, part, device) for part in find_parts(graph, rules)]


def find_parts(graph: Graph, rules: FusionRules) -> list[Part]:
    """The parts of a network that `split` makes kernels of; shapes and attributes do not matter."""
    return [part_of(graph, members) for members in find_groups(graph, rules)]


def find_groups(graph: Graph, rules: FusionRules) -> list[list[int]]:
    """The kernels of a network as groups of nodes; see `split`.

    Returns:
        For each kernel the indices of its nodes, ascending; kernels in an order in which they can
        run.
    """
    return _searched(graph, rules).in_order()


def pairs_that_matter(graph: Graph, rules: FusionRules) -> list[tuple[str, str]]:
    """The pairs of ops whose rules decide how a network is split, once for each place.

    These are the pairs by which nodes joined kernels, and those between the first op of a kernel
    and the first op of a kernel that reads its result. An activation within the kernel of a
    convolution is no first op, so that no pair that begins with it matters there.

    Args:
        graph: the network.
        rules: what is known so far; the pairs depend on it.
    """
    return _searched(graph, rules).pairs()


def _searched(graph: Graph, rules: FusionRules) -> _Search:
    """A search that has ended: no rule joins any further groups."""
    search = _Search(graph, rules)
    search.join_composites()
    whole = search.join_gates()
    search.run()
    search.part(whole)
    return search


class _Search:
    """The groups of nodes while a network is split.

    Nodes are indices. The index of a group is that of its first node (its head), which comes before
    all others of the group, since each of them joined along an edge.
    """

    def __init__(self, graph: Graph, rules: FusionRules) -> None:
        nodes = graph.nodes
        self._rules = rules
        self._graph = graph
        self._nodes = nodes
        self._ops = [self._rule_op(graph, node) for node in nodes]
        self._gates = {
            i: gate for i, node in enumerate(nodes) if (gate := gate_of(graph, node)) is not None
        }
        made, reads, given = graph.positions, graph.readers, frozenset(graph.inputs)
        self._producers = [
            list(dict.fromkeys([made[t] for t in node.inputs if t in made])) for node in nodes
        ]
        # Number of operands that are network inputs: branches too, but nothing fuses there.
        self._given = [len(given.intersection(node.inputs)) for node in nodes]
        self._readers = [
            reads.get(node.outputs[0], ())
            if len(node.outputs) == 1
            else tuple(sorted({r for t in node.outputs for r in reads.get(t, ())}))
            for node in nodes
        ]
        wanted = frozenset(graph.outputs)
        self._is_output = [not wanted.isdisjoint(node.outputs) for node in nodes]
        self._group = list(range(len(nodes)))
        self._members: dict[int, list[int]] = {i: [i] for i in self._group}
        self._across_cut = [0] * len(nodes)  # number of groups with nodes before and from an index
        self._closed: set[int] = set()  # groups whose result a view reshapes: nothing more may join
        self._stale = [True] * len(nodes)  # heads that must be looked at again
        self._blocked: set[int] = set()  # heads that could not join only because of a cycle
        self._joined: list[tuple[str, str]] = []  # pairs by which rules let a head join a group

    def join_composites(self) -> None:
        """Join the nodes of each composite that the rules call whole; it is named by its name."""
        for each in composites_of(self._graph) if self._rules.whole else ():
            joined = each.joined
            free = all(len(self._members.get(index, ())) == 1 for index in joined)
            if each.name not in self._rules.whole or not free:
                continue
            for index in joined[1:]:
                self._merge(joined[0], index)
            self._ops[joined[0]] = each.name
            self._closed.discard(joined[0])
            self._join_tail(joined[0], self._graph.positions[each.result])

    def _join_tail(self, head: int, last: int) -> None:
        """Join the scale and the bias behind a composite, as far as the rules fuse them.

        They join it before it joins the kernel of a producer, by whose name rules would ask then.
        """
        while len(self._readers[last]) == 1 and not self._is_output[last]:
            (reader,) = self._readers[last]
            constant = self._ops[reader].endswith(CONSTANT)
            if not constant or not self._rules.fuses(self._ops[head], self._ops[reader]):
                return
            self._merge(head, reader)
            last = reader

    def join_gates(self) -> list[int]:
        """Join each product of a tensor and its sigmoid that some op fuses as a whole activation.

        Returns:
            Heads of those that no rule fuses by themselves: they are parted again unless some op
            takes them in.
        """
        found = []
        for product, gate in self._gates.items():
            whole = GATED[self._nodes[gate].op] in self._rules.followers
            alone = self._readers[gate] == (product,) and not self._is_output[gate]
            if whole and alone:
                fuses = self._rules.fuses(self._ops[gate], self._ops[product])
                self._merge(gate, product)
                found += [] if fuses else [gate]
        return found

    def part(self, heads: Iterable[int]) -> None:
        """Part the joined activations that no op has taken in."""
        for head in heads:
            members = self._members.get(head, [])
            if self._group[head] == head and len(members) > 1:
                rest = members[1:]
                self._members[head], self._members[rest[0]] = [head], rest
                for member in rest:
                    self._group[member] = rest[0]

    def run(self) -> None:
        """Fuse until nothing changes; each fusion removes a group, so this ends.

        Passes go over the heads in the order of the file. A head is skipped if no fusion has
        changed its surroundings since it was looked at: it would choose the same again.
        """
        while any(self._stale):
            for head, stale in enumerate(self._stale):
                if not stale:
                    continue
                self._stale[head] = False
                if self._group[head] != head:
                    continue
                chosen = self._choose(head)
                if chosen is not None:
                    if self._nodes[head].op not in FREE_OPS:
                        self._joined.append((self._ops[chosen], self._ops[head]))
                    self._merge(chosen, head)

    def pairs(self) -> list[tuple[str, str]]:
        """The pairs by which heads joined groups, and those of the edges between groups.

        Nothing joins a group whose result a view reshapes, and no view is asked about. Where
        several groups read a result, or the network gives it out, no rule joins it to one of them,
        unless rules name a branch. An activation in two ops may join the op before it as a whole,
        although each of its ops alone may not.
        """
        between = [
            (self._ops[self._group[source]], self._ops[head])
            for head in self._members
            if self._nodes[head].op not in FREE_OPS
            for source in self._producers[head]
            if self._group[source] not in self._closed and self._is_one_way(source, head)
        ]
        wholes = [
            (self._ops[self._group[source]], GATED[self._nodes[gate].op])
            for gate in self._gates.values()
            for source in self._producers[gate]
            if self._group[source] not in (self._group[gate], *self._closed)
        ]
        return self._joined + between + wholes

    def _is_one_way(self, source: int, head: int) -> bool:
        """Whether a result goes to one group alone, or rules say which of several may join."""
        alone = {self._group[reader] for reader in self._readers[source]} == {head}
        return self._rules.multi_outbound > 0 or (alone and not self._is_output[source])

    def in_order(self) -> list[list[int]]:
        """The nodes of each group; groups in topological order, ties by position in the file."""
        waiting = {head: len(self._inbound(members)) for head, members in self._members.items()}
        ready = [head for head, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: list[list[int]] = []
        while ready:
            members = self._members[heapq.heappop(ready)]
            order.append(members)
            for reader in self._outbound(members):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heapq.heappush(ready, reader)
        return order

    def _choose(self, head: int) -> int | None:
        """The group that the group of `head` joins, or None."""
        if self._nodes[head].op in FREE_OPS:
            return self._owner(head) if self._rules.attach_free_ops else None
        if self._ops[head] not in self._rules.followers:
            return None
        gate = self._gates.get(head)
        if gate is not None:
            group = self._group[gate]
            if self._may_follow(group, head) and self._may_leave(group, head):
                return group
        inbound = list(dict.fromkeys([self._group[source] for source in self._producers[head]]))
        count = len(inbound) + self._given[head]
        branch = self._rules.multi_inbound if count > 1 else 1
        if branch == 0:
            return None
        for group in inbound if branch == 1 else reversed(inbound):
            if self._may_follow(group, head) and self._may_leave(group, head):
                return group
        return None

    def _rule_op(self, graph: Graph, node: Node) -> str:
        """The name of a node in rules; without rules about gates, it is the plain op."""
        op = rule_op(graph, node)
        return node.op if op.endswith(GATE) and op not in self._rules.named else op

    def _owner(self, view: int) -> int | None:
        """The group whose result `view` reshapes, if nothing else reads that result, else None."""
        sources = self._producers[view]
        if len(sources) != 1 or self._is_output[sources[0]]:
            return None
        return self._group[sources[0]] if self._readers[sources[0]] == (view,) else None

    def _may_follow(self, group: int, head: int) -> bool:
        """Whether the rule for the pair lets `head` join `group`; nothing joins behind a view."""
        return group not in self._closed and self._rules.fuses(self._ops[group], self._ops[head])

    def _may_leave(self, group: int, head: int) -> bool:
        """Whether the rule for several readers lets `head` join `group`, and no cycle is closed."""
        if not any(
            self._is_branch(group, source, head)
            for source in self._producers[head]
            if self._group[source] == group
        ):
            return False
        others = self._inbound(self._members[head])
        if self._reaches(group, [other for other in others if other != group]):
            self._blocked.add(head)
            return False
        return True

    def _is_branch(self, group: int, source: int, head: int) -> bool:
        """Whether the rules let the edge from `source`, which is in `group`, to `head` fuse."""
        readers = [self._group[reader] for reader in self._readers[source]]
        if set(readers) == {head} and not self._is_output[source]:
            return True
        if self._rules.multi_outbound == 0 or group in readers:
            return False  # at most one reader is fused, and another one already is
        fusible = [
            reader
            for reader in self._readers[source]
            if self._group[reader] == reader and self._may_follow(group, reader)
        ]
        if not fusible:
            return False
        return head == (fusible[0] if self._rules.multi_outbound == 1 else fusible[-1])

    def _reaches(self, group: int, starts: Iterable[int]) -> bool:
        """Whether any of `starts` depends on `group`; then a fusion would close a cycle."""
        seen: set[int] = set()
        todo = list(starts)
        if not todo:
            return False
        # The position of a group decides nothing, because it may go on far behind its first node.
        # But where no group has nodes on both sides of a cut, nothing before depends on what is
        # behind: the search ends at the last such cut that `group` is behind.
        cut = group
        while self._across_cut[cut]:
            cut -= 1
        while todo:
            current = todo.pop()
            if current == group:
                return True
            if current < cut or current in seen:
                continue
            seen.add(current)
            todo.extend(self._inbound(self._members[current]))
        return False

    def _merge(self, group: int, head: int) -> None:
        moved, stayed = self._members.pop(head), self._members[group]
        self._span(stayed, moved)
        for member in moved:
            self._group[member] = group
        self._members[group] = sorted(stayed + moved)
        if (
            self._gates.get(head) == group
            and (name := GATED[self._ops[group]]) in self._rules.named
        ):
            self._ops[group] = name
        touched = moved
        if group not in self._closed and any(self._nodes[i].op in RESHAPES for i in moved):
            self._closed.add(group)
            touched = self._members[group]
        self._touch(touched, moved)

    def _span(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Count the cuts that two groups will cross as one: those between them, too, each once."""
        across = self._across_cut
        last, first = min(one[-1], other[-1]), max(one[0], other[0])
        for cut in range(last + 1, first + 1):
            across[cut] += 1
        for cut in range(first + 1, last + 1):
            across[cut] -= 1

    def _touch(self, touched: Iterable[int], moved: Iterable[int]) -> None:
        """Mark the heads whose choice a fusion may have changed, to look at them again.

        These are the readers of nodes that are now in another or in a closed group, the readers of
        the producers of moved nodes, and heads that a cycle blocked, which may be gone.
        """
        for member in touched:
            for reader in self._readers[member]:
                self._stale[reader] = True
        for member in moved:
            for source in self._producers[member]:
                for reader in self._readers[source]:
                    self._stale[reader] = True
        for head in self._blocked:
            self._stale[head] = True
        self._blocked.clear()

    def _inbound(self, members: Iterable[int]) -> list[int]:
        """Other groups whose results these nodes of one group read, in the order of operands."""
        return self._across(members, self._producers)

    def _outbound(self, members: Iterable[int]) -> list[int]:
        """Other groups that read results of these nodes of one group."""
        return self._across(members, self._readers)

    def _across(self, members: Iterable[int], edges: Sequence[Sequence[int]]) -> list[int]:
        group = self._group
        own = -1
        found: dict[int, None] = {}
        for member in members:
            own = group[member]
            for other in edges[member]:
                found[group[other]] = None
        found.pop(own, None)
        return list(found)
