"""How fast models are read, hashed and built, in processor time of one core.

    python benchmarks/graph_speed.py
    python benchmarks/graph_speed.py --kernels 100

Reading: ONNX files of their real size, weights included, made from the light models of the onnx
package. Hashing: the Graph alone, exact and canonical. Building: kernels as the joint prior draws
them, in every format. Medians; prints JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from latfarm_controller import builders
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETWORKS = ("resnet50", "inception_v2", "densenet121", "squeezenet")
REPEATS = 9
# Inputs are float32 in each; MNN's converter works in a process of its own: wall time is told.
FORMATS = (
    ("onnx", "fp32"),
    ("onnx", "fp16"),
    ("onnx", "int8"),
    ("tflite", "fp32"),
    ("tflite", "int8"),
    ("ncnn", "fp32"),
    ("mnn", "fp32"),
)


def median_ms(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Median processor time of `work` in milliseconds, after one run that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        times.append((time.process_time() - begun) * 1e3)
    return round(statistics.median(times), 2)


def fresh(graph: Graph) -> Graph:
    """The same graph without anything computed before."""
    return replace(graph)


def reading(name: str, folder: Path) -> dict[str, float]:
    """Reading and hashing of one network from a file with all its weights."""
    graph = read_onnx(LIGHT / f"light_{name}.onnx")
    file = folder / f"{name}.onnx"
    file.write_bytes(builders.build(graph, "onnx", "fp32"))
    size_mb = file.stat().st_size / 1e6
    told = {
        "file_mb": round(size_mb, 1),
        "read_ms": median_ms(lambda: read_onnx(file)),
        "read_and_hash_ms": median_ms(lambda: network_hash_of(read_onnx(file))),
        "hash_ms": median_ms(lambda: hash_of(fresh(graph))),
        "network_hash_ms": median_ms(lambda: network_hash_of(fresh(graph))),
    }
    file.unlink()
    return told


def building(count: int) -> dict[str, dict[str, float]]:
    """Kernel models a second of one core, in each format."""
    graphs = [kernel.graph for kernel in KernelPrior(seed=11).draw(count, FusionRules.none())]
    found = {}
    for model_format, dtype in FORMATS:
        clock = time.monotonic if model_format == "mnn" else time.process_time
        builders.build(graphs[0], model_format, dtype)
        times = []
        for graph in graphs:
            begun = clock()
            builders.build(graph, model_format, dtype)
            times.append(clock() - begun)
        found[f"{model_format}-{dtype}"] = {
            "mean_per_s": round(len(times) / sum(times), 1),
            "median_per_s": round(1 / statistics.median(times), 1),
        }
    return found


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=300, help="kernel models of each format")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        networks = {name: reading(name, Path(folder)) for name in NETWORKS}
    result = {
        "machine": platform.machine(),
        "networks": networks,
        "kernels": given.kernels,
        "builders": building(given.kernels),
    }
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
