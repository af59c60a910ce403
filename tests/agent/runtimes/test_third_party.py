"""A runtime from another package is installed, found by its entry point, and tested."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.runtimes import base

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "third_party_runtime"
HOW_TO = ROOT / "docs" / "how-to" / "add-a-runtime.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example as its pyproject.toml says, without a package index."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is not here to install with")
    source = tmp_path_factory.mktemp("source") / EXAMPLE.name
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("installed")
    command = [uv, "pip", "install", "--offline", "--no-deps", "--no-cache", "--quiet"]
    command += ["--python", sys.executable, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return target


def run(installed: Path, *command: str) -> str:
    """Run Python with the installed folder in its path, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *command],
        env=dict(os.environ, PYTHONPATH=str(installed)),
        cwd=str(installed),
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


AGENT = ("-c", "import sys; from latfarm_agent.cli import main; sys.exit(main(sys.argv[1:]))")


def test_the_agent_finds_it_by_its_entry_point(installed: Path, tmp_path: Path) -> None:
    others = {name: {"enabled": False} for name in base.discover() if name != "numpy"}
    config = tmp_path / "agent.json"
    found: dict[str, Any] = {}
    for precision in ("", "float16", "exact"):
        mine = {"options": {"precision": precision}} if precision else {}
        config.write_text(json.dumps({"runtimes": dict(others, numpy=mine)}))
        told = json.loads(run(installed, *AGENT, "describe", "--json", "--config", str(config)))
        (found[precision],) = told["runtimes"]
    for precision, dtype in (("", "fp32"), ("float16", "fp16")):
        (platform,) = found[precision]["platforms"]
        assert platform["name"].endswith(f"-{dtype}-1t")
        assert (platform["model_format"], platform["dtype"]) == ("graph-json", dtype)
    assert "precision is 'exact'" in found["exact"]["missing"]


@pytest.mark.slow
def test_it_passes_the_conformance_suite(installed: Path) -> None:
    tests = EXAMPLE / "tests"
    told = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests))
    assert re.search(r"^12 passed", told, re.MULTILINE), told


def test_what_it_computes_is_right(installed: Path, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import numpy
from latfarm_agent.runtimes.base import Job
from latfarm_numpy.runtime import OPS, NumpyRuntime
draw = numpy.random.default_rng(1)
x, weight = draw.standard_normal((1, 4, 7, 7)), draw.standard_normal((6, 2, 3, 3))
attrs = {"group": 2, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
got = OPS["Conv"](attrs, x, weight, numpy.ones(6))
padded = numpy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
for o in range(6):
    for i in range(4):
        for j in range(4):
            part = padded[0, 2 * (o // 3) : 2 * (o // 3) + 2, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            assert abs(got[0, o, i, j] - (part * weight[o]).sum() - 1) < 1e-9
pooled = OPS["MaxPool"]({"kernel_shape": [2, 2], "strides": [2, 2]}, x)
assert (pooled[0, :, 0, 0] == x[0, :, :2, :2].max((1, 2))).all()
assert abs(OPS["Softmax"]({"axis": 1}, x).sum(1) - 1).max() < 1e-9
runtime = NumpyRuntime()
(spec,) = runtime.describe().platforms
job = Job(Path(sys.argv[1]), spec.settings, spec.dtype, Path("."))
runtime.prepare(job)
assert runtime.run() is None
print([(row.op, row.device) for row in runtime.profile(job, 2)])
"""
    model = tmp_path / "model.json"
    shape = {"shape": [1, 3, 8, 8]}
    graph = {
        "inputs": ["x"],
        "types": {"x": shape},
        "weights": {"w": {"shape": [4, 3, 3, 3]}},
        "nodes": [
            {
                "name": "conv",
                "op": "Conv",
                "inputs": ["x", "w"],
                "outputs": ["c"],
                "attrs": {"kernel_shape": [3, 3]},
            },
            {"name": "relu", "op": "Relu", "inputs": ["c"], "outputs": ["y"]},
        ],
    }
    model.write_text(json.dumps(graph))
    assert run(installed, "-c", code, str(model)) == "[('Conv', 'CPU'), ('Relu', 'CPU')]\n"


def test_the_how_to_shows_what_is_there() -> None:
    text = HOW_TO.read_text()
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    toml = [block for kind, block in blocks if kind == "toml"]
    assert toml
    pyproject = (EXAMPLE / "pyproject.toml").read_text()
    assert all(block in pyproject for block in toml)
    for kind, block in blocks:
        if kind == "json":
            config = json.loads(block)
            assert set(config) <= {"threads", "runtimes", "confinement"}
    for link in re.findall(r"\]\((\.\./[^)]+)\)", text):
        assert (HOW_TO.parent / link.partition("#")[0]).exists(), link
    for name in ("pyproject.toml", "latfarm_numpy/runtime.py", "tests/test_numpy_runtime.py"):
        assert name in text
        assert (EXAMPLE / name).is_file()
