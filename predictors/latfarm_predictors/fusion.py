"""Fusion rules of a platform, and the kernels of a network under them (nn-Meter, section 4).

Rules say for an ordered pair of ops whether the runtime executes the second within the first's
kernel, and which branch, if any, is fused where a tensor forks or joins (the paper's Fig. 4).
They are plain JSON, made to be read and edited:

```
{"format": 1, "platform": "pixel4-tflite2.14-fp32-1t", "multi_inbound": 1, "multi_outbound": 0,
 "attach_free_ops": true, "pairs": {"Conv+Relu": "fused", "MaxPool+Conv": "separate"}}
```
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from latfarm_predictors.errors import FusionRulesError
from latfarm_predictors.graph import Graph, Node
from latfarm_predictors.kernels import Kernel, extract

Verdict = Literal["fused", "separate", "undecided"]
Branch = Literal[0, 1, 2]

FORMAT = 1

# Move no data and compute nothing: a view of their producer's result.
RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
FREE_OPS = RESHAPES | {"Identity", "Dropout"}

# By a constant, these are folded where with two computed operands they are not.
_ARITHMETIC = frozenset({"Add", "Mul", "Sub", "Div"})
CONSTANT = ":const"


def rule_op(graph: Graph, node: Node) -> str:
    """What pair rules call a node: its op, or "Mul:const" where one operand is a weight."""
    if node.op in _ARITHMETIC and len(graph.data_inputs(node)) < len(node.inputs):
        return node.op + CONSTANT
    return node.op


@dataclass(frozen=True)
class FusionRules:
    """What a runtime fuses, by the ops' names (`rule_op`). A pair that is not listed is not fused.

    `multi_inbound` and `multi_outbound`: where an op has several producers, or a tensor several
    readers, 0 fuses none of them, 1 the first and 2 the last that the pairs allow. With
    `attach_free_ops` a view (Flatten, Dropout...) belongs to its producer's kernel.

    Raises:
        FusionRulesError: on construction, when a value is none of the allowed.
    """

    pairs: Mapping[tuple[str, str], Verdict] = field(default_factory=dict)
    multi_inbound: Branch = 0
    multi_outbound: Branch = 0
    platform: str = ""
    version: int = FORMAT
    attach_free_ops: bool = True

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        if self.version != FORMAT:
            raise FusionRulesError(
                f"fusion rules of format {self.version!r}; this version reads {FORMAT}"
            )
        for name in ("multi_inbound", "multi_outbound"):
            value = getattr(self, name)
            if value not in (0, 1, 2) or isinstance(value, bool):
                raise FusionRulesError(
                    f"{name} is 0 (none), 1 (first) or 2 (last branch), not {value!r}"
                )
        for pair, verdict in self.pairs.items():
            if not (len(pair) == 2 and all(isinstance(op, str) and op for op in pair)):
                raise FusionRulesError(f"{pair!r} is no pair of ops")
            if verdict not in get_args(Verdict):
                raise FusionRulesError(
                    f"{'+'.join(pair)} is fused, separate or undecided, not {verdict!r}"
                )

    @staticmethod
    def none(platform: str = "") -> FusionRules:
        """Nothing fuses: every node is a kernel of its own, views too."""
        return FusionRules(platform=platform, attach_free_ops=False)

    def verdict(self, first: str, second: str) -> Verdict:
        """What is known of a pair; "undecided" when it is not listed."""
        return self.pairs.get((first, second), "undecided")

    def fuses(self, first: str, second: str) -> bool:
        """Whether `second` right after `first` runs within its kernel."""
        return self.verdict(first, second) == "fused"

    def replace_pairs(self, pairs: Mapping[tuple[str, str], Verdict]) -> FusionRules:
        """The same rules with these pairs added or overruled."""
        return replace(self, pairs={**self.pairs, **pairs})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types; `from_json` reads it back equal."""
        return {
            "format": self.version,
            "platform": self.platform,
            "multi_inbound": self.multi_inbound,
            "multi_outbound": self.multi_outbound,
            "attach_free_ops": self.attach_free_ops,
            "pairs": {"+".join(pair): self.pairs[pair] for pair in sorted(self.pairs)},
        }

    @staticmethod
    def from_json(data: Any) -> FusionRules:
        """Read what `to_json` wrote.

        Raises:
            FusionRulesError: the data are no rules; the message names the entry.
        """
        if not isinstance(data, Mapping):
            raise FusionRulesError(f"fusion rules are a JSON object, not {type(data).__name__}")
        if "format" not in data:
            raise FusionRulesError('fusion rules name their "format"; this version reads 1')
        unknown = sorted(set(data) - set(FusionRules().to_json()))
        if unknown:
            raise FusionRulesError(f"fusion rules have no entry {unknown[0]!r}")
        listed = data.get("pairs", {})
        if not isinstance(listed, Mapping):
            raise FusionRulesError('"pairs" is an object such as {"Conv+Relu": "fused"}')
        pairs: dict[tuple[str, str], Verdict] = {}
        for key, verdict in listed.items():
            first, plus, second = str(key).partition("+")
            if not plus or "+" in second:
                raise FusionRulesError(f'a pair is written "Conv+Relu", not {key!r}')
            pairs[first, second] = verdict
        attach = data.get("attach_free_ops", True)
        if not isinstance(attach, bool):
            raise FusionRulesError(f'"attach_free_ops" is true or false, not {attach!r}')
        return FusionRules(
            pairs=pairs,
            multi_inbound=data.get("multi_inbound", 0),
            multi_outbound=data.get("multi_outbound", 0),
            platform=str(data.get("platform", "")),
            version=data["format"],
            attach_free_ops=attach,
        )

    def dumps(self) -> str:
        """Readable JSON text of `to_json`."""
        return json.dumps(self.to_json(), indent=2) + "\n"

    @staticmethod
    def loads(text: str) -> FusionRules:
        """Read what `dumps` wrote.

        Raises:
            FusionRulesError: the text is no JSON, or no rules.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise FusionRulesError(f"fusion rules are no JSON: {error}") from error
        return FusionRules.from_json(data)


def split(graph: Graph, rules: FusionRules, device: str = "cpu") -> list[Kernel]:
    """The network's kernels under `rules`, in an order in which they can run.

    nn-Meter's Algorithm 1, made independent of the order in which a file lists its nodes: an op is
    looked at when its producers' kernels are known, and again while anything changes, instead of
    depth first. An op joins at most one producer's kernel; the type that the rules see is that of
    the kernel's first op. A fusion that would close a cycle is refused, so every kernel is convex.
    Every node is in exactly one kernel.
    """
    search = _Search(graph, rules)
    search.run()
    return [
        extract(graph, [graph.nodes[index] for index in members], device)
        for members in search.in_order()
    ]


class _Search:
    """The groups of one split; nodes and groups are indices, a group's is that of its first node.

    The first node comes before all others of its group, since each of them joined along an edge.
    """

    def __init__(self, graph: Graph, rules: FusionRules) -> None:
        self._rules = rules
        self._nodes = graph.nodes
        self._ops = [rule_op(graph, node) for node in graph.nodes]
        index = {tensor: i for i, node in enumerate(graph.nodes) for tensor in node.outputs}
        self._producers: list[list[int]] = []
        self._readers: list[list[int]] = [[] for _ in graph.nodes]
        # Operands that no node makes: inbounds too, though nothing can fuse there.
        self._given = [
            len({t for t in graph.data_inputs(node) if t not in index}) for node in graph.nodes
        ]
        wanted = set(graph.outputs)
        self._is_output = [not wanted.isdisjoint(node.outputs) for node in graph.nodes]
        for i, node in enumerate(graph.nodes):
            sources = list(dict.fromkeys(index[t] for t in node.inputs if t in index))
            self._producers.append(sources)
            for source in sources:
                self._readers[source].append(i)
        self._group = list(range(len(graph.nodes)))
        self._members: dict[int, list[int]] = {i: [i] for i in self._group}

    def run(self) -> None:
        """Fuse until nothing changes. Each fusion removes a group, so this ends."""
        changed = True
        while changed:
            changed = False
            for head in range(len(self._nodes)):
                if self._group[head] != head:
                    continue
                chosen = self._choose(head)
                if chosen is not None:
                    self._merge(chosen, head)
                    changed = True

    def in_order(self) -> list[list[int]]:
        """Members of each group, groups topologically sorted, ties by position in the file."""
        waiting = {head: len(self._inbound(members)) for head, members in self._members.items()}
        ready = [head for head, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: list[list[int]] = []
        while ready:
            head = heapq.heappop(ready)
            order.append(sorted(self._members[head]))
            for reader in self._outbound(self._members[head]):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heapq.heappush(ready, reader)
        return order

    def _choose(self, head: int) -> int | None:
        """The group that the group of `head` joins, if any."""
        node, inbound = self._nodes[head], self._inbound([head])
        if node.op in FREE_OPS:
            return self._owner(head) if self._rules.attach_free_ops else None
        count = len(inbound) + self._given[head]
        branch = self._rules.multi_inbound if count > 1 else 1
        if branch == 0:
            return None
        for group in inbound if branch == 1 else reversed(inbound):
            if self._may_follow(group, head) and self._may_leave(group, head):
                return group
        return None

    def _owner(self, view: int) -> int | None:
        """The group whose result `view` is another name for, unless others read that result."""
        sources = self._producers[view]
        if len(sources) != 1 or self._is_output[sources[0]]:
            return None
        return self._group[sources[0]] if self._readers[sources[0]] == [view] else None

    def _may_follow(self, group: int, head: int) -> bool:
        """Whether the pair rule lets `head` into `group`; a reshaped result takes nothing more."""
        closed = any(self._nodes[member].op in RESHAPES for member in self._members[group][1:])
        return not closed and self._rules.fuses(self._ops[group], self._ops[head])

    def _may_leave(self, group: int, head: int) -> bool:
        """The multi-outbound rule for the edges from `group` to `head`, and no cycle."""
        joined = self._members[head]
        if not any(
            self._is_branch(group, source, head)
            for source in self._producers[head]
            if self._group[source] == group
        ):
            return False
        others = self._inbound(joined)
        return not self._reaches(group, [other for other in others if other != group])

    def _is_branch(self, group: int, source: int, head: int) -> bool:
        """Whether the rules let the edge from `source` (in `group`) to `head` be fused."""
        readers = [self._group[reader] for reader in self._readers[source]]
        if set(readers) == {head} and not self._is_output[source]:
            return True
        if self._rules.multi_outbound == 0 or group in readers:
            return False  # one branch at most, and this fork has had its own
        fusible = [
            reader
            for reader in self._readers[source]
            if self._group[reader] == reader and self._may_follow(group, reader)
        ]
        if not fusible:
            return False
        return head == (fusible[0] if self._rules.multi_outbound == 1 else fusible[-1])

    def _reaches(self, group: int, starts: Iterable[int]) -> bool:
        """Whether any of `starts` depends on `group`: fusing past it would close a cycle."""
        seen: set[int] = set()
        todo = list(starts)
        while todo:
            current = todo.pop()
            if current == group:
                return True
            # A group starts before all its members: nothing that ended before can depend on it.
            if current in seen or self._members[current][-1] < group:
                continue
            seen.add(current)
            todo.extend(self._inbound(self._members[current]))
        return False

    def _merge(self, group: int, head: int) -> None:
        moved = self._members.pop(head)
        for member in moved:
            self._group[member] = group
        self._members[group] = sorted(self._members[group] + moved)

    def _inbound(self, members: Iterable[int]) -> list[int]:
        """Groups that feed these nodes of one group, in operand order."""
        found: dict[int, None] = {}
        for member in members:
            own = self._group[member]
            for source in self._producers[member]:
                if self._group[source] != own:
                    found[self._group[source]] = None
        return list(found)

    def _outbound(self, members: Iterable[int]) -> list[int]:
        found: dict[int, None] = {}
        for member in members:
            own = self._group[member]
            for reader in self._readers[member]:
                if self._group[reader] != own:
                    found[self._group[reader]] = None
        return list(found)


def all_pairs(ops: Iterable[str], verdict: str = "fused") -> dict[tuple[str, str], Verdict]:
    """Every ordered pair of `ops` with one verdict; a start for rules written by hand."""
    names = list(ops)
    return {(first, second): cast(Verdict, verdict) for first in names for second in names}
