"""What a runtime's own profile says about each pair: the truth that times are scored against.

The models of every pair are profiled: each op alone, and both connected. A pair runs as one kernel
if the connected model has fewer layers than its parts (see `profile_layers.profile_says_fused`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.cases import JoinCase, PairCase, control_model
from latfarm_controller.campaigns.fusion.connections import ConnectionCase, join_connection
from latfarm_controller.campaigns.fusion.operators import SIZES
from latfarm_controller.campaigns.fusion.profile_layers import (
    absorbed,
    profile_says_fused,
    work_layers,
)
from latfarm_controller.campaigns.fusion.rounds import Next
from latfarm_controller.campaigns.plans import Plan
from latfarm_controller.campaigns.profiles.layer_names import ACTIVATIONS

Profiler = Literal["off", "unavailable", "opaque", "yes"]
"""What a profiler shows. `off`: it was not asked. `unavailable`: no layers. `opaque`: one layer,
whatever the model contains. `yes`: single layers."""
AskProfile = Callable[[Graph, str], MeasurementRequest]
"""Makes a request to profile a graph; the text is its label."""


class Profiled:
    """A runtime's profiles of all pairs of one size.

    Attributes:
        profiler: what the runtime's profiler shows.
        truth: whether each pair is one kernel, for the pairs that the profile settles.
        absorbed: pairs in two layers of which one no longer runs as it does alone, see
            `profile_layers.absorbed`.
        untold: why the profile does not settle a pair, for all other pairs.
        models: all models that were profiled, with their measurements.
        join: a join that the profile shows to be fused.
    """

    def __init__(self, tested: Sequence[PairCase], size: str) -> None:
        self._cases = [case for case in tested if case.size_name == size]
        self._size = size
        self.profiler: Profiler = "off"
        self.truth: dict[tuple[str, str], bool] = {}
        self.absorbed: set[tuple[str, str]] = set()
        self.untold: dict[tuple[str, str], str] = {}
        self.models: list[tuple[Graph, Measurement]] = []
        self.join: ConnectionCase | None = None
        self._shown: dict[str, Measurement] = {}

    def plan(self, ask: AskProfile, next_batch: Next) -> Plan:
        """First a control, to see whether layers are shown at all, then every model once."""
        yield from self.look(ask, next_batch)
        if self.profiler == "yes":
            yield from self.settle(self._cases, ask, next_batch)

    def look(self, ask: AskProfile, next_batch: Next) -> Plan:
        """A control of three ops, to see whether the profiler shows single layers."""
        control = ask(control_model(SIZES[self._size]), "profile: control")
        answers = yield next_batch([control], len(self._cases))
        answer = answers[control.request_id]
        self.models.append((control.graph, answer))
        layers = work_layers(answer.layers)
        if len(layers) < 2:
            # Without layers the runtime does not profile. One layer for three ops hides them.
            self.profiler = "opaque" if layers else "unavailable"
            why = "one layer covers the whole model" if layers else answer.error_message
            self.untold = {c.rule: why or "the runtime shows no layers" for c in self._cases}
            return
        self.profiler = "yes"

    def settle(self, cases: Sequence[PairCase], ask: AskProfile, next_batch: Next) -> Plan:
        """Profile every model of these pairs that was not profiled before, each once."""
        joins = {
            c.label: join_connection(JoinCase(c.first, c.first, c.second, self._size))
            for c in cases
            if c.second.binary
        }
        graphs: dict[str, Graph] = {}
        for case in cases:
            for graph in (case.single_first, case.single_second, case.connected):
                graphs.setdefault(hash_of(graph), graph)
        for join in joins.values():
            graphs.setdefault(hash_of(join.graph), join.graph)
        yield from self._profile(graphs, ask, next_batch, len(cases))
        for case in cases:
            self._settle(case, joins.get(case.label))

    def settle_inside(self, cases: Sequence[PairCase], ask: AskProfile, next_batch: Next) -> Plan:
        """Profile activations that ran apart once more, with an op behind them as in networks.

        Where they then run as one kernel with the op before them, the pair is fused: networks are
        what rules are for. Black-box times are scored against `settle` alone.
        """
        apart = [case for case in cases if self.truth.get(case.rule) is False and case.continues]
        models = [graph for case in apart for graph in (case.pool_alone, case.continued)]
        graphs = {hash_of(graph): graph for graph in models}
        yield from self._profile(graphs, ask, next_batch, 0)
        for case in apart:
            parts = (case.single_first, case.single_second, case.pool_alone)
            alone = [self._shown[hash_of(graph)] for graph in parts]
            if profile_says_fused(alone, self._shown[hash_of(case.continued)]):
                self.truth[case.rule] = True
                self.absorbed.discard(case.rule)

    def _profile(
        self, graphs: Mapping[str, Graph], ask: AskProfile, next_batch: Next, later: int
    ) -> Plan:
        """Profile those of these graphs that were not profiled before, and keep what is shown.

        Args:
            graphs: the graphs by their hashes.
            ask: makes a request.
            next_batch: makes a batch.
            later: estimate of how many requests follow these.
        """
        new = {key: graph for key, graph in graphs.items() if key not in self._shown}
        if not new:
            return
        requests = {key: ask(graph, f"profile: {graph.name}") for key, graph in new.items()}
        answers = yield next_batch(list(requests.values()), len(new) + later)
        shown = {key: answers[request.request_id] for key, request in requests.items()}
        self._shown |= shown
        self.models += [(graph, shown[key]) for key, graph in new.items()]

    def _settle(self, case: PairCase, join: ConnectionCase | None) -> None:
        """Take the answer of the profiles of a pair, and of a join of its ops where it has one."""
        shown = self._shown
        alone = [shown[hash_of(case.single_first)], shown[hash_of(case.single_second)]]
        fused = profile_says_fused(alone, shown[hash_of(case.connected)])
        if join is not None:
            # Some runtimes fuse a join only when both its operands come from ops that fuse with it.
            settled = join.decide_by_profile(
                [shown[hash_of(part)] for part in join.parts], shown[hash_of(join.graph)]
            )
            if settled and join.answer:
                fused = True
                if self.join is None or not self.join.clear:
                    self.join = join
        if fused is not None:
            # The first case of a pair counts: dense convolution, before its depthwise variant.
            if (
                case.rule not in self.truth
                and not fused
                and case.second.op in ACTIVATIONS
                and absorbed(alone, shown[hash_of(case.connected)])
            ):
                self.absorbed.add(case.rule)
            self.truth.setdefault(case.rule, fused)
            self.untold.pop(case.rule, None)
        elif case.rule not in self.truth:
            named = (
                (case.first.name, case.single_first),
                (case.second.name, case.single_second),
                ("both", case.connected),
            )
            silent = [name for name, g in named if not work_layers(shown[hash_of(g)].layers)]
            told = " and ".join(dict.fromkeys(silent))
            self.untold[case.rule] = f"the profile shows no layer of {told}"
