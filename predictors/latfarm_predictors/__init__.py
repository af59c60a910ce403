"""Latency predictors: graphs, kernels, fusion rules, models and their confidence.

This package needs neither the farm nor its transports, so a NAS program can depend on it alone.

    from latfarm_predictors import load_bundle, read_onnx
    answer = load_bundle("pixel4.zip").predict(read_onnx("model.onnx"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latfarm_predictors.bundle import load_bundle
    from latfarm_predictors.frontends.onnx import read_onnx

__all__ = ["load_bundle", "read_onnx"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, because the ONNX reader takes a second to load."""
    if name == "load_bundle":
        from latfarm_predictors.bundle import load_bundle

        return load_bundle
    if name == "read_onnx":
        from latfarm_predictors.frontends.onnx import read_onnx

        return read_onnx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
