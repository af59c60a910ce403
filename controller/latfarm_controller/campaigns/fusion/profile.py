"""What a runtime's own profile tells of each pair: the truth that times are scored against.

The models of every pair are profiled, each op alone and both connected. A pair runs as one kernel
if the connected model has fewer layers than its parts, see `profile_says_fused`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.cases import JoinCase, PairCase, control_model
from latfarm_controller.campaigns.fusion.connections import ConnectionCase, join_connection
from latfarm_controller.campaigns.fusion.decision import absorbed, profile_says_fused, work_layers
from latfarm_controller.campaigns.fusion.operators import SIZES
from latfarm_controller.campaigns.fusion.rounds import Next
from latfarm_controller.campaigns.plans import Plan
from latfarm_controller.campaigns.profiles.layer_names import ACTIVATIONS

Profiler = Literal["off", "unavailable", "opaque", "yes"]
AskProfile = Callable[[Graph, str], MeasurementRequest]


class Profiled:
    """A runtime's profiles of all pairs of one size.

    `profiler`: what is known of the runtime's profiler. `truth`: whether each pair is one kernel,
    for those that the profile settles; `absorbed`: those in two layers, of which one is not what it
    is alone (`fusion_decision.absorbed`); `untold`: of the others, why it does not. `models`: all
    that was profiled. `join`: a join that was seen to be fused.
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

    def plan(self, ask: AskProfile, next_batch: Next) -> Plan:
        """A control first, which tells whether layers are shown at all, then every model once."""
        control = ask(control_model(SIZES[self._size]), "profile: control")
        answers = yield next_batch([control], len(self._cases))
        answer = answers[control.request_id]
        self.models.append((control.graph, answer))
        layers = work_layers(answer.layers)
        if len(layers) < 2:
            # None: the runtime does not profile. One for three ops: a delegate hides what it runs.
            self.profiler = "opaque" if layers else "unavailable"
            why = "one layer covers the whole model" if layers else answer.error_message
            self.untold = {c.rule: why or "the runtime shows no layers" for c in self._cases}
            return
        self.profiler = "yes"
        joins = {
            c.label: join_connection(JoinCase(c.first, c.first, c.second, self._size))
            for c in self._cases
            if c.second.binary
        }
        graphs: dict[str, Graph] = {}
        for case in self._cases:
            for graph in (case.single_first, case.single_second, case.connected):
                graphs.setdefault(hash_of(graph), graph)
        for join in joins.values():
            graphs.setdefault(hash_of(join.graph), join.graph)
        requests = {key: ask(graph, f"profile: {graph.name}") for key, graph in graphs.items()}
        answers = yield next_batch(list(requests.values()), len(requests) + len(self._cases))
        shown = {key: answers[request.request_id] for key, request in requests.items()}
        self.models += [(graph, shown[key]) for key, graph in graphs.items()]
        for case in self._cases:
            self._settle(case, shown, joins.get(case.label))

    def _settle(
        self, case: PairCase, shown: dict[str, Measurement], join: ConnectionCase | None
    ) -> None:
        alone = [shown[hash_of(case.single_first)], shown[hash_of(case.single_second)]]
        fused = profile_says_fused(alone, shown[hash_of(case.connected)])
        if join is not None:
            # Some runtimes fuse a join only when both its operands come from such ops.
            settled = join.decide_by_profile(
                [shown[hash_of(part)] for part in join.parts], shown[hash_of(join.graph)]
            )
            if settled and join.answer:
                fused = True
                if self.join is None or not self.join.clear:
                    self.join = join
        if fused is not None:
            # Dense convolution stands for the op; its depthwise variant comes second.
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
