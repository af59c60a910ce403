from __future__ import annotations

import pytest
from latfarm_controller.platform_name import PlatformName, differing, nearest, platform_hint

KNOWN = (
    "local-onnxruntime1.31-fp32-1t",
    "local-onnxruntime1.31-fp32-2t",
    "jetson-orin-tensorrt10.3-fp16",
    "pixel6-tflite2.17-gpu-fp16",
)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("local-onnxruntime1.31-fp32-1t", ("local", "onnxruntime", "1.31", "", "fp32", "1")),
        ("jetson-orin-tensorrt10.3-fp16", ("jetson-orin", "tensorrt", "10.3", "", "fp16", "")),
        ("pixel6-tflite2.17-gpu-fp16", ("pixel6", "tflite", "2.17", "gpu", "fp16", "")),
        ("toy", ("", "", "", "", "", "")),
    ],
)
def test_the_parts_of_a_name(name: str, parts: tuple[str, ...]) -> None:
    assert tuple(PlatformName.parse(name).parts.values()) == parts


def test_the_nearest_name_has_the_most_equal_parts() -> None:
    assert nearest("local-onnxruntime1.30-fp32-1t", KNOWN) == KNOWN[0]
    assert nearest("local-onnxruntime1.31-fp32-4t", KNOWN) in KNOWN[:2]
    assert nearest("jetson-orin-tensorrt8.5-fp16", KNOWN) == KNOWN[2]
    assert nearest("anything", []) == ""
    assert differing("local-onnxruntime1.30-fp32-1t", KNOWN[0]) == ("version",)
    told = platform_hint("local-onnxruntime1.30-int8-1t", KNOWN)
    assert told == f"; did you mean {KNOWN[0]} (it differs in its version and dtype)?"
    assert platform_hint("sample", KNOWN) == "", "nothing about it is alike"
    assert "local-onnxruntime" in platform_hint("onnxruntime1.31", KNOWN)
    assert platform_hint("local-*", KNOWN) == platform_hint("x", []) == ""
