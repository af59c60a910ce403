"""Names of the baselines, for who must not wait for numpy (a command's help)."""

from __future__ import annotations

OWN = ("roofline", "sum", "operators")
"""Made of our own models, with nothing to fit: our roofline alone; our kernels without the network
correction; the same for every operator alone, as if nothing were fused (nn-Meter, section 7.3)."""

PER_TYPE = (
    "nn-meter",
    "annette-roofline",
    "annette-refined",
    "annette-statistical",
    "annette-mixed",
)
"""One model a kind of kernel: nn-Meter's forests on its Table 6's features, ANNETTE's four layer
models."""

MNN = ("mnn_cost", "mnn_cost_scaled")
"""MNN's cost without a measurement, as published, and with one factor fitted to the kernels."""

NETWORKS = ("flops", "flops_mac")
"""Linear in a network's totals."""

BASELINES = ("forest", *OWN, "lookup", *PER_TYPE, *MNN, *NETWORKS)
"""Names that `predict_baseline` knows. forest: random forests on the groups of our own models;
lookup: the nearest measured kernels."""
