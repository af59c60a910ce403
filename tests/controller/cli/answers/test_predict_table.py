"""`latfarm predict` of many models and platforms, and what it says beside a number."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.cli.answers import predict_files
from latfarm_controller.cli.answers.predict_remarks import remarks_on
from latfarm_controller.config import load_config
from latfarm_controller.training.bundles import next_path
from latfarm_predictors.bundle import save_bundle
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.testing.onnx_files import write
from latfarm_predictors.testing.synthetic import (
    RULES,
    SyntheticBoard,
    random_kernels,
    random_network,
)

Latfarm = Callable[..., Any]
BOARD = SyntheticBoard()
PLATFORMS = ("synthetic-1t", "synthetic-2t")


@pytest.fixture(scope="module")
def predictor() -> PlatformPredictor:
    rng = np.random.default_rng(0)
    kernels = random_kernels(rng, {"conv": 40, "eltwise": 10, "fc": 8})
    kernels += [kernel for number in range(2) for kernel in split(covered(number), RULES)]
    samples = [BOARD.kernel_sample(kernel, rng) for kernel in kernels]
    return fit_predictor(PlatformSamples(PLATFORMS[0], RULES, samples, []))


@pytest.fixture
def bundled(home: Path, predictor: PlatformPredictor) -> None:
    folder = load_config().bundles_dir
    folder.mkdir(parents=True)
    for name in PLATFORMS:
        save_bundle(replace(predictor, platform=name), next_path(folder, name), {})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with three networks, which all have the same inner name."""
    folder = tmp_path / "models"
    folder.mkdir()
    for number in range(2):
        write(covered(number), folder / f"net{number}.onnx")
    write(odd(), folder / "odd.onnx")
    return folder


def covered(number: int) -> Graph:
    """A network whose kernels were measured."""
    return random_network(np.random.default_rng(number), "main_graph", depth=2)


def odd() -> Graph:
    """A network most of whose time is in a kind of kernel that was never measured."""
    b = GraphBuilder("main_graph")
    x = b.softmax(b.input((1, 64, 256, 256)))
    return b.build([b.conv(x, 4, 1)])


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_a_folder_is_one_table_with_file_names(
    latfarm: Latfarm, bundled: None, models: Path
) -> None:
    ended = latfarm("predict", models, "-p", PLATFORMS[0])
    assert ended.code == 0, ended
    assert "main_graph" not in ended.out
    names = ["net0.onnx", "net1.onnx", "odd.onnx"]
    table = [line for line in ended.out.splitlines() if line.startswith(tuple(names))]
    assert [line.split()[0] for line in table] == names
    assert "covered" not in table[0] + table[1]
    header = next(line for line in ended.out.splitlines() if line.startswith("file"))
    assert header.split() == ["file", "ms", "interval", "covered", "remark"]
    assert "little covered" in table[2]


def test_what_is_badly_covered_names_the_command_that_mends_it(
    latfarm: Latfarm, bundled: None, models: Path
) -> None:
    ended = latfarm("predict", models, "-p", PLATFORMS[0])
    command = f"latfarm cover {models / 'odd.onnx'} --platform {PLATFORMS[0]}"
    assert squeezed(ended.out).count(command) == 1
    one = latfarm("predict", models / "odd.onnx", "-p", PLATFORMS[0])
    lines = one.out.splitlines()
    assert lines[0].startswith(f"odd on {PLATFORMS[0]}: ")
    assert lines[1].endswith(command)
    told = json.loads(latfarm("predict", models / "odd.onnx", "-p", PLATFORMS[0], "--json").out)
    assert command in [remark["command"] for remark in told["remarks"]]
    assert 0.0 <= told["covered"] < 0.8


def test_several_platforms_are_columns(latfarm: Latfarm, bundled: None, models: Path) -> None:
    asked = [word for name in PLATFORMS for word in ("-p", name)]
    ended = latfarm("predict", models, *asked)
    assert ended.code == 0, ended
    header = next(line for line in ended.out.splitlines() if line.startswith("file"))
    assert header.split() == ["file", *PLATFORMS, "remark"]
    told = json.loads(latfarm("predict", models, *asked, "--json").out)
    assert [(Path(one["model"]).stem, one["platform"]) for one in told] == [
        (stem, name) for name in PLATFORMS for stem in ("net0", "net1", "odd")
    ]
    single = json.loads(latfarm("predict", models / "odd.onnx", *asked, "--json").out)
    assert len(single) == 2


