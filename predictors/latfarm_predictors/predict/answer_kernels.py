"""The kernels of an answer, which are made only when somebody looks at them.

A search asks for the latencies of thousands of networks and looks at the kernels of a few. Making
60 kernels takes as long as predicting the network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latfarm_predictors.features.table import Array, main_op
from latfarm_predictors.intervals import Mondrian
from latfarm_predictors.kernels.parts import Part
from latfarm_predictors.kernels.workload import configuration
from latfarm_predictors.predict.answer import KernelAnswer
from latfarm_predictors.predict.kernel_book import KernelRecord
from latfarm_predictors.predict.usable import check_finite, usable_bundle


class KernelAnswers:
    """Makes the kernels of an answer when called. Thread-safe.

    Args:
        parts: the kernels' nodes.
        kernels: the estimate of each kernel.
        scores: conformal scores, which calibrate intervals.
        coverage: probability with which an interval shall hold the latency.
        bundle: name of the bundle that the estimates come from; empty where there is none.
    """

    __slots__ = ("_bundle", "_coverage", "_kernels", "_parts", "_scores")

    def __init__(
        self,
        parts: Sequence[Part],
        kernels: Sequence[KernelRecord],
        scores: Mondrian,
        coverage: float,
        bundle: str = "",
    ) -> None:
        self._bundle = bundle
        self._parts = parts
        self._kernels = kernels
        self._scores = scores
        self._coverage = coverage

    def __call__(self) -> tuple[KernelAnswer, ...]:
        """The kernels, in the order in which they run. Each call makes new ones.

        Raises:
            BundleError: the estimates are of a bundle whose models do not fit together.
        """
        with usable_bundle(self._bundle):
            return self._made()

    def _made(self) -> tuple[KernelAnswer, ...]:
        """See `__call__`."""
        kernels = self._kernels
        latency, _, sigma = np.array([k.column[:3] for k in kernels]).reshape(-1, 3).T
        low, high = kernel_intervals(
            self._scores, latency, sigma, [kernel.label for kernel in kernels], self._coverage
        )
        check_finite(self._bundle or "the predictor", latency, low, high)
        return tuple(
            [
                KernelAnswer(
                    kernel.row.type,
                    part.node_names,
                    configuration(kernel.row),
                    kernel.column[0],
                    interval_ms,
                    kernel.source,
                )
                for kernel, part, interval_ms in zip(
                    kernels, self._parts, zip(low.tolist(), high.tolist(), strict=True), strict=True
                )
            ]
        )


def kernel_intervals(
    scores: Mondrian, latency_ms: Array, sigma: Array, labels: Sequence[str], coverage: float
) -> tuple[Array, Array]:
    """Lower and upper ends of the intervals of kernels in ms, two arrays of shape (n,).

    Args:
        scores: conformal scores, which calibrate intervals.
        latency_ms: predicted latencies, shape (n,).
        sigma: their log-sigmas, shape (n,).
        labels: the label whose scores apply to each.
        coverage: probability with which an interval shall hold the latency.
    """
    factors = {label: scores.multiplier(label, coverage)[0] for label in set(labels)}
    reach = np.array([factors[label] for label in labels]) * sigma
    return latency_ms * np.exp(-reach), latency_ms * np.exp(reach)


def unsupported(parts: Sequence[Part], kernels: Sequence[KernelRecord]) -> tuple[str, ...]:
    """For each kernel of an unknown op, a text with its node, its op and the reason."""
    return tuple(
        [
            f"{part.node_names[0] if part.node_names else part.type} "
            f"({main_op(part.type)}): {kernel.reason}"
            for part, kernel in zip(parts, kernels, strict=True)
            if kernel.reason
        ]
    )
