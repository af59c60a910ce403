"""Counters whose series begin at 0 for whoever scrapes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class Births(Collector):
    """A counter with labels: each series is 0 in its first scrape, and its count from then on.

    A rate shows nothing of a series that is first seen at its height, and nobody can know all
    series beforehand: boards, platforms and error codes come as they come. So a board that fails
    everything it is given within one scrape would raise no alert. The price: a new series is one
    scrape late. Of several scrapers the first one to come sees the 0.

    One thread counts; any thread may scrape.
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
        """Count for the series of these labels' values."""
        self._counts[labels] = self._counts.get(labels, 0.0) + by

    def remove(self, *labels: str) -> None:
        """End a series; if it comes again, it begins at 0 again."""
        self._counts.pop(labels, None)
        self._born.discard(labels)

    def collect(self) -> Iterator[Metric]:
        """One family of all series."""
        name, text = self._about
        family = CounterMetricFamily(name, text, labels=self._labels)
        for labels, count in list(self._counts.items()):
            family.add_metric(labels, count if labels in self._born else 0.0)
            self._born.add(labels)
        yield family
