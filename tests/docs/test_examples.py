"""Every example runs, and prints what its description says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BUNDLE = "farm/bundles/example-npu/0001.zip"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("reader")]


def test_a_bundle_predicts_a_model(reader: Any) -> None:
    reader.latfarm("zoo", "export", "resnet18", "-o", "predicted")
    program = EXAMPLES / "predict_in_python.py"
    told = reader.python(program, BUNDLE, "predicted/resnet18.onnx").splitlines()
    assert re.fullmatch(r"resnet18 on example-npu: \d+\.\d{3} ms", told[0])
    assert re.fullmatch(r"with 90 % probability between [\d.]+ and [\d.]+ ms", told[1])
    assert "Conv" in told[-1]


def test_the_search_stays_within_its_limit_and_does_not_get_worse(reader: Any) -> None:
    told = reader.python(EXAMPLES / "nas_loop.py", BUNDLE, "--limit-ms", "0.8")
    best = [float(macs) for macs in re.findall(r"best ([\d.]+) M", told)]
    assert len(best) == 5
    assert best == sorted(best)
    assert all(float(ms) <= 0.8 for ms in re.findall(r"([\d.]+) ms", told))


def test_results_are_read_from_parquet(reader: Any) -> None:
    reader.latfarm("--home", "farm", "results", "export", "measurements.parquet")
    told = reader.python(EXAMPLES / "read_results.py", "measurements.parquet")
    for word in ("by purpose", "fusion", "kernel", "network", "measured again"):
        assert word in told


def test_every_example_is_listed_and_tested() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    tested = Path(__file__).read_text(encoding="utf-8")
    tested += Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    for program in EXAMPLES.glob("*.py"):
        assert program.name in listed
        assert program.name in tested
