"""Runs the conformance suite over the runtime of phones, with TFLite's benchmark binary."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.phone import REFERENCE, RUNTIME, phone_bench
from latfarm_agent.testing.runtime_suite import (
    PATIENT,
    RuntimeSuite,
)
from latfarm_agent.worker.pool import WorkerLimits
from tests.agent.conftest import write_tflite
from tests.agent.phones.kit import SERIAL, config, entry, write_cnn


@pytest.mark.usefixtures("one_phone")
class TestTflite(RuntimeSuite):
    runtime = RUNTIME
    model_format = "tflite"

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        variants: list[dict[str, object]] = [{}, {"dtype": "int8"}, {"delegate": "gpu"}]
        one = entry("tflite-benchmark", "benchmark_model", *variants)
        return phone_bench(
            SERIAL, BenchOptions("phone-1", "phone", directory, config=config(one), limits=limits)
        )

    def make_model(self, directory: Path) -> Path:
        return write_cnn(directory / "model.tflite")

    def make_unsupported(self, directory: Path) -> Path | None:
        return write_tflite(directory / "custom.tflite", "custom")

    def make_greedy(self, directory: Path) -> Path | None:
        return write_tflite(directory / "greedy.tflite", "greedy")

    def make_misconfigured(self, directory: Path, option: str) -> Bench | None:
        asked = config(entry("tflite-benchmark", "benchmark_model"), **{option: 1})
        return phone_bench(
            SERIAL, BenchOptions("phone-1", None, directory, config=asked, limits=PATIENT)
        )

    def make_lacking(self, directory: Path) -> Bench | None:
        return host_bench(BenchOptions("phone-1", None, directory, runtimes={RUNTIME: REFERENCE}))
