"""The doubles of NVIDIA's driver and management library, compiled here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.runtimes.tensorrt.conftest import DOUBLE, compile_library


@pytest.fixture(scope="session", name="driver")
def _driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The double of the CUDA driver, under the name that the loader looks for."""
    return compile_library(DOUBLE / "cuda.c", tmp_path_factory.mktemp("cuda") / "libcuda.so.1")


@pytest.fixture(scope="session", name="nvml_library")
def _nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The double of NVML."""
    folder = tmp_path_factory.mktemp("nvml")
    return compile_library(DOUBLE / "nvml.c", folder / "libnvidia-ml.so.1")
