"""The rounds of fusion detection: a pair's models, as they are or between pads, and their times.

Where transfers are costly (`fusion_transfers`) a pair is measured as smart padding measures a
layer: hardly any data goes in or out of a padded model, and what its pads cost cancels. An op that
runs within the pad before it seems to take no time; such a pair is tried behind another separator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.decision import Decision, Triple, decide
from latfarm_controller.campaigns.fusion.operators import FusionOperator
from latfarm_controller.campaigns.pads.bounds import Model, Sum, needed
from latfarm_controller.campaigns.pads.models import Separator, padded, padding_only
from latfarm_controller.campaigns.plans import Batch

SHARED = 3
"""Op1 is measured anew after so many pairs: near in time, yet not once for each."""

Ask = Callable[[Graph, str], MeasurementRequest]
Answers = Mapping[str, Measurement]
Next = Callable[[Sequence[MeasurementRequest], int], Batch]
"""Makes the next batch of requests; the number is how many are thought to be left, these too."""


class PairUnderTest(Protocol):
    """A pair to be measured: as itself, see `fusion_cases.PairCase`, or along a chain."""

    @property
    def first(self) -> FusionOperator:
        """Op1."""

    @property
    def second(self) -> FusionOperator:
        """Op2."""

    @property
    def size_name(self) -> str:
        """Cases of one size share the model of an op alone."""

    @property
    def rule(self) -> tuple[str, str]:
        """The pair of ops as in the rules."""

    @property
    def label(self) -> str:
        """For people."""

    @property
    def wide_shape(self) -> tuple[int, ...]:
        """The tensor between both ops."""

    @property
    def single_first(self) -> Graph:
        """Op1 alone."""

    @property
    def single_second(self) -> Graph:
        """Op2 alone."""

    @property
    def connected(self) -> Graph:
        """Op1 followed by Op2."""


class DecisionLimits(Protocol):
    """What decides when a pair is settled; see `fusion.FusionOptions`."""

    @property
    def alpha(self) -> float:
        """Threshold of inequation 1."""

    @property
    def gate(self) -> float:
        """An op faster than this many standard errors of the connected model tells nothing."""

    @property
    def sureness(self) -> float:
        """Standard errors by which the inequation holds or fails."""

    @property
    def rounds(self) -> int:
        """Each pair's least number."""

    @property
    def max_rounds(self) -> int:
        """Each pair's largest number."""


class PadBook:
    """Padded models, the padding-only models that they share, and the times of the latter."""

    def __init__(self) -> None:
        self.pads: dict[Model, Graph] = {}
        self._models: dict[tuple[str, Separator], tuple[Graph, Sum, Model]] = {}
        self._times_ms: dict[str, list[float]] = {}

    def model(self, graph: Graph, separator: Separator = "MaxPool") -> Graph:
        """The graph between pads.

        Raises:
            GraphError: it cannot be padded.
        """
        return self._entry(graph, separator)[0]

    def wide(self, second: Graph, separator: Separator) -> Graph:
        """The padding-only model of what Op2 reads: it stands for the empty model."""
        return self.pads[self._entry(second, separator)[2]]

    def cost_ms(self, graph: Graph, separator: Separator = "MaxPool") -> float | None:
        """What is to be taken off the padded model's time; None while a pad is not measured."""
        total_ms = 0.0
        for model, count in self._entry(graph, separator)[1].items():
            found = self._times_ms.get(hash_of(self.pads[model]))
            if not found:
                return None
            total_ms += count * median(found)
        return total_ms

    def wide_ms(self, second: Graph, separator: Separator) -> float | None:
        """The time of `wide`, pooled."""
        found = self._times_ms.get(hash_of(self.wide(second, separator)))
        return median(found) if found else None

    def needed_by(self, graphs: Iterable[Graph], separator: Separator) -> list[Graph]:
        """The padding-only models of some graphs, each once."""
        models = {m: None for g in graphs for m in self._entry(g, separator)[1]}
        return [self.pads[model] for model in models]

    def told(self, graph_hash: str, latency_ms: float) -> None:
        """Keep the time of a padding-only model."""
        self._times_ms.setdefault(graph_hash, []).append(latency_ms)

    def _entry(self, graph: Graph, separator: Separator) -> tuple[Graph, Sum, Model]:
        key = (hash_of(graph), separator)
        if key not in self._models:
            model = padded(Kernel(graph), separator=separator)
            (terms,) = needed(model.pads_in, model.pads_out, "split")
            first: Model = (model.pads_in[0], "base")
            for pad, form in (*terms, first):
                if (pad, form) not in self.pads:
                    self.pads[pad, form] = padding_only(pad, form)
            self._models[key] = (model.graph, terms, first)
        return self._models[key]


