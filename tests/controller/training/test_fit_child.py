"""The process that fits a bundle: what it reads, what it writes, and when it ends."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from latfarm_controller.app.bundle_training import COMMAND
from latfarm_controller.child_pipe import LENGTH, STOPPED
from latfarm_controller.errors import UsageError
from latfarm_controller.training.fit_bundle import TrainingInputs, fit_bundle
from latfarm_controller.training.fit_child import FitTask, read_task, told_end
from latfarm_controller.training.insight_trial import InsightWays
from latfarm_controller.training.training_set import Basis, TrainingSet
from latfarm_predictors.bundle import load_bundle
from latfarm_predictors.errors import BundleError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.learned.absent_kernels import ABSENT
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import KernelSample

OWN = Basis("single", inside=True)


def task(folder: Path) -> FitTask:
    """A fit of nothing."""
    data = TrainingSet("p", "c", FusionRules(), 0.0)
    inputs = TrainingInputs("p", "c", InsightWays(OWN, {OWN: data}, "asked for"))
    return FitTask(inputs, folder / "p" / "0001.zip", folder)


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = task(tmp_path).to_bytes()
    assert read_task(io.BytesIO(content)) == task(tmp_path)
    for cut in (3, LENGTH.size + 5, len(content) - 1):
        with pytest.raises(EOFError, match="the task ends"):
            read_task(io.BytesIO(content[:cut]))
    other = pickle.dumps("no task")
    with pytest.raises(TypeError, match="the task is a str"):
        read_task(io.BytesIO(LENGTH.pack(len(other)) + other))


def test_the_end_tells_whose_fault_it_was() -> None:
    assert told_end(None) == {"end": "done"}
    assert told_end(UsageError("too little")) == {"end": "usage", "error": "too little"}
    assert told_end(BundleError("damaged")) == {"end": "failed", "error": "damaged"}
    assert told_end(KeyError("x")) == {"end": "failed", "error": "KeyError: 'x'"}


@pytest.mark.slow
def test_the_process_tells_why_it_could_not_fit(tmp_path: Path) -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(task(tmp_path).to_bytes())
        process.stdin.flush()
        lines = [json.loads(line) for line in process.stdout]
        assert process.wait() == 0
    assert lines[-1]["end"] == "usage"
    assert "campaign 'c' measured too little to learn from" in lines[-1]["error"]
    assert not list(tmp_path.iterdir())


def joined(width: int) -> Graph:
    """Two convolutions whose results are joined."""
    b = GraphBuilder(f"joined-{width}")
    x = b.input((1, 8, 16, 16))
    return b.build([b.concat([b.conv(x, width, 3), b.conv(x, width, 1)])])


def profiled(graph: Graph) -> list[KernelSample]:
    """The kernels of a network that writes concatenations in place, as its profile shows them."""
    return [
        KernelSample(
            kernel,
            0.0 if kernel.type == "Concat" else 0.1 + 1e-6 * macs_of(kernel.graph),
            insight="profile",
            network=hash_of(graph),
        )
        for kernel in split(graph, FusionRules.none())
    ]


@pytest.mark.slow
def test_the_process_learns_what_places_in_networks_tell(tmp_path: Path) -> None:
    places = [profiled(joined(width)) for width in range(8, 48, 4)]
    kernels = [sample for members in places for sample in members]
    data = TrainingSet("p", "c", FusionRules.none(), 0.0, kernels=kernels, places=places)
    inputs = TrainingInputs("p", "c", InsightWays(OWN, {OWN: data}, "asked for"))
    made = FitTask(inputs, tmp_path / "p" / "0001.zip", tmp_path)
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(made.to_bytes())
        process.stdin.flush()
        lines = [json.loads(line) for line in process.stdout]
    assert lines[-1] == {"end": "done"}

    def sources(predictor: PlatformPredictor) -> dict[str, str]:
        return {each.type: each.source for each in predictor.predict(joined(50)).kernels}

    here = fit_bundle(inputs, tmp_path / "here" / "0001.zip", pool_from=tmp_path)
    there = load_bundle(made.path)
    assert sources(there)["Concat"] == ABSENT
    assert sources(there) == sources(here)
    assert there.predict(joined(50)).latency_ms == here.predict(joined(50)).latency_ms


FITS_FOREVER = """
import threading
from latfarm_controller.training import fit_child

def fit(inputs, path, on_progress, pool_from):
    on_progress("kernels", 1, 2)
    threading.Event().wait()

fit_child.fit_bundle = fit
fit_child.main()
"""
"""The process with a fit that never ends."""


@pytest.mark.slow
def test_the_process_ends_with_its_controller(tmp_path: Path) -> None:
    """A controller that was killed has closed its end of the pipe."""
    command = [sys.executable, "-c", FITS_FOREVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(task(tmp_path).to_bytes())
        process.stdin.flush()
        step = json.loads(process.stdout.readline())
        assert step == {"stage": "kernels", "done": 1, "total": 2}
        process.stdin.close()
        assert process.wait() == STOPPED


_PRINTS = """
import os
from latfarm_controller.training import fit_child

def fit(*_):
    os.write(1, b"[library] a warning written in C")
    print("a warning")

fit_child.fit_bundle = fit
fit_child.main()
"""


def test_what_libraries_print_does_not_come_between_the_lines(tmp_path: Path) -> None:
    command = (sys.executable, "-P", "-c", _PRINTS)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(task(tmp_path).to_bytes())
        process.stdin.flush()
        assert [json.loads(line) for line in process.stdout] == [{"end": "done"}]
