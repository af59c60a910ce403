"""What judged networks say about a predictor: scores, intervals, and leads over every baseline.

Everything here is computed from rows of judged networks, so the rows of several seeds are judged
together in the same way as those of one seed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.errors import NoBaselineError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.judging import (
    RepeatedLatency,
    ShareEstimate,
    hits,
    paired_difference,
    perfect_predictor,
    share_within,
)
from latfarm_predictors.predict.baseline_sums import BaselineSums
from latfarm_predictors.predict.predictor import PlatformPredictor

OURS = "latfarm"
"""Name of our own predictions in tables."""
OWN_PARTS = frozenset({"sum"})
"""Methods that are parts of our predictor and no baselines. `sum` adds up our own kernels; it is
our prediction itself where the correction of networks found nothing to correct."""
TOLERANCE = 0.10
"""Relative error within which predictors are compared."""
DIGITS = 5
"""Number of significant digits of the latencies that are kept in files."""
CONVOLUTIONAL = "convolutional networks"
TRANSFORMERS = "transformers and hybrids"
"""Names of the two classes of networks in results."""


@dataclass(frozen=True)
class JudgedNetwork:
    """A network that judges: what was measured, and what was predicted. Latencies are in ms.

    Attributes:
        name: its name.
        family: its family.
        passes_ms: the latencies of its passes, oldest first; at least one.
        predicted_ms: our prediction.
        interval_ms: our interval, as the bundle gives it.
        others_ms: what baselines and vendors predict, by name; a name is missing where they have
            no answer.
    """

    name: str
    family: str
    passes_ms: tuple[float, ...]
    predicted_ms: float
    interval_ms: tuple[float, float]
    others_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> RepeatedLatency:
        """The latency that predictions are compared with."""
        return RepeatedLatency.of(self.passes_ms)

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measured latency."""
        low, high = self.interval_ms
        return low <= self.measured.mean_ms <= high

    @property
    def width(self) -> float:
        """Width of the interval, divided by the prediction."""
        low, high = self.interval_ms
        return (high - low) / self.predicted_ms

    def to_json(self) -> list[Any]:
        """The passes, the prediction and the interval, from which a later reader can judge."""
        return [
            [_short(each) for each in self.passes_ms],
            _short(self.predicted_ms),
            [_short(each) for each in self.interval_ms],
        ]


def judged_rows(
    predictor: PlatformPredictor,
    graphs: Sequence[Graph],
    families: Sequence[str],
    times: Mapping[str, Sequence[float]],
    vendor: Mapping[str, Mapping[str, float]] | None = None,
) -> list[JudgedNetwork]:
    """The rows of all networks that could be measured.

    Args:
        predictor: the predictor to judge.
        graphs: the networks that judge it.
        families: the family of each.
        times: their latencies in milliseconds, one for each pass, by hash.
        vendor: latencies that a vendor's compiler estimates, by hash and name.
    """
    known = [(g, f) for g, f in zip(graphs, families, strict=True) if times.get(hash_of(g))]
    answers = predictor.predict_many([graph for graph, _ in known])
    others: list[dict[str, float]] = [dict((vendor or {}).get(hash_of(g), {})) for g, _ in known]
    sums = BaselineSums(predictor, [graph for graph, _ in known])
    for name in BASELINES:
        try:
            told = sums.latency_ms(name)
        except NoBaselineError as error:
            print(f"baseline {name} is left out: {error}", file=sys.stderr)
            continue
        for row, latency_ms in zip(others, told, strict=True):
            row[name] = latency_ms
    return [
        JudgedNetwork(
            graph.name,
            family,
            tuple(times[hash_of(graph)]),
            answer.latency_ms,
            answer.interval_ms,
            baselines,
        )
        for (graph, family), answer, baselines in zip(known, answers, others, strict=True)
    ]


def scores(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, Any]:
    """The scores of nn-Meter's Table 8 and Fig. 9 in per cent, with binomial 95 % intervals."""
    errors = np.array(predicted) / np.array(measured) - 1.0
    return {
        "rmspe": round(100 * float(np.sqrt(np.mean(errors**2))), 2),
        "mean_ape": round(100 * float(np.mean(np.abs(errors))), 2),
        **_shares(share_within(predicted, measured, 0.05), share_within(predicted, measured, 0.10)),
    }


def _shares(five: ShareEstimate, ten: ShareEstimate) -> dict[str, Any]:
    return {
        "within5": round(100 * five.share, 1),
        "within10": round(100 * ten.share, 1),
        "within5_interval": _percents(five.low, five.high),
        "within10_interval": _percents(ten.low, ten.high),
    }


def _percents(*shares: float) -> list[float]:
    return [round(100 * share, 1) for share in shares]


def table(rows: Sequence[JudgedNetwork]) -> dict[str, dict[str, Any]]:
    """The scores of our predictions, of each baseline, and of a vendor's estimates.

    If some networks have no answer of a method, it is judged on the others, and its name tells
    their number.
    """
    found = {OURS: scores(_predicted(rows), _measured(rows))}
    for name in _others(rows):
        told = [row for row in rows if name in row.others_ms]
        label = name if len(told) == len(rows) else f"{name} ({len(told)})"
        found[label] = scores([row.others_ms[name] for row in told], _measured(told))
    return found


