"""Latency predictors: graphs, kernels, fusion rules, models and their confidence.

This package needs neither the farm nor its transports, so a NAS program can depend on it alone.

    from latfarm_predictors import load_bundle, read_onnx
    answer = load_bundle("pixel4.zip").predict(read_onnx("model.onnx"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latfarm_predictors.bundle import load_bundle
    from latfarm_predictors.frontends.model_file import read_model
    from latfarm_predictors.frontends.onnx import read_onnx
    from latfarm_predictors.frontends.tflite.read import read_tflite
    from latfarm_predictors.frontends.torch_module import from_torch
    from latfarm_predictors.sample import load_sample

__all__ = ["from_torch", "load_bundle", "load_sample", "read_model", "read_onnx", "read_tflite"]
__version__ = "0.1.0"

_MODULES = {
    "from_torch": "frontends.torch_module",
    "load_bundle": "bundle",
    "load_sample": "sample",
    "read_model": "frontends.model_file",
    "read_onnx": "frontends.onnx",
    "read_tflite": "frontends.tflite.read",
}
"""The module of each name; it is imported when the name is first used, because some take long."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
