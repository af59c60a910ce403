"""One answer for each pair of ops, from its times at both sizes, its chains and the profile.

(Conv, Conv) is a control: no runtime computes two convolutions in one kernel. Where its times say
that it is fused, connecting saves a change of layout, and the times of all pairs of windowed ops
are ignored. Where times at sizes say that pairs are fused which are separate in chains, connecting
saves something else; then times at sizes count only for pairs of plain ops (`results.plain_ops`).
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
"""The names of a pair in fusion rules."""
CONTROL: Rule = ("Conv", "Conv")
"""A pair that no runtime computes in one kernel."""
_MOST_ODDS = 4.0
"""Largest log odds that one test case contributes, up or down."""


@dataclass(frozen=True)
class FusionEvidence:
    """All that was measured about the pairs.

    Attributes:
        options: the campaign's configuration.
        by_rule: the rounds at each size, by the pair's names in fusion rules.
        chained: the chains of all pairs.
        profiled: what the profile says.
        pads: the padded models and their times, where pairs were measured between pads.
    """

    options: FusionOptions
    by_rule: Mapping[Rule, Sequence[CaseRounds]]
    chained: Chained
    profiled: Profiled
    pads: PadBook | None

    def results(self) -> list[PairResult]:
        """What was found so far about each pair of ops, in the order of the operator list."""
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
        # A chain's separators have the layout of its windowed ops, so that connecting saves no
        # change of layout. Chains are right where sizes are not, unless they take the control for
        # fused as well.
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
        """What was found about a pair; with `layout` its times may show a change of layout."""
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
            evidence = sum(max(-_MOST_ODDS, min(_MOST_ODDS, d.log_odds)) for d in known)
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