def test_many_files_are_predicted_by_workers_as_here(
    latfarm: Latfarm, bundled: None, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models / "broken.onnx").write_bytes(b"no model")
    asked = ["predict", models, *(word for name in PLATFORMS for word in ("-p", name)), "--json"]
    here = latfarm(*asked)
    for name in ("MANY_FILES", "FIRST_FILES", "TOGETHER"):
        monkeypatch.setattr(predict_files, name, 1)
    monkeypatch.setenv("LATFARM_PREDICTION_WORKERS", "2")
    there = latfarm(*asked)
    assert here.code == there.code == 2
    assert "broken.onnx" in there.line
    one, other = json.loads(here.out), json.loads(there.out)
    assert len(one) == 6
    for mine, theirs in zip(one, other, strict=True):
        assert mine.pop("latency_ms") == pytest.approx(theirs.pop("latency_ms"), rel=1e-9)
        assert mine["model"] == theirs["model"]
        assert mine["platform"] == theirs["platform"]
        assert mine.keys() == theirs.keys()


def test_an_unknown_platform_offers_the_nearest(
    latfarm: Latfarm, bundled: None, models: Path
) -> None:
    ended = latfarm("predict", models, "-p", "syntetic-2t")
    assert ended.code == 2
    assert f"did you mean {PLATFORMS[1]}" in ended.line
    assert "latfarm platforms" in ended.line


def test_a_type_that_was_never_measured_is_told(predictor: PlatformPredictor) -> None:
    b = GraphBuilder("half")
    graph = b.build([b.relu(b.conv(b.input((1, 8, 32, 32), "float16"), 16, 3))])
    answer = predictor.predict(graph)
    kinds = {remark.kind: remark for remark in remarks_on(predictor, graph, answer, 1.0)}
    assert "float16" in kinds["dtype"].text
    assert kinds["dtype"].command_for([Path("m.onnx")], "p") == "latfarm platforms"


def test_an_op_that_resembles_nothing_is_told(predictor: PlatformPredictor) -> None:
    b = GraphBuilder("net")
    graph = b.build([b.conv(b.input((1, 8, 32, 32)), 16, 3)])
    answer = replace_unsupported(predictor, graph)
    (remark, *_) = remarks_on(predictor, graph, answer, 1.0)
    assert remark.kind == "unknown_op"
    assert "FancyOp" in remark.short
    command = remark.command_for([Path("m.onnx")], "p")
    assert command == "latfarm query m.onnx --platform p"


def replace_unsupported(predictor: PlatformPredictor, graph: Graph) -> Any:
    answer = predictor.predict(graph)
    _ = answer.kernels
    return replace(
        answer, unsupported=("n (1) (FancyOp): FancyOp was never measured and resembles nothing",)
    )


def test_sources_are_told_in_words(latfarm: Latfarm, bundled: None, models: Path) -> None:
    shown = latfarm("predict", models / "odd.onnx", "-p", PLATFORMS[0])
    assert "fallback:" not in shown.out
    told = json.loads(latfarm("predict", models / "odd.onnx", "-p", PLATFORMS[0], "--json").out)
    assert any(kernel["source"].startswith("fallback:") for kernel in told["kernels"])


def test_a_network_that_no_board_could_run_fails_alone(
    latfarm: Latfarm, bundled: None, models: Path
) -> None:
    builder = GraphBuilder("giant")
    x = builder.input((1, 3, 2**28, 2**28))
    write(builder.build([builder.conv(x, 4, 3)]), models / "giant.onnx")
    ended = latfarm("predict", models, "-p", PLATFORMS[0], "-p", PLATFORMS[1], "--json")
    assert ended.code == 2
    assert "giant.onnx: " in squeezed(ended.err)
    told = json.loads(ended.out)
    assert [Path(each["model"]).name for each in told] == ["net0.onnx", "net1.onnx", "odd.onnx"] * 2


def how(folder: Path, **others: Any) -> predict_files.HowToPredict:
    """How files are predicted on one platform."""
    return predict_files.HowToPredict(
        folder, (PLATFORMS[0],), 0.9, False, False, (), 0, (), False, **others
    )


def test_one_process_holds_few_networks_of_a_large_folder(
    bundled: None, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the networks nor the kernels of all files are held at the same time."""
    together: list[int] = []
    predict = predict_files._predict

    def counted(predictor: Any, named: Any, asked: Any) -> Any:
        together.append(len(named))
        return predict(predictor, named, asked)

    monkeypatch.setattr(predict_files, "_predict", counted)
    monkeypatch.setattr(predict_files, "MANY_FILES", 2)
    files = sorted(models.glob("*.onnx")) * 2
    folder = load_config().bundles_dir
    found = list(predict_files.outcomes(files, how(folder, kernels=False), 1))
    assert together == [2, 2, 2]
    assert len(found) == 6
    with_kernels = list(predict_files.outcomes(files[:1], how(folder), 1))
    plain, detailed = found[0], with_kernels[0]
    assert isinstance(plain, list)
    assert isinstance(detailed, list)
    assert plain[0].answer.kernels == ()
    assert detailed[0].answer.kernels
    assert plain[0].answer.latency_ms == detailed[0].answer.latency_ms
    assert plain[0].remarks == detailed[0].remarks
