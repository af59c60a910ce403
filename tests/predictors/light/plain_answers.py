"""A program that predicts as a user without the extras would, and says what it answers.

    python -m tests.predictors.light.plain_answers predict BUNDLE MODEL...
    python -m tests.predictors.light.plain_answers fit BUNDLE MODEL

Every library of the extras is hidden from it, and so are those that these need.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

HIDDEN = (
    *("joblib", "lightgbm", "mpmath", "onnxruntime", "onnxslim", "pandas", "scipy", "sklearn"),
    *("sympy", "threadpoolctl", "torch"),
)
"""Libraries that predicting must not need; importing one is as if it were not installed."""
NEEDED = frozenset(
    {"google", "latfarm_predictors", "ml_dtypes", "numpy", "onnx", "typing_extensions"}
)
"""Packages that predicting may need: numpy, onnx, and what onnx needs."""


def answers(bundle: str, models: Sequence[str]) -> list[dict[str, Any]]:
    """All that a bundle says of some models; JSON keeps every bit of a number."""
    from latfarm_predictors import load_bundle, read_onnx
    from latfarm_predictors.trust.network_trust import covered_share

    predictor = load_bundle(bundle)
    told = []
    for model in models:
        graph = read_onnx(model)
        for coverage in (0.5, 0.9):
            answer = predictor.predict(graph, coverage)
            covered = covered_share(predictor, graph, answer)
            told.append({"covered": covered, **answer.to_json()})
    return told


def refusals(bundle: str, model: str) -> list[str]:
    """The types and texts of the errors of all that needs the extra `fit`."""
    from latfarm_predictors import load_bundle, read_onnx
    from latfarm_predictors.errors import MissingLibraryError
    from latfarm_predictors.models.boosted import Boosted
    from latfarm_predictors.models.trees.forest import Forest

    predictor = load_bundle(bundle)
    evidence = predictor.confidence
    assert evidence is not None
    told = []
    for wanted in (
        lambda: Forest().fit(evidence.table, evidence.latency_ms),
        lambda: predictor.models.overall.fit(evidence.table, evidence.latency_ms),
        lambda: Boosted(roofline=predictor.models.overall, sigma=0.1).fit(
            evidence.table, evidence.latency_ms
        ),
        lambda: read_onnx(model, optimise=True),
    ):
        try:
            wanted()
        except MissingLibraryError as error:
            told.append(str(error))
    return told


def main(arguments: Sequence[str]) -> None:
    """Print the answers, or the errors, and the packages that they took, as JSON."""
    for name in HIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]
    before = set(sys.modules)
    kind, bundle, *models = arguments
    told: Any = refusals(bundle, models[0]) if kind == "fit" else answers(bundle, models)
    places = {
        name.partition(".")[0]: str(getattr(module, "__file__", None) or "")
        for name, module in sys.modules.items()
        if name not in before
    }
    used = sorted(name for name, place in places.items() if "site-packages" in place)
    print(json.dumps({"told": told, "used": used}))


if __name__ == "__main__":
    main(sys.argv[1:])
