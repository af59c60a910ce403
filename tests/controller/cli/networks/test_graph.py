"""`latfarm graph`: layers, totals, hashes and differences, without a board or a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.config import load_config
from latfarm_controller.training.bundles import next_path
from latfarm_predictors.bundle import save_bundle
from latfarm_predictors.frontends.onnx import read_onnx, read_onnx_weights
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.testing.onnx_files import write
from latfarm_predictors.testing.synthetic import RULES, SyntheticBoard, random_kernels

Latfarm = Callable[..., Any]
PLATFORM = "synthetic-1t"


def net(*, batch_norm: bool = True, name: str = "net", padded: bool = False) -> Graph:
    b = GraphBuilder(name)
    x = b.input((1, 3, 16, 16))
    x = b.conv(x, 8, 3, bias=not batch_norm)
    if batch_norm:
        x = b.batch_norm(x)
    if padded:
        x = b.op("Identity", [x])
    return b.build([b.fc(b.flatten(b.global_avg_pool(b.relu(x))), 10)])


@pytest.fixture
def bundled(home: Path) -> None:
    board = SyntheticBoard()
    rng = np.random.default_rng(0)
    kernels = random_kernels(rng, {"conv": 30, "eltwise": 10, "pool": 6, "fc": 6})
    samples = [board.kernel_sample(kernel, rng) for kernel in kernels]
    predictor = fit_predictor(PlatformSamples(PLATFORM, RULES, samples, []))
    folder = load_config().bundles_dir
    folder.mkdir(parents=True)
    save_bundle(predictor, next_path(folder, PLATFORM), {})


def test_show_prints_layers_and_their_sum(latfarm: Latfarm, tmp_path: Path) -> None:
    file = write(net(), tmp_path / "net.onnx")
    ended = latfarm("graph", "show", file)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].split() == ["net", network_hash_of(net())]
    assert "input input: float32 1x3x16x16" in lines
    assert [line.split()[1] for line in lines[4:9]] == [
        "Conv",
        "BatchNormalization",
        "Relu",
        "GlobalAveragePool",
        "Flatten",
    ]
    assert lines[-1].split()[:4] == ["net", "total", "1x10", "0.055"]


def test_show_as_json_and_folded(latfarm: Latfarm, tmp_path: Path) -> None:
    file = write(net(), tmp_path / "net.onnx")
    data = json.loads(latfarm("graph", "show", file, "--json").out)
    assert data["hash"] == network_hash_of(net())
    assert data["inputs"] == {"input": {"dtype": "float32", "shape": [1, 3, 16, 16]}}
    assert sum(layer["macs"] for layer in data["layers"]) == data["total"]["macs"] == macs_of(net())
    assert data["total"]["parameters"] == 8 * 27 + 16 + 90
    assert data["peaks"] is None
    folded = json.loads(latfarm("graph", "show", file, "--fold-batch-norm", "--json").out)
    assert [layer["op"] for layer in folded["layers"]][:2] == ["Conv", "Relu"]
    assert folded["hash"] == data["hash"]


@pytest.mark.usefixtures("bundled")
def test_show_draws_a_platforms_roofline(latfarm: Latfarm, tmp_path: Path) -> None:
    file = write(net(batch_norm=False), tmp_path / "net.onnx")
    data = json.loads(latfarm("graph", "show", file, "-p", PLATFORM, "--json").out)
    assert data["layers"][0]["op"] == "Conv+Relu"
    peaks = data["peaks"]
    for layer in data["layers"]:
        sides = (
            layer["macs"] / peaks["macs_per_ms"],
            layer["traffic_bytes"] / peaks["bytes_per_ms"],
        )
        assert layer["bound_ms"] == pytest.approx(max(sides))
        assert layer["compute_bound"] is (sides[0] > sides[1])
    told = latfarm("graph", "show", file, "-p", PLATFORM)
    assert told.code == 0
    assert "bound ms" in told.out
    assert f"roofline of {PLATFORM}: " in told.out


def test_hash_is_the_same_for_every_export(latfarm: Latfarm, tmp_path: Path) -> None:
    files = [
        write(net(), tmp_path / "a.onnx"),
        write(net(batch_norm=False), tmp_path / "b.onnx"),
        write(net(padded=True, name="other"), tmp_path / "c.onnx"),
    ]
    lines = latfarm("graph", "hash", *files).out.splitlines()
    assert len({line.split()[0] for line in lines}) == 1
    assert [line.split()[1] for line in lines] == [str(file) for file in files]
    exact = latfarm("graph", "hash", "--exact", *files[:2]).out.splitlines()
    assert len({line.split()[0] for line in exact}) == 2
    data = json.loads(latfarm("graph", "hash", tmp_path, "--json").out)
    assert [row["model"] for row in data] == [str(file) for file in files]
    one = json.loads(latfarm("graph", "hash", files[0], "--json").out)
    assert one["hash"] == lines[0].split()[0]


def test_hash_names_bad_files_and_prints_the_rest(latfarm: Latfarm, tmp_path: Path) -> None:
    good = write(net(), tmp_path / "good.onnx")
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    ended = latfarm("graph", "hash", bad, good)
    assert ended.code == 2
    assert ended.line.startswith(f"latfarm: {bad}: is not an ONNX model")
    assert ended.out.split()[1] == str(good)
    assert latfarm("graph", "hash", bad, "--json").out.strip() == "null"


def test_diff_says_what_changed(latfarm: Latfarm, tmp_path: Path) -> None:
    left = write(net(), tmp_path / "left.onnx")
    same = write(net(padded=True), tmp_path / "same.onnx")
    ended = latfarm("graph", "diff", left, same)
    assert (ended.code, ended.out.split()[0]) == (0, "equal:")
    exact = latfarm(
        "graph", "diff", "--exact", left, write(net(batch_norm=False), tmp_path / "b.onnx")
    )
    assert exact.code == 1
    assert any(line.startswith("- BatchNormalization") for line in exact.out.splitlines())
    b = GraphBuilder("wider")
    x = b.relu(b.batch_norm(b.conv(b.input((1, 3, 16, 16)), 9, 3)))
    wider = write(b.build([b.fc(b.flatten(b.global_avg_pool(x)), 10)]), tmp_path / "wider.onnx")
    data = json.loads(latfarm("graph", "diff", left, wider, "--json").out)
    assert data["equal"] is False
    assert len(set(data["hashes"])) == 2
    assert {change["side"] for change in data["changes"]} == {"left", "right"}
    assert data["totals"][1]["macs"] > data["totals"][0]["macs"]


def test_diff_sees_wiring_that_ops_do_not_tell(latfarm: Latfarm, tmp_path: Path) -> None:
    files = []
    for order in ((0, 1), (1, 0)):
        b = GraphBuilder("wired")
        x = b.input((1, 4, 8, 8))
        parts = [b.relu(x), b.sigmoid(x)]
        made = b.build([b.sub(parts[order[0]], parts[order[1]])])
        files.append(write(made, tmp_path / f"{order[0]}.onnx"))
    ended = latfarm("graph", "diff", *files)
    assert ended.code == 1
    assert "the ops are the same" in ended.out


def test_wrong_usage(latfarm: Latfarm, tmp_path: Path) -> None:
    ended = latfarm("graph", "show", tmp_path / "nowhere.onnx")
    assert ended.code == 2
    assert ended.line.endswith("no such file; check the path")
    file = write(net(), tmp_path / "net.onnx")
    assert latfarm("graph", "show", file, "-p", "nowhere").code == 2
    assert latfarm("graph", "show", file, "--shape", "input").code == 2
    assert latfarm("graph", "diff", file).code == 2


def test_build_writes_a_format_with_the_models_own_weights(
    latfarm: Latfarm, tmp_path: Path
) -> None:
    file = write(net(), tmp_path / "net.onnx")
    again = tmp_path / "again.onnx"
    ended = latfarm("graph", "build", file, "-o", again)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{again}: {again.stat().st_size} bytes\n"
    kept = read_onnx_weights(again)[1]
    given = read_onnx_weights(file)[1]
    assert kept.keys() == given.keys()
    assert all(np.array_equal(kept[name], given[name]) for name in given)
    folded = tmp_path / "folded.onnx"
    assert latfarm("graph", "build", file, "--fold-batch-norm", "-o", folded).code == 0
    lines = latfarm("graph", "hash", file, folded).out.splitlines()
    assert len({line.split()[0] for line in lines}) == 1
    assert all(node.op != "BatchNormalization" for node in read_onnx(folded).nodes)
    lite = tmp_path / "net.tflite"
    ended = latfarm("graph", "build", file, "-f", "tflite", "--dtype", "int8", "-o", lite)
    assert (ended.code, ended.err) == (0, "")
    assert lite.read_bytes()[4:8] == b"TFL3"


def test_build_refuses_what_it_cannot_write(latfarm: Latfarm, tmp_path: Path) -> None:
    file = write(net(), tmp_path / "net.onnx")
    for arguments, says in (
        (("-f", "caffe", "-o", "x"), "there is no format 'caffe'; known formats: onnx, tflite"),
        (
            ("-f", "ncnn", "--dtype", "int8", "-o", "x"),
            "models in the format ncnn can be fp32 or fp16, not 'int8'",
        ),
        (("-o", file), "exists; give --replace"),
        (("-o", tmp_path / "none" / "x.onnx"), "no such folder"),
        (("-o", tmp_path, "--replace"), "is a folder; name a file in it"),
    ):
        ended = latfarm("graph", "build", file, *arguments)
        assert ended.code == 2, arguments
        assert says in ended.line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx"]
