"""The benchmark of regressors runs from one command on data of the documented form."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "regressors.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regressors", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = ["hw,c_in,c_out,kernel,stride,min_ms,median_ms"]
    for _ in range(count):
        size, c_in, c_out = (int(n) for n in (rng.choice([7, 14, 28]), *rng.integers(8, 200, 2)))
        window = int(rng.choice([1, 3]))
        latency = 0.002 + (size * window) ** 2 * c_in * (-(-c_out // 8) * 8) / 2e7
        lines.append(f"{size},{c_in},{c_out},{window},1,{latency},{latency}")
    path.write_text("\n".join(lines) + "\n")


def test_the_table_is_printed_and_written(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "cpu_conv" / "ncnn"
    folder.mkdir(parents=True)
    write(folder / "pool_prior.csv", 300, 0)
    write(folder / "test_prior.csv", 100, 1)
    monkeypatch.setenv("LATFARM_BENCH_DATA", str(tmp_path))
    out = tmp_path / "figures.json"
    assert script.main(["--rows", "90", "--seeds", "1", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    figures = {row["model"]: row for row in json.loads(out.read_text())}
    assert set(figures) == set(script.MODELS)
    assert all(name in printed for name in figures)
    assert figures["GP"]["within10_percent"] > figures["forest (nn-Meter)"]["within10_percent"]


def test_missing_data_end_in_one_line(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LATFARM_BENCH_DATA", str(tmp_path))
    assert script.main([]) == 2
    assert "LATFARM_BENCH_DATA" in capsys.readouterr().err