@dataclass
class CaseRounds:
    """A pair at a size, with the rounds measured of it so far, as it is and between pads."""

    case: PairUnderTest
    plain: list[Triple] = field(default_factory=list)
    padded: list[Triple] = field(default_factory=list)
    separator: Separator = "MaxPool"
    error: str = ""

    def decision(self, limits: DecisionLimits, book: PadBook | None = None) -> Decision:
        """What the times say: those between pads where a book of pads is given."""
        triples, offsets_ms = self.plain, (0.0, 0.0, 0.0)
        if book is not None and not self.error:
            triples = self.padded
            graphs = (self.case.single_first, self.case.single_second, self.case.connected)
            costs = [book.cost_ms(graph, self.separator) for graph in graphs] if triples else []
            wide_ms = book.wide_ms(graphs[1], self.separator) if triples else None
            known = [cost for cost in costs if cost is not None]
            if wide_ms is None or len(known) < 3:
                triples = []
            else:
                offsets_ms = (known[0] - wide_ms, known[1] - wide_ms, known[2] - wide_ms)
        return decide(
            triples,
            alpha=limits.alpha,
            gate=limits.gate,
            sureness=limits.sureness,
            offsets_ms=offsets_ms,
        )

    def worth_repeating(self, limits: DecisionLimits, book: PadBook | None = None) -> bool:
        """Whether the rounds that are left could settle it: errors shrink with their root."""
        count = len(self.plain if book is None else self.padded)
        if self.error or count >= limits.max_rounds:
            return False
        found = self.decision(limits, book)
        if found.answer != "undecided":
            return False
        if found.rounds < 2:
            return True
        hope = math.sqrt(limits.max_rounds / found.rounds)
        return found.base_ms * hope > limits.gate * found.connected_spread_ms

    def try_again(self, limits: DecisionLimits, book: PadBook) -> bool:
        """Behind another separator, where an op seems to have run within the first one."""
        if self.error or self.case.first.flat or self.separator != "MaxPool":
            return False
        found = self.decision(limits, book)
        if found.answer != "undecided" or found.base_ms > limits.gate * found.connected_spread_ms:
            return False
        self.separator, self.padded = "AveragePool", []
        return True


@dataclass(frozen=True)
class Slot:
    """The request ids of a case's triple in a round; `empty`: of what a call costs without ops."""

    case: CaseRounds
    first: str
    second: str
    connected: str
    empty: str

    def take(self, answers: Answers, empty_ms: float | None, *, between_pads: bool) -> None:
        """Keep the round, unless an op of it cannot be run at all or a measurement failed.

        Args:
            answers: the round's.
            empty_ms: stands in for an empty model that was not measured; None: nothing does.
            between_pads: the models were.
        """
        parts = [answers[i] for i in (self.first, self.second, self.connected)]
        empty = answers[self.empty]
        asked = parts if empty_ms is not None else [*parts, empty]
        failed = next((m for m in asked if m.outcome is Outcome.MODEL_ERROR), None)
        if failed is not None:
            self.case.error = failed.error_message or failed.error_code or "failed"
            return
        if empty_ms is None and not empty.ok:
            return
        known_ms = empty.latency_ms if empty.ok else empty_ms
        triple = Triple(parts[0], parts[1], parts[2], known_ms or 0.0)
        if triple.ok:
            (self.case.padded if between_pads else self.case.plain).append(triple)


