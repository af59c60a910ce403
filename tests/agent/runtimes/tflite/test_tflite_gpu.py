"""LiteRT's GPU accelerator is offered where it works; elsewhere the agent says why it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.runtimes.tflite import gpu as tflite_gpu
from latfarm_agent.runtimes.tflite_format.check import check
from latfarm_agent.testing.runtime_suite import measure

interpreter = pytest.importorskip("ai_edge_litert.interpreter")

FOLDER = Path(interpreter.__file__).parent


def test_without_a_driver_the_platform_is_missing_with_the_reason(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VK_ICD_FILENAMES", "/dev/null")
    monkeypatch.setenv("VK_DRIVER_FILES", "/dev/null")
    (mine,) = make_bench(gpu=True).describe()[1]
    assert mine.available
    assert not [platform for platform in mine.platforms if "-gpu-" in platform.name]
    assert "does not work here" in mine.missing
    assert "Vulkan driver" in mine.missing


def test_a_build_without_the_accelerator_says_so(tmp_path: Path) -> None:
    assert "has no libLiteRtWebGpuAccelerator.so" in tflite_gpu.works(tmp_path)


def test_what_it_is_tried_with_is_a_sound_model() -> None:
    check(tflite_gpu.smallest_model())


def test_it_measures_where_a_driver_is_good_enough(
    make_bench: Callable[..., Bench], chain: Callable[..., Path], tmp_path: Path
) -> None:
    reason = tflite_gpu.works(FOLDER)
    if reason:
        pytest.skip(reason)
    bench = make_bench(gpu=True)
    (mine,) = bench.describe()[1]
    model = chain(tmp_path / "m.tflite", ["RELU", "TANH"])
    for precision in ("fp16", "fp32"):
        (name,) = [p.name for p in mine.platforms if p.name.endswith(f"-gpu-{precision}")]
        result = measure(bench, name, model)
        assert result.outcome == "ok", result.error_message
        assert all(session.compile_ms > 0 for session in result.sessions)
        profiled = measure(bench, name, model, profile=True)
        assert profiled.error_code == "PROFILE_UNAVAILABLE"
