"""`latfarm predict` answers from the sample bundle before anything was measured, and says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.cli.shell import output
from latfarm_controller.cli.shell.printable import console
from latfarm_controller.config import load_config
from latfarm_controller.training.bundles import next_path, open_or_sample
from latfarm_predictors import load_sample
from latfarm_predictors.bundle import save_bundle
from latfarm_predictors.testing.onnx_files import write
from latfarm_predictors.testing.synthetic import random_network

Latfarm = Callable[..., Any]
WORDS = "this is the sample bundle of a simulated NPU; it tells nothing of a machine of yours"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(random_network(np.random.default_rng(3), "net"), tmp_path / "net.onnx")


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_without_any_bundle_the_sample_answers(latfarm: Latfarm, home: Path, model: Path) -> None:
    ended = latfarm("predict", model)
    assert ended.code == 0
    assert "net on sim-npu: " in ended.out
    assert f"{WORDS}; to measure this machine: latfarm demo" in squeezed(ended.out)
    assert not home.exists()


def test_no_remark_sends_anybody_to_the_simulated_board(latfarm: Latfarm, model: Path) -> None:
    answer = json.loads(latfarm("predict", model, "-p", "sample", "--json").out)
    remarks = answer["remarks"]
    assert remarks[0]["kind"] == "sample"
    assert {remark["command"] for remark in remarks} == {"latfarm demo"}
    assert answer["platform"] == "sim-npu"
    assert answer["bundle"] == load_sample().bundle
    low, high = answer["interval_ms"]
    assert 0 < low < answer["latency_ms"] < high
    assert answer["calibrated"] is True
    assert 0.0 <= answer["covered"] <= 1.0


def test_explained_answers_send_nobody_there_either(latfarm: Latfarm, model: Path) -> None:
    told = latfarm("predict", model, "--explain")
    assert told.code == 0
    assert "latfarm cover" not in told.out
    assert "To measure this machine:" in told.out
    trust = json.loads(latfarm("predict", model, "--explain", "--json").out)["trust"]
    assert {trust["remedy"], *(layer["remedy"] for layer in trust["layers"])} == {
        *("", "latfarm demo")
    }


def test_the_sample_has_no_energies_and_says_what_has(latfarm: Latfarm, model: Path) -> None:
    ended = latfarm("predict", model, "--energy")
    assert ended.code == 2
    assert "latfarm demo --energy" in ended.line


@pytest.mark.parametrize("name", ["squeezenet", "squeezenet.onnx"])
def test_a_network_of_the_zoo_is_to_be_written_first(name: str, latfarm: Latfarm) -> None:
    ended = latfarm("predict", name)
    assert ended.code == 2
    assert ended.line == (
        f"latfarm: {name}: no such file; latfarm zoo export squeezenet -o FOLDER writes the "
        "network of that name"
    )


def test_a_table_says_it_for_each_model(latfarm: Latfarm, model: Path) -> None:
    write(random_network(np.random.default_rng(4), "other"), model.with_name("other.onnx"))
    ended = latfarm("predict", model.parent)
    assert "2 of 2 on sim-npu: sample bundle; to measure this machine: latfarm demo" in squeezed(
        ended.out
    )


def test_a_bundle_comes_before_the_sample(home: Path) -> None:
    folder = load_config().bundles_dir
    folder.mkdir(parents=True)
    own = load_sample()
    own.platform = "mine"
    save_bundle(own, next_path(folder, "mine"), {})
    assert [open_or_sample(folder, name)[1] for name in ("", "mine", "sample")] == [
        False,
        False,
        True,
    ]
    own.platform = "sample"
    save_bundle(own, next_path(folder, "sample"), {})
    assert open_or_sample(folder, "sample")[1] is False


@pytest.mark.parametrize(("columns", "shown"), [(80, "at layer"), (160, "configuration")])
def test_a_narrow_terminal_shows_layers_instead_of_configurations(
    columns: int,
    shown: str,
    latfarm: Latfarm,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = partial(console, width=columns, force_terminal=True, color_system=None)
    monkeypatch.setattr(output, "out", terminal)
    ended = latfarm("predict", model)
    assert ended.code == 0
    header = next(line for line in ended.out.splitlines() if line.startswith("kernel "))
    assert f" {shown} " in header
    below = ended.out[ended.out.index(header) :].splitlines()
    assert all(len(line) <= columns for line in below)
    assert ("family=" in ended.out) == (shown == "configuration")
