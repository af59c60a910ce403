"""What the tests of several runtimes share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def onnx_file() -> Callable[..., Path]:
    """`write_onnx` of the bench's tests."""
    path = Path(__file__).parent / "bench" / "conftest.py"
    spec = importlib.util.spec_from_file_location("bench_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    write: Callable[..., Path] = module.write_onnx
    return write
