"""How far kernels that resemble nothing measured may throw off the latency of a network.

The corrected sum of kernels reads how unsure each kernel is. A corrector that answers in its place
reads times of kernels, or only the network, and its intervals rest on networks whose kernels were
known. So a network with an unknown op, an element type that was never measured, or a kernel far
larger than all measured ones would get an interval as narrow as any other. This widens it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.predict.kernel_book import KernelRecord

_SOURCES = ("fallback:analytic", "fallback:beyond:", "fallback:dtype:")
"""Beginnings of the sources of kernels that resemble nothing that was measured."""


def unfamiliar_sigma(kernels: Sequence[KernelRecord], rows: Sequence[Sequence[int]]) -> Array:
    """Log-sigma of networks by their unfamiliar kernels alone, which err together; shape (n,).

    Args:
        kernels: the kernels of all networks.
        rows: the places of the kernels of each of n networks in `kernels`.
    """
    strange = [bool(k.reason) or k.source.startswith(_SOURCES) for k in kernels]
    found = np.zeros(len(rows))
    if not any(strange):
        return found
    for place, own in enumerate(rows):
        total_ms = sum(kernels[row].column[0] for row in own)
        doubt_ms = sum(k.column[0] * k.column[2] for k in (kernels[r] for r in own if strange[r]))
        found[place] = doubt_ms / total_ms if total_ms > 0.0 else 0.0
    return found