def leads(rows: Sequence[JudgedNetwork]) -> dict[str, dict[str, Any]]:
    """The lead over each other method in the share within 10 %, with the paired error."""
    found = {}
    for name in _others(rows):
        told = [row for row in rows if name in row.others_ms]
        lead = paired_difference(
            hits(_predicted(told), _measured(told), TOLERANCE),
            hits([row.others_ms[name] for row in told], _measured(told), TOLERANCE),
        )
        found[name] = {
            "points": round(100 * lead.difference, 1),
            "interval": _percents(lead.low, lead.high),
            "networks": lead.count,
            "ahead": lead.ahead,
        }
    return found


def perfect(rows: Sequence[JudgedNetwork]) -> dict[str, Any] | None:
    """The scores of a predictor without any error, in per cent; None for single passes."""
    found = perfect_predictor(row.passes_ms for row in rows)
    if found is None:
        return None
    return {
        **_shares(found.within5, found.within10),
        "networks": found.within10.count,
        "passes": found.passes,
        "median_difference_percent": round(100 * found.median_difference, 2),
    }


def shipped_intervals(rows: Sequence[JudgedNetwork]) -> dict[str, Any]:
    """Coverage and width of the intervals as the bundle gives them, in per cent."""
    share = ShareEstimate.of(float(np.mean([row.inside for row in rows])), len(rows))
    return {
        "percent": round(100 * share.share, 1),
        "interval": _percents(share.low, share.high),
        "median_width_percent": round(100 * median(row.width for row in rows), 1),
        "by_family_percent": {
            family: round(100 * float(np.mean([row.inside for row in members])), 1)
            for family, members in by_family(rows).items()
        },
    }


def by_family(rows: Sequence[JudgedNetwork]) -> dict[str, list[JudgedNetwork]]:
    """The rows of each family, by the names of the families."""
    names = sorted({row.family for row in rows})
    return {name: [row for row in rows if row.family == name] for name in names}


def by_class(
    rows: Sequence[JudgedNetwork], transformers: Collection[str]
) -> dict[str, dict[str, Any]]:
    """The results of convolutional networks, and those of transformers and hybrids, by class.

    Args:
        rows: the networks that could be measured.
        transformers: the families of transformers and hybrids; all others are convolutional.
    """
    classes = {
        CONVOLUTIONAL: [row for row in rows if row.family not in transformers],
        TRANSFORMERS: [row for row in rows if row.family in transformers],
    }
    return {
        name: {
            "networks": len(members),
            "table": table(members),
            "perfect": perfect(members),
            "leads": leads(members),
            "shipped": shipped_intervals(members),
        }
        for name, members in classes.items()
        if members
    }


def summary(rows: Sequence[JudgedNetwork], asked: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """All results of judged networks, as plain JSON types.

    Args:
        rows: the networks that could be measured; at least one.
        asked: name and family of each network that was to be measured.
    """
    measured = [row.measured for row in rows]
    errors = [m.standard_error_ms / m.mean_ms for m in measured if m.standard_error_ms is not None]
    ahead = leads(rows)
    names = Counter(row.name for row in rows)
    return {
        "networks": len(rows),
        "families": len({row.family for row in rows}),
        "not_measured": sorted((Counter(name for name, _ in asked) - names).elements()),
        "cannot_run": cannot_run(rows, asked),
        "passes": min(m.passes for m in measured),
        "standard_error_percent": round(100 * median(errors), 2) if errors else None,
        "table": table(rows),
        "perfect": perfect(rows),
        "leads": ahead,
        "ahead_of_all": all(lead["ahead"] for n, lead in ahead.items() if n not in OWN_PARTS),
        "by_family": {
            family: {
                **scores(_predicted(members), _measured(members)),
                "networks": len(members),
                "perfect": perfect(members),
            }
            for family, members in by_family(rows).items()
        },
        "inside_percent": shipped_intervals(rows)["percent"],
        "shipped": shipped_intervals(rows),
        "worst": worst(rows),
    }


def cannot_run(
    rows: Sequence[JudgedNetwork], asked: Sequence[tuple[str, str]]
) -> dict[str, list[int]]:
    """For each family with networks that could not be measured: how many, and of how many."""
    wanted = Counter(family for _, family in asked)
    missing = wanted - Counter(row.family for row in rows)
    return {family: [count, wanted[family]] for family, count in sorted(missing.items())}


def worst(rows: Sequence[JudgedNetwork], most: int = 10) -> list[list[Any]]:
    """The networks with the largest errors: name, measured and predicted milliseconds."""
    found = [(row.name, row.measured.mean_ms, row.predicted_ms) for row in rows]
    found.sort(key=lambda row: -abs(np.log(row[2] / row[1])))
    return [[name, _short(measured), _short(told)] for name, measured, told in found[:most]]


def _others(rows: Sequence[JudgedNetwork]) -> list[str]:
    """All methods beside ours: the baselines in their order, then vendors' estimates."""
    there = {name for row in rows for name in row.others_ms}
    return [n for n in BASELINES if n in there] + sorted(there - set(BASELINES))


def _predicted(rows: Sequence[JudgedNetwork]) -> list[float]:
    return [row.predicted_ms for row in rows]


def _measured(rows: Sequence[JudgedNetwork]) -> list[float]:
    return [row.measured.mean_ms for row in rows]


def _short(latency_ms: float) -> float:
    return float(f"{latency_ms:.{DIGITS}g}")
