"""Results of several seeds together, from what the file of figures keeps of each.

Seeds may have been measured on different days. Shares are pooled over all their networks, and so
are widths of intervals. The lead over a method is the mean of the seeds' leads by their numbers of
networks; seeds are independent draws, so the squares of its error are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import hypot
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
    networks = sum(each["networks"] for each in records)

    def mean(of: Callable[[Mapping[str, Any]], float]) -> float:
        return sum(each["networks"] * of(each) for each in records) / networks

    def shares(of: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
        return {name: round(mean(lambda each, n=name: of(each)[n]), 1) for name in SHARES}

    tables = [_by_method(each["table"]) for each in records]
    methods = [name for name in tables[0] if all(name in table for table in tables)]
    inside = mean(lambda each: each["shipped"]["percent"])
    return {
        "networks": networks,
        "table": {
            name: shares(lambda each, n=name: _by_method(each["table"])[n]) for name in methods
        },
        "perfect": shares(lambda each: each["perfect"]),
        "leads": {name: _lead(records, networks, name) for name in records[0]["leads"]},
        "inside_percent": round(inside, 1),
        "shipped": {
            "percent": round(inside, 1),
            "interval": [100 * share for share in binomial_interval(inside / 100, networks)],
            "median_width_percent": round(100 * median(_widths(records)), 1),
        },
    }


def _by_method(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table by the names of methods, without the number of networks that some have answers of."""
    return {label.partition(" (")[0]: row for label, row in table.items()}


def _lead(records: Sequence[Mapping[str, Any]], networks: int, name: str) -> dict[str, Any]:
    parts = [(each["networks"] / networks, each["leads"][name]) for each in records]
    points = sum(weight * lead["points"] for weight, lead in parts)
    below = hypot(*(weight * (lead["points"] - lead["interval"][0]) for weight, lead in parts))
    above = hypot(*(weight * (lead["interval"][1] - lead["points"]) for weight, lead in parts))
    return {
        "points": round(points, 1),
        "interval": [round(points - below, 1), round(points + above, 1)],
    }


def _widths(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """The width of each network's interval, divided by its prediction."""
    return [
        (high - low) / predicted
        for each in records
        for _, predicted, (low, high) in each["rows"].values()
    ]
