"""The names of the baselines; this module loads fast, because helps of commands show the names."""

from __future__ import annotations

OWN = ("roofline", "sum", "operators")
"""Baselines made of our own models, for which nothing is fitted.

roofline: our roofline over all kernels. sum: our kernels without the network correction. operators:
every operator by itself without the network correction, as if nothing were fused (nn-Meter, section
7.3).
"""

PER_TYPE = (
    "nn-meter",
    "annette-roofline",
    "annette-refined",
    "annette-statistical",
    "annette-mixed",
)
"""Baselines with one model for each kind of kernel: nn-Meter's forests, ANNETTE's layer models."""

MNN = ("mnn_cost", "mnn_cost_scaled")
"""MNN's cost model, as published without measurements, and with one factor fitted to kernels."""

NETWORKS = ("flops", "flops_mac")
"""Baselines that are linear in totals of a network: operations, and memory accesses too."""

BASELINES = ("forest", *OWN, "lookup", *PER_TYPE, *MNN, *NETWORKS)
"""All baselines that `baseline_ms` knows.

forest: random forests on the groups of our own regressors. lookup: the nearest measured kernel.
"""
