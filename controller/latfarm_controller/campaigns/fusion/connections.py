"""Multi-inbound and multi-outbound rules (nn-Meter, Fig. 4): which branch is fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.fusion.cases import (
    Branch,
    ForkCase,
    JoinCase,
    PairCase,
    single_second,
)
from latfarm_controller.campaigns.fusion.decision import closest_plan, standard_error
from latfarm_controller.campaigns.fusion.operators import HEAVY_CONVS, SIZES, FusionOperator
from latfarm_controller.campaigns.fusion.profile_layers import (
    merged_branch,
    profile_says_fused,
    together,
    work_layers,
)

_SURENESS = 3.0
"""Standard errors by which one plan must be closer in time than the other."""
_LEAST_SHARE = 0.01
"""A difference below this share of the connected model's time is chance."""


@dataclass
class ConnectionCase:
    """One join or fork, with the models whose times make up the plans that it may run as.

    Attributes:
        graph: the connected model.
        parts: the models of its ops alone: the plan that fuses nothing.
        fused: for each branch the two models of the plan that fuses it.
        label: the name of the case for people.
        joins: whether it is a join; otherwise it is a fork.
        branch_ops: the ops of both branches.
        rounds: the times of each round, by hash of the graph, in ms.
        answer: which branch is fused.
        source: what the answer rests on: none, time or profile.
        clear: whether the answer is clear.
    """

    graph: Graph
    parts: Sequence[Graph]
    fused: Mapping[Branch, tuple[Graph, Graph]]
    label: str
    joins: bool
    branch_ops: tuple[str, str]
    rounds: list[dict[str, float]] = field(default_factory=list)
    answer: Branch = 0
    source: str = "none"
    clear: bool = False

    @property
    def graphs(self) -> list[Graph]:
        """All models of a round, each once: the parts, the connected model, the plans' models."""
        pairs = [graph for plan in sorted(self.fused) for graph in self.fused[plan]]
        return list({hash_of(g): g for g in (*self.parts, self.graph, *pairs)}.values())

    def told(self, times_ms: Mapping[str, float]) -> None:
        """Keep a round if all of its models were measured.

        Args:
            times_ms: times by hash of the graph, without the cost of a call and of transfers.
        """
        if all(hash_of(graph) in times_ms for graph in self.graphs):
            self.rounds.append(dict(times_ms))

    def decide_by_time(self, noise: float = 0.0) -> None:
        """Take the plan whose time is closest to that of the connected model.

        Args:
            noise: relative standard deviation of a measurement, as other models show it; a few
                rounds alone may agree by chance.
        """
        if not self.rounds:
            return
        plans: dict[Branch, float] = {}

        def cost(times: Mapping[str, float], graphs: Sequence[Graph]) -> float:
            return sum(times[hash_of(g)] for g in graphs)

        plans[0] = median(cost(times, self.parts) for times in self.rounds)
        for plan, graphs in self.fused.items():
            plans[plan] = median(cost(times, graphs) for times in self.rounds)
        gaps = [times[hash_of(self.graph)] - cost(times, self.parts) for times in self.rounds]
        measured = [times[hash_of(self.graph)] for times in self.rounds]
        # A drift of the board affects all models of a round alike and does not blur the plans.
        spread = min(standard_error(measured), standard_error(gaps))
        spread = max(spread, noise * median(measured))
        self.answer, self.clear = closest_plan(median(measured), plans, spread)
        self.source = "time"

    def which_branch(self) -> Branch | None:
        """The branch whose fused plan is closer in time; None where the spread hides it."""
        nearer = []
        for times in self.rounds:
            measured = times[hash_of(self.graph)]
            gaps = [
                abs(measured - sum(times[hash_of(g)] for g in self.fused[plan])) for plan in (1, 2)
            ]
            nearer.append(gaps[1] - gaps[0])
        if len(nearer) < 2:
            return None
        least_ms = _LEAST_SHARE * median(times[hash_of(self.graph)] for times in self.rounds)
        if abs(median(nearer)) <= max(_SURENESS * standard_error(nearer), least_ms):
            return None
        return 1 if median(nearer) > 0 else 2

    def decide_by_profile(self, parts: Sequence[Measurement], whole: Measurement) -> bool:
        """Take the profile's answer; gives whether it has one.

        Args:
            parts: profiles of the parts.
            whole: profile of the connected model.
        """
        fused = profile_says_fused(parts, whole)
        if fused is None:
            return False
        if not fused:
            self.answer, self.clear = 0, True
        else:
            branch = self._merged(whole)
            self.answer, self.clear = branch or 1, branch is not None
        self.source = "profile"
        return True

    def _merged(self, whole: Measurement) -> Branch | None:
        """The branch that the profile shows to be fused; None where it does not show it."""
        nodes = self.graph.nodes
        if self.joins:
            return merged_branch(whole.layers, nodes[0], nodes[1], nodes[2])
        work = work_layers(whole.layers)
        if together(work, nodes[0], nodes[1]):
            return 1
        if together(work, nodes[0], nodes[2]):
            return 2
        # The following op that has no layer of its own is the one that was fused.
        shown = {layer.op for layer in work}
        left, right = (op in shown for op in self.branch_ops)
        if left == right:
            return None
        return 2 if left else 1

    def to_json(self) -> dict[str, Any]:
        """The case as plain JSON types, for the campaign's outcome."""
        return {
            "case": self.label,
            "answer": self.answer,
            "source": self.source,
            "clear": self.clear,
            "rounds": len(self.rounds),
        }


