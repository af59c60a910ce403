"""The usual fusion rules, for platforms whose own were not detected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfarm_predictors.kernels.fusion import FusionRules, Verdict

from latfarm_controller.campaigns.fusion.cases import CORE_PAIRS, rule_of
from latfarm_controller.campaigns.fusion.decision import prior_log_odds
from latfarm_controller.campaigns.fusion.operators import OPERATORS
from latfarm_controller.campaigns.options import read_rules


def rules_for(
    kind: str, platform: str, known: FusionRules | None, given: Mapping[str, Any] | None
) -> FusionRules:
    """The rules by which a campaign cuts networks into kernels.

    Args:
        kind: the kind of the campaign, for error messages.
        platform: the platform that is measured.
        known: rules that were detected already; they come first.
        given: rules in the campaign's configuration, as JSON; without them the usual rules hold.

    Raises:
        UsageError: `given` is not in the form of rules.
    """
    if known is not None:
        return known
    return prior_rules(platform) if given is None else read_rules(kind, given)


def prior_rules(platform: str) -> FusionRules:
    """The usual rules: convolutions and matrix products fuse with a batch-norm or clamp."""
    pairs: dict[tuple[str, str], Verdict] = {}
    for first, second in CORE_PAIRS:
        rule = rule_of(OPERATORS[first], OPERATORS[second])
        pairs[rule] = "fused" if prior_log_odds(*rule) > 0 else "separate"
    return FusionRules(pairs=pairs, multi_inbound=0, multi_outbound=0, platform=platform)
