"""Predict the latency of a model from a bundle, with its interval and its slowest kernels.

Usage: `python examples/predict_in_python.py BUNDLE MODEL.onnx`

BUNDLE is a file that `latfarm characterize` or `latfarm bundle export` has written. Nothing but
`latfarm-predictors` has to be installed: no controller, no board and no network is involved.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from latfarm_predictors import load_bundle, read_onnx

SLOWEST = 5
"""Number of kernels to print."""


def main() -> None:
    """Print the prediction for one model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "bundle", type=Path, help="a bundle, which contains the predictor of a platform"
    )
    parser.add_argument("model", type=Path, help="an ONNX file")
    given = parser.parse_args()

    predictor = load_bundle(given.bundle)
    answer = predictor.predict(read_onnx(given.model), coverage=0.9)

    low_ms, high_ms = answer.interval_ms
    print(f"{answer.network} on {answer.platform}: {answer.latency_ms:.3f} ms")
    print(f"with 90 % probability between {low_ms:.3f} and {high_ms:.3f} ms")
    if not answer.calibrated:
        print("the interval is not calibrated: too few networks were measured for this bundle")
    for reason in answer.unsupported:
        print(f"not predicted: {reason}")
    for kernel in sorted(answer.kernels, key=lambda k: -k.latency_ms)[:SLOWEST]:
        print(f"  {kernel.latency_ms:8.4f} ms  {kernel.type}  (first op: {kernel.nodes[0]})")


if __name__ == "__main__":
    main()