def choose_join(fused: Sequence[PairCase]) -> ConnectionCase | None:
    """A join of two ops that each fuse with it, different ones if possible; None without any.

    Args:
        fused: test cases of fused pairs.
    """
    joins: dict[str, list[FusionOperator]] = {}
    for case in fused:
        if case.second.binary:
            firsts = joins.setdefault(case.second.name, [])
            if case.first not in firsts:
                firsts.append(case.first)
    if not joins:
        return None
    seconds = {case.second.name: case.second for case in fused}
    name = max(joins, key=lambda n: len(joins[n]))
    left, right = joins[name][0], joins[name][-1]
    return join_connection(JoinCase(left, right, seconds[name]))


def telling_joins(fused: Sequence[PairCase]) -> list[ConnectionCase]:
    """Joins whose two fused plans differ in time; none where no convolution fuses with a join.

    Where both branches are alike, both plans save the same memory traffic (the paper sees no
    preference). Here one branch is a convolution that computes longer than it moves data: fused
    with it, the join costs nothing; fused with the light one, it costs time.

    Args:
        fused: test cases of fused pairs.
    """
    for case in fused:
        if case.second.binary and case.first.name == "conv":
            return [
                join_connection(JoinCase(heavy, case.first, case.second)) for heavy in HEAVY_CONVS
            ]
    return []


def join_connection(case: JoinCase) -> ConnectionCase:
    """A join with the models of its three plans."""
    left = PairCase(case.left, case.join, case.size_name)
    right = PairCase(case.right, case.join, case.size_name)
    return ConnectionCase(
        case.graph,
        (left.single_first, right.single_first, left.single_second),
        {
            1: (left.connected, right.single_first),
            2: (left.single_first, right.connected),
        },
        case.graph.name,
        joins=True,
        branch_ops=(case.left.op, case.right.op),
    )


def choose_fork(fused: Sequence[PairCase]) -> ConnectionCase | None:
    """A fork of an op into two different ops that each fuse with it; None without any.

    The two must differ, because compilers compute a common subexpression once.

    Args:
        fused: test cases of fused pairs.
    """
    roots: dict[str, list[PairCase]] = {}
    for case in fused:
        if not case.second.binary:
            followers = roots.setdefault(case.first.name, [])
            if all(f.second.op != case.second.op for f in followers):
                followers.append(case)
    if all(len(followers) < 2 for followers in roots.values()):
        return None
    name = max(roots, key=lambda n: len(roots[n]))
    left, right = roots[name][0], roots[name][-1]
    fork = ForkCase(left.first, left.second, right.second, left.size_name)
    wide = left.single_first
    shape = wide.type_of(wide.outputs[0]).shape
    size = SIZES[left.size_name]
    left_alone = single_second(left.second, shape, size)
    right_alone = single_second(right.second, shape, size)
    return ConnectionCase(
        fork.graph,
        (wide, left_alone, right_alone),
        {1: (left.connected, right_alone), 2: (right.connected, left_alone)},
        fork.graph.name,
        joins=False,
        branch_ops=(left.second.op, right.second.op),
    )
