"""Results of several seeds together, from what the file of figures keeps of each.

Seeds may have been measured on different days. Shares are pooled over all their networks, and so
are widths of intervals. The lead over a method is the mean of the seeds' leads by their numbers of
networks; seeds are independent draws, so the squares of its error are added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from operator import mul
from statistics import median
from typing import Any

from latfarm_predictors.judging import binomial_interval

SHARES = ("within5", "within10")
"""The shares that are kept of each method, in per cent."""


def pooled_seeds(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the seeds of a platform tell together, in the words of `verdicts.summary`.

    It has the fields that tables of the platform need. A single seed gives its own figures.

    Args:
        records: the results of each seed, with their rows; at least one.

    Raises:
        KeyError: a seed was measured by a program that did not keep rows.
    """
    counts = [float(each["networks"]) for each in records]
    networks = int(sum(counts))
    tables = [_by_method(each["table"]) for each in records]
    methods = [name for name in tables[0] if all(name in table for table in tables)]
    inside = _mean([each["shipped"]["percent"] for each in records], counts)
    return {
        "networks": networks,
        "table": {name: _shares([table[name] for table in tables], counts) for name in methods},
        "perfect": _shares([each["perfect"] for each in records], counts),
        "leads": {
            name: _lead([each["leads"][name] for each in records], counts)
            for name in records[0]["leads"]
        },
        "shipped": {
            "percent": round(inside, 1),
            "interval": [100 * share for share in binomial_interval(inside / 100, networks)],
            "median_width_percent": round(100 * median(_widths(records)), 1),
        },
    }


def _mean(values: Sequence[float], counts: Sequence[float]) -> float:
    """The mean of the seeds' values by their numbers of networks."""
    return float(sum(map(mul, values, counts)) / sum(counts))


def _shares(rows: Sequence[Mapping[str, Any]], counts: Sequence[float]) -> dict[str, float]:
    return {name: round(_mean([row[name] for row in rows], counts), 1) for name in SHARES}


def _by_method(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table by the names of methods, without the number of networks that some have answers of."""
    return {label.partition(" (")[0]: row for label, row in table.items()}


def _lead(leads: Sequence[Mapping[str, Any]], counts: Sequence[float]) -> dict[str, Any]:
    points = _mean([lead["points"] for lead in leads], counts)
    weights = [count / sum(counts) for count in counts]
    below = [lead["points"] - lead["interval"][0] for lead in leads]
    above = [lead["interval"][1] - lead["points"] for lead in leads]
    return {
        "points": round(points, 1),
        "interval": [
            round(points - hypot(*map(mul, weights, below)), 1),
            round(points + hypot(*map(mul, weights, above)), 1),
        ],
    }


def _widths(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """The width of each network's interval, divided by its prediction."""
    return [
        (high - low) / predicted
        for each in records
        for _, predicted, (low, high) in each["rows"].values()
    ]
