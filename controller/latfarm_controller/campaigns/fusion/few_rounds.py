"""Rounds in which pairs share the models of single ops, and the noise that these repeats tell.

Where every pair has its own measurements of its ops, most of them repeat a model that other pairs
measured a moment ago. In a round here each model is measured once, whichever pairs need it. A
pair's own rounds then say little about the noise; but the noise of a board is much the same for all
models, so the models that were measured in several rounds tell it for all pairs together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.chain_models import ChainCase
from latfarm_controller.campaigns.fusion.chains import ChainRounds
from latfarm_controller.campaigns.fusion.decision import (
    NORMAL_MAD,
    Answer,
    Decision,
    Thresholds,
    decide,
    prior_log_odds,
)
from latfarm_controller.campaigns.fusion.rounds import (
    Answers,
    Ask,
    CaseRounds,
    DecisionLimits,
    PadBook,
    Slot,
)

LEAST_EVIDENCE = 4.0
"""Log odds, by the times alone, from which a pair is decided: an error of 2 % at most (Wald's
sequential probability ratio test), and less where a round overshoots."""
LEAST_POSTERIOR = 4.6
"""Log odds, with those before any measurement, from which a pair is decided: 99 : 1."""
LINKS = 40
"""Repetitions of a pair along its chain. Where a call costs much, a longer chain shows the same
answer in fewer rounds, and a model costs more to build and to load than to run."""
_GATE = 2.0
"""Standard errors that the time of the cheaper op must exceed."""
LEAST_FUSED_ROUNDS = 2
"""Rounds before a pair counts as fused: a wrong fusion does more harm than a missed one."""
MOST_ROUNDS = 6
"""Rounds after which an undecided pair is given up."""
_MOST_TRIES = 8
"""Rounds in which a pair is asked for at most, failures and other separators included."""
LEAST_NOISE = 0.002
"""Least relative standard deviation of a measurement that is believed."""


def by_odds(found: Decision, rule: tuple[str, str], least_ms: float = 0.0) -> Decision:
    """The decision that the log odds of a pair imply, see `LEAST_EVIDENCE`.

    Args:
        found: what the rounds say, by whatever rule.
        rule: the names of the pair, which tell the odds before any measurement.
        least_ms: least time of an op, and of both together, that runs as a kernel of its own.
    """
    answer: Answer = "undecided"
    posterior = found.log_odds + prior_log_odds(*rule)
    known = min(found.base_ms, found.connected_ms) > least_ms
    if known and found.base_ms > _GATE * found.base_spread_ms:
        if min(found.log_odds - LEAST_EVIDENCE, posterior - LEAST_POSTERIOR) >= 0:
            answer = "fused" if found.rounds >= LEAST_FUSED_ROUNDS else "undecided"
        elif max(found.log_odds + LEAST_EVIDENCE, posterior + LEAST_POSTERIOR) <= 0:
            answer = "separate"
    return replace(found, answer=answer, log_odds=found.log_odds if known else 0.0)


@dataclass
class Noise:
    """The relative standard deviation of a measurement, told by models measured several times.

    Attributes:
        times_ms: the times of each model by the hash of its graph.
    """

    times_ms: dict[str, list[float]] = field(default_factory=dict)

    def told(self, requests: Iterable[MeasurementRequest], answers: Answers) -> None:
        """Keep the times of a round."""
        for request in requests:
            answer = answers[request.request_id]
            if answer.ok and answer.latency_ms:
                self.times_ms.setdefault(hash_of(request.graph), []).append(answer.latency_ms)

    @property
    def share(self) -> float:
        """The noise as a share of a latency; at least `LEAST_NOISE`."""
        gaps = [
            abs(math.log(later / earlier)) / math.sqrt(2.0)
            for found in self.times_ms.values()
            for earlier, later in pairwise(found)
        ]
        if not gaps:
            return LEAST_NOISE
        few = 1.0 + 1.0 / math.sqrt(len(gaps))
        return max(few * NORMAL_MAD * median(gaps), LEAST_NOISE)


@dataclass
class FewChainRounds(ChainRounds):
    """A chained pair that borrows the noise of all models.

    Attributes:
        noise: the noise of all models.
    """

    noise: Noise = field(default_factory=Noise)

    def decision(self, limits: DecisionLimits, book: PadBook | None = None) -> Decision:  # noqa: ARG002
        """What the chains say; see `ChainRounds.decision`."""
        thresholds = Thresholds(limits.alpha, paired=True, noise=self.noise.share)
        return by_odds(decide(self.plain, thresholds), self.case.rule, self.least_base_ms)

    def worth_another(self, limits: DecisionLimits) -> bool:
        """Whether the pair is open; an op that is merged with its separator gets another one."""
        if self.error or self.tries >= _MOST_TRIES:
            return False
        found = self.decision(limits)
        if found.answer != "undecided":
            return False
        if not found.rounds:
            return True
        if self.merged(found):
            if not self.left:
                return False
            assert isinstance(self.case, ChainCase)
            self.case = replace(self.case, divider=self.left[0])
            self.left, self.plain = self.left[1:], []
            return True
        return found.rounds < MOST_ROUNDS


@dataclass
class FewCaseRounds(CaseRounds):
    """A pair at a size that borrows the noise of all models.

    Attributes:
        noise: the noise of all models.
        tries: how often the pair was asked for.
    """

    noise: Noise = field(default_factory=Noise)
    tries: int = 0

    def decision(self, limits: DecisionLimits, book: PadBook | None = None) -> Decision:  # noqa: ARG002
        """What the times at this size say."""
        thresholds = Thresholds(limits.alpha, noise=self.noise.share)
        return by_odds(decide(self.plain, thresholds), self.case.rule)

    def worth_another(self, limits: DecisionLimits) -> bool:
        """Whether the pair is open."""
        if self.error or self.tries >= _MOST_TRIES:
            return False
        found = self.decision(limits)
        return found.answer == "undecided" and found.rounds < MOST_ROUNDS


Entry = FewChainRounds | FewCaseRounds
"""A pair along a chain, or at a size."""


def shared_round(
    entries: Sequence[Entry], empty: Graph, ask: Ask
) -> tuple[list[MeasurementRequest], list[Slot]]:
    """One round: every model of these pairs once, the models of the first pair first.

    Args:
        entries: the pairs, the most important one first.
        empty: the model that takes the place of the separators for a pair at a size.
        ask: makes a request.
    """
    requests: dict[str, MeasurementRequest] = {}

    def asked(graph: Graph, label: str) -> str:
        key = hash_of(graph)
        if key not in requests:
            requests[key] = ask(graph, label)
        return requests[key].request_id

    slots = []
    for entry in entries:
        case = entry.case
        bare = case.bare if isinstance(case, ChainCase) else empty
        slots.append(
            Slot(
                entry,
                asked(case.single_first, f"{case.first.name}@{case.size_name}"),
                asked(case.single_second, f"{case.second.name}@{case.size_name}"),
                asked(case.connected, case.label),
                asked(bare, case.size_name),
            )
        )
    return list(requests.values()), slots
