"""Counters whose series are 0 when they are scraped for the first time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class CounterFromZero(Collector):
    """A counter with labels. Each series is 0 in its first scrape and shows its count afterwards.

    Prometheus computes a rate from the increase of a series. A series that is first seen with its
    final count has no increase, and boards, platforms and error codes are not known beforehand. So
    without this, a board that fails many requests within one scrape interval would raise no alert.
    The price is that a new series is one scrape late. If there are several scrapers, only the first
    one sees the 0.

    Only one thread may count; any thread may scrape.

    Args:
        registry: the registry of the metrics.
        name: name of the metric.
        text: help text of the metric.
        labels: names of its labels.
    """

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str]
    ) -> None:
        self._about = (name, text)
        self._labels = tuple(labels)
        self._counts: dict[tuple[str, ...], float] = {}
        self._born: set[tuple[str, ...]] = set()
        registry.register(self)

    def inc(self, *labels: str, by: float = 1.0) -> None:
        """Add to the series with these values of the labels."""
        self._counts[labels] = self._counts.get(labels, 0.0) + by

    def remove(self, *labels: str) -> None:
        """Remove a series; if it comes again, it starts at 0 again."""
        self._counts.pop(labels, None)
        self._born.discard(labels)

    def collect(self) -> Iterator[Metric]:
        """The metric with all its series."""
        name, text = self._about
        family = CounterMetricFamily(name, text, labels=self._labels)
        for labels, count in list(self._counts.items()):
            family.add_metric(labels, count if labels in self._born else 0.0)
            self._born.add(labels)
        yield family
