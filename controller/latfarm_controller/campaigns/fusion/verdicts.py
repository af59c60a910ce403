"""One answer for each pair of ops, from its times at both sizes, its chains and the profile.

(Conv, Conv) is a control: no runtime computes two convolutions in one kernel. Where its times say
so, they show a change of layout that connecting saves, and the times of all pairs of windowed ops
are not believed. Where sizes say so of pairs that chains tell apart, connecting saves something
else, and sizes are believed of pairs of plain ops alone, next to which nothing else was saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from latfarm_controller.campaigns.fusion.cases import WINDOWED
from latfarm_controller.campaigns.fusion.chains import Chained
from latfarm_controller.campaigns.fusion.decision import Decision, paper_says, prior_log_odds
from latfarm_controller.campaigns.fusion.options import FusionOptions
from latfarm_controller.campaigns.fusion.profile import Profiled
from latfarm_controller.campaigns.fusion.results import (
    PairResult,
    chain_answer,
    combined,
    plain_ops,
    sizes_mislead,
    without_gate,
)
from latfarm_controller.campaigns.fusion.rounds import CaseRounds, PadBook

Rule = tuple[str, str]
CONTROL: Rule = ("Conv", "Conv")


@dataclass(frozen=True)
class FusionEvidence:
    """All that was measured of the pairs; `pads`: the book of pads, where those were used."""

    options: FusionOptions
    by_rule: Mapping[Rule, Sequence[CaseRounds]]
    chained: Chained
    profiled: Profiled
    pads: PadBook | None

    def results(self) -> list[PairResult]:
        """What was found so far of each pair of ops, in the order of the operator list."""
        ours = self.options.method == "latfarm"
        at_sizes = {
            rule: {c.case.label: c.decision(self.options, self.pads) for c in cases}
            for rule, cases in self.by_rule.items()
        }
        in_chains = {rule: self.chained.decisions(rule) for rule in self.by_rule}
        sized = {rule: combined(list(found.values()))[0] for rule, found in at_sizes.items()}
        chained = {rule: chain_answer(list(found.values())) for rule, found in in_chains.items()}
        blocked = ours and sized.get(CONTROL) == "fused"
        told = {rule: (sized[rule], chained[rule]) for rule in sized}
        misled = ours and sizes_mislead(list(told.values()))
        plain = plain_ops(told)
        # A chain's separators have the layout of its windowed ops, so that nothing is saved on
        # that: it holds where sizes do not, but not where chains too say so of the control.
        trusted = chained.get(CONTROL) != "fused"
        return [
            self._result(
                rule,
                at_sizes[rule],
                in_chains[rule],
                layout=(
                    (misled and not plain.issuperset(map(without_gate, rule)))
                    or (blocked and WINDOWED.issuperset(rule))
                )
                and not (trusted and chained[rule] != "undecided"),
            )
            for rule in self.by_rule
        ]

    def _result(
        self,
        rule: Rule,
        sized: Mapping[str, Decision],
        chained: Mapping[str, Decision],
        *,
        layout: bool,
    ) -> PairResult:
        """What was found of a pair; `layout`: its times may show a change of layout."""
        cases = self.by_rule[rule]
        time_fused, size_dependent = combined(list(sized.values()), list(chained.values()))
        paper = paper_says(cases[0].plain, self.options.alpha)
        if self.options.method == "paper":
            time_fused, size_dependent = paper, False
        layout = layout and time_fused == "fused"
        decisions = {**sized, **chained}
        if layout:
            time_fused = "undecided"
        truth = self.profiled.truth.get(rule)
        if truth is not None:
            used, source = truth, "profile"
            if rule in self.profiled.absorbed:
                used, source = True, "layer times"
        elif time_fused != "undecided":
            used, source = time_fused == "fused", "time"
        elif self.options.undecided != "likelihood":
            used, source = self.options.undecided == "fuse", "prior"
        else:
            known = [] if layout else [d for d in decisions.values() if d.rounds]
            evidence = sum(max(-4.0, min(4.0, d.log_odds)) for d in known)
            used = evidence + prior_log_odds(*rule) > 0
            source = "likelihood" if known else "prior"
        error = next((c.error for c in cases if c.error), "")
        return PairResult(
            rule,
            decisions,
            time_fused,
            size_dependent,
            truth,
            used,
            source,
            layout,
            error,
            paper,
            self.profiled.untold.get(rule, ""),
        )