def plain_round(
    cases: Sequence[CaseRounds], empty: Graph, ask: Ask
) -> tuple[list[MeasurementRequest], list[Slot]]:
    """One round of pairs as they are: Op1, (Op1, Op2) and Op2 next to each other."""
    round_ = _Round(ask)
    last: PairUnderTest | None = None
    for entry in cases:
        case = entry.case
        if last is None or case.size_name != last.size_name:
            round_.empty = round_.ask(empty, "empty")
        if round_.begins(case, last):
            round_.first = round_.ask(case.single_first, f"{case.first.name}@{case.size_name}")
        round_.pair(entry, case.connected, case.single_second)
        last = case
    return round_.requests, round_.slots


def chained_round(
    cases: Sequence[tuple[CaseRounds, Graph]], ask: Ask
) -> tuple[list[MeasurementRequest], list[Slot]]:
    """One round of chained pairs, each with the chain that stands for its empty model."""
    round_ = _Round(ask)
    last: PairUnderTest | None = None
    for entry, bare in cases:
        case = entry.case
        if round_.begins(case, last):
            round_.empty = round_.ask(bare, case.size_name)
            round_.first = round_.ask(case.single_first, f"{case.first.name}@{case.size_name}")
        round_.pair(entry, case.connected, case.single_second)
        last = case
    return round_.requests, round_.slots


def padded_round(
    cases: Sequence[CaseRounds], book: PadBook, ask: Ask
) -> tuple[list[MeasurementRequest], list[Slot], list[MeasurementRequest]]:
    """One round between pads; last, the requests of padding-only models among those."""
    round_ = _Round(ask)
    pads: dict[str, Graph] = {}
    for entry in cases:
        graphs = (entry.case.single_first, entry.case.single_second, entry.case.connected)
        pads |= {hash_of(g): g for g in book.needed_by(graphs, entry.separator)}
    asked = [ask(graph, "padding_only") for graph in pads.values()]
    round_.requests += asked
    last: CaseRounds | None = None
    for entry in cases:
        case = entry.case
        other = last is None or entry.separator != last.separator
        if round_.begins(case, last.case if last is not None else None) or other:
            wide = book.wide(case.single_second, entry.separator)
            asked.append(ask(wide, "padding_only"))
            round_.requests.append(asked[-1])
            round_.empty = asked[-1].request_id
            first = book.model(case.single_first, entry.separator)
            round_.first = round_.ask(first, f"padded {case.first.name}@{case.size_name}")
        connected = book.model(case.connected, entry.separator)
        round_.pair(entry, connected, book.model(case.single_second, entry.separator))
        last = entry
    return round_.requests, round_.slots, asked


class _Round:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.requests: list[MeasurementRequest] = []
        self.slots: list[Slot] = []
        self.empty = ""
        self.first = ""
        self._shared = 0

    def ask(self, graph: Graph, label: str) -> str:
        self.requests.append(self._ask(graph, label))
        return self.requests[-1].request_id

    def begins(self, case: PairUnderTest, last: PairUnderTest | None) -> bool:
        """Whether Op1 is to be measured anew before this case."""
        fresh = (
            last is None
            or self._shared == SHARED
            or (case.first.name, case.size_name) != (last.first.name, last.size_name)
            or case.wide_shape != last.wide_shape
        )
        if fresh:
            self._shared = 0
        return fresh

    def pair(self, entry: CaseRounds, connected: Graph, second: Graph) -> None:
        case = entry.case
        both = self.ask(connected, case.label)
        alone = self.ask(second, f"{case.second.name}@{case.size_name}")
        self.slots.append(Slot(entry, self.first, alone, both, self.empty))
        self._shared += 1
