"""Optimisation with onnxslim before a model is read, without its weights."""

from __future__ import annotations

import logging
import subprocess
from collections import Counter
from pathlib import Path
from typing import NoReturn

import onnx
import pytest
from latfarm_predictors.frontends import onnx_slim
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.frontends.onnx_file import open_model
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
HEAD = '<ir_version: 8, opset_import: ["" : 13]> g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y)'
# Two transposes, there and back, and two equal branches.
WASTEFUL = f"""{HEAD} <int64[4] shape = {{4, 3, 3, 3}}> {{
    w = ConstantOfShape <value: tensor = float[1] {{0.1}}> (shape)
    there = Transpose <perm = [0, 2, 3, 1]> (x)
    back = Transpose <perm = [0, 3, 1, 2]> (there)
    wide = Conv (back, w)
    a = Sigmoid (wide)
    b = Sigmoid (wide)
    y = Add (a, b)
}}"""
NORMALISED = f"""{HEAD} <int64[4] shape = {{4, 3, 3, 3}}, float[4] c = {{1, 2, 3, 4}}> {{
    w = ConstantOfShape <value: tensor = float[1] {{0.1}}> (shape)
    d = Conv (x, w)
    y = BatchNormalization (d, c, c, c, c)
}}"""


def written(folder: Path, text: str) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def in_process(path: Path) -> tuple[Graph, Graph]:
    """A model read without onnxslim, and read after onnxslim."""
    opened = open_model(path)
    graph = read_onnx(path)
    model, weights = onnx_slim.skeleton(opened, graph)
    made = onnx_slim.slimmed(model.SerializeToString())
    return graph, onnx_slim.reread(opened, graph, made, weights)


def test_equal_branches_are_joined_and_transposes_cancel(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph, made = in_process(written(tmp_path, WASTEFUL))
    assert Counter(n.op for n in graph.nodes) == {"Transpose": 2, "Conv": 1, "Sigmoid": 2, "Add": 1}
    assert Counter(n.op for n in made.nodes) == {"Conv": 1, "Sigmoid": 1, "Add": 1}
    assert [made.type_of(t) for t in made.inputs] == [graph.type_of(t) for t in graph.inputs]
    assert capfd.readouterr() == ("", "")


def test_onnxslim_does_not_fold_batch_norms(tmp_path: Path) -> None:
    graph, made = in_process(written(tmp_path, NORMALISED))
    assert [n.op for n in made.nodes] == ["Conv", "BatchNormalization"]
    assert hash_of(made) == hash_of(graph)


@pytest.mark.parametrize("name", ["squeezenet", "vgg19", "zfnet512"])
def test_a_network_that_cannot_be_simplified_stays_the_same(name: str) -> None:
    graph, made = in_process(LIGHT / f"light_{name}.onnx")
    assert hash_of(made) == hash_of(graph)


def test_onnxslim_runs_in_a_process_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, WASTEFUL)
    assert len(read_onnx(path, optimise=True).nodes) == 3
    assert len(read_onnx(path).nodes) == 6
    assert capfd.readouterr().out == ""


def test_a_model_is_read_without_optimisation_after_the_time_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, WASTEFUL)
    graph = read_onnx(path)
    with caplog.at_level(logging.WARNING):
        assert onnx_slim.optimised(open_model(path), graph, time_limit_s=0.01) is graph
    assert "read without optimisation: onnxslim takes longer than 0.01 s" in caplog.text


def test_a_broken_result_of_onnxslim_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, WASTEFUL)
    opened, graph = open_model(path), read_onnx(path)
    model, weights = onnx_slim.skeleton(opened, graph)
    with pytest.raises(onnx_slim.SlimError, match="cannot be read"):
        onnx_slim.reread(opened, graph, b"damaged", weights)
    other = onnx.parser.parse_model(WASTEFUL.replace("Add (a, b)", "Concat <axis = 1> (a, b)"))
    with pytest.raises(onnx_slim.SlimError, match="inputs or outputs"):
        onnx_slim.reread(opened, graph, other.SerializeToString(), frozenset())
    grown = onnx.parser.parse_model(
        WASTEFUL.replace("y = Add (a, b)", "c = Add (a, b) d = Exp (c) y = Log (d)")
    )
    with pytest.raises(onnx_slim.SlimError, match="made 8 nodes of 6"):
        onnx_slim.reread(opened, graph, grown.SerializeToString(), frozenset())
    assert model.graph.node  # the model that was given is unchanged


def test_every_error_of_onnxslim_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxslim

    def fail(_: object) -> None:
        print("noise")
        raise AttributeError("no values")

    monkeypatch.setattr(onnxslim, "slim", fail)
    with pytest.raises(onnx_slim.SlimError, match="onnxslim fails: AttributeError: no values"):
        onnx_slim.slimmed(b"")


def test_modules_of_the_present_folder_are_none_of_the_childs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Models lie in folders of their users, where a file onnx.py would be imported instead."""
    started: list[list[str]] = []

    def run(command: list[str], **_: object) -> NoReturn:
        started.append(command)
        raise OSError("not now")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(onnx_slim.SlimError, match="not now"):
        onnx_slim._in_child(b"", 1.0)
    assert [command[1] for command in started] == ["-P"]
