"""`latfarm zoo`: lists and shows what is built, and writes complete files or none."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller import builders, zoo
from latfarm_controller.errors import BuildError
from latfarm_controller.zoo.draws.dataset import FAMILIES, family_variants
from latfarm_controller.zoo.summary import stages
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of, trained_parameters

Latfarm = Callable[..., Any]
SMALL = ("alexnet", "nasbench201", "yolov5n", "bert-tiny", "mobilenet-v3-small")


def lines(path: Path) -> list[Graph]:
    """The graphs in a file of JSON lines."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [Graph.from_json(json.loads(line)) for line in text.splitlines()]


def test_list_names_every_family_with_its_size(latfarm: Latfarm) -> None:
    rows = json.loads(latfarm("zoo", "list", "--json").out)
    assert [row["name"] for row in rows] == list(zoo.families())
    for row in rows:
        if row["name"] in SMALL:
            graph = zoo.build(row["name"])
            assert row["parameters"] == trained_parameters(graph)
            assert row["macs"] == macs_of(graph)
            assert row["source"] == zoo.families()[row["name"]].source


def test_list_can_be_narrowed_to_a_task(latfarm: Latfarm) -> None:
    rows = json.loads(latfarm("zoo", "list", "--task", "language", "--json").out)
    assert rows
    assert {row["task"] for row in rows} == {"language"}
    table = latfarm("zoo", "list", "--task", "language").out
    assert "bert-tiny" in table
    assert "vgg11" not in table
    wrong = latfarm("zoo", "list", "--task", "speech")
    assert wrong.code == 2
    assert "known tasks: classification, detection, language" in wrong.line


@pytest.mark.parametrize("name", SMALL)
def test_the_stages_of_a_network_add_up(name: str) -> None:
    graph = zoo.build(name)
    parts = stages(graph)
    assert sum(part.macs for part in parts) == macs_of(graph)
    assert sum(part.parameters for part in parts) == trained_parameters(graph)
    assert sum(sum(part.ops.values()) for part in parts) == len(graph.nodes)
    assert parts[0].first == graph.nodes[0].name
    assert parts[-1].last == graph.nodes[-1].name


def test_stages_are_the_maps_of_a_network() -> None:
    parts = stages(zoo.build("mobilenet-v3-small"))
    sizes = [part.size for part in parts]
    # Squeeze-and-excite works on single pixels, but it does not begin a stage.
    assert sizes == [(112, 112), (56, 56), (28, 28), (14, 14), (7, 7), (1, 1), ()]
    assert parts[-1].output == (1, 1000)


def test_show_tells_stages_totals_and_publication(latfarm: Latfarm) -> None:
    told = latfarm(
        "zoo", "show", "mobilenet-v2", "--width", "0.5", "--resolution", "96", "--batch", "2",
        "--json",
    )  # fmt: skip
    found = json.loads(told.out)
    graph = zoo.build("mobilenet-v2", width=0.5, resolution=96, batch=2)
    assert found["name"] == graph.name == "mobilenet-v2-x0.5-96px"
    assert found["hash"] == network_hash_of(graph)
    assert found["inputs"] == {"input": ["float32", 2, 3, 96, 96]}
    assert found["total"] == {
        "nodes": len(graph.nodes),
        "parameters": trained_parameters(graph),
        "macs": macs_of(graph),
        "traffic_bytes": graph.traffic_bytes,
    }
    assert found["stages"][0]["size"] == [48, 48]
    assert found["published"]["parameters"] == 3_504_872
    text = latfarm("zoo", "show", "mobilenet-v2").out
    assert "3,504,872 parameters" in text
    assert "published, at 224 and batch 1" in text
    assert "112x112" in text


def test_a_target_of_the_wrong_kind_is_refused(latfarm: Latfarm, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for arguments, says in (
        (("-o", file), "file is a file; name a folder"),
        (("--jsonl", tmp_path, "--replace"), "is a folder; name a file in it"),
        (("-o", tmp_path, "--batch", "99999999999"), "--batch"),
    ):
        ended = latfarm("zoo", "export", "alexnet", *arguments)
        assert ended.code == 2, ended
        assert says in ended.err
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_an_unknown_name_is_told_where_all_of_them_are(latfarm: Latfarm) -> None:
    assert latfarm("zoo", "show", "qqq").line.endswith("latfarm zoo list shows all of them")


def test_show_takes_drawn_networks_and_language_models(latfarm: Latfarm) -> None:
    cell = json.loads(latfarm("zoo", "show", "nasbench201@17", "--json").out)
    assert cell["hash"] == network_hash_of(zoo.build("nasbench201@17"))
    assert cell["published"] is None
    text = latfarm("zoo", "show", "bert-tiny").out
    assert "int64 1x128" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "lenet"), "no zoo family 'lenet'"),
        (("show", "resnet18@3"), "the seed after @"),
        (("show", "alexnet", "--resolution", "8"), "alexnet"),
        (("export", "alexnet"), "either -o FOLDER or --jsonl FILE"),
        (("export", "alexnet", "-o", "a", "--jsonl", "b"), "either -o FOLDER or --jsonl FILE"),
        (("export", "alexnet", "lenet", "-o", "a"), "no zoo family 'lenet'"),
        (("export", "alexnet", "-o", "a", "-f", "caffe"), "known formats: onnx"),
        (("export", "alexnet", "-o", "a", "--dtype", "int4"), "not 'int4'"),
        (("export", "alexnet", "-o", "a", "-f", "ncnn", "--dtype", "int8"), "not 'int8'"),
        (("export", "alexnet", "--jsonl", "a", "-f", "onnx"), "graph-json, not onnx"),
        (("export", "alexnet", "-o", "a", "--variant-rule", "x"), "known rules: wide, nn-meter"),
        (
            ("export", "alexnet", "-o", "a", "--variants", "2", "--width", "0.5"),
            "variants draw their own widths",
        ),
    ],
)
def test_wrong_input_is_one_line(
    latfarm: Latfarm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = latfarm("zoo", *arguments)
    assert ended.code == 2
    assert message in ended.line
    assert ended.out == ""
    assert list(tmp_path.iterdir()) == []


def test_export_writes_what_build_makes(latfarm: Latfarm, tmp_path: Path) -> None:
    ended = latfarm(
        "zoo", "export", "nasbench201@5", "mobilenet-v3-small", "--width", "0.25",
        "--resolution", "32", "--batch", "2", "-o", tmp_path / "new" / "models", "--json",
    )  # fmt: skip
    assert ended.code == 0
    found = json.loads(ended.out)
    names = ["nasbench201@5-x0.25-b2.onnx", "mobilenet-v3-small-x0.25-32px-b2.onnx"]
    folder = tmp_path / "new" / "models"
    assert found == {"written": [str(folder / name) for name in names], "failed": []}
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    graph = zoo.build("mobilenet-v3-small", width=0.25, resolution=32, batch=2)
    assert (folder / names[1]).read_bytes() == builders.build(graph, "onnx", "fp32")
    assert network_hash_of(read_onnx(folder / names[1])) == network_hash_of(graph)


@pytest.mark.parametrize(
    ("model_format", "dtype", "suffix"),
    [
        ("onnx", "int8", "-int8.onnx"),
        ("tflite", "fp32", ".tflite"),
        ("ncnn", "fp32", ".ncnn.zip"),
        ("graph-json", "fp32", ".json"),
    ],
)
def test_export_knows_the_formats(
    latfarm: Latfarm, tmp_path: Path, model_format: str, dtype: str, suffix: str
) -> None:
    name = "nasbench201@5"
    ended = latfarm(
        "zoo", "export", name, "-f", model_format, "--dtype", dtype, "-o", tmp_path / "m"
    )
    assert ended.code == 0
    (path,) = (tmp_path / "m").iterdir()
    assert path.name == name + suffix
    assert path.read_bytes() == builders.build(zoo.build(name), model_format, dtype)


def test_export_overwrites_only_when_told(latfarm: Latfarm, tmp_path: Path) -> None:
    command = ("zoo", "export", "nasbench201@5", "nasbench201@6", "-f", "graph-json", "-o")
    (tmp_path / "nasbench201@5.json").write_text("mine")
    ended = latfarm(*command, tmp_path)
    assert ended.code == 1
    told = ended.err.splitlines()
    assert "1 graph was written to" in told[0]
    assert "nasbench201@5" in told[1]
    assert "exists; --replace replaces it" in told[1]
    assert (tmp_path / "nasbench201@5.json").read_text() == "mine"
    assert (tmp_path / "nasbench201@6.json").exists()
    assert latfarm(*command, tmp_path, "--replace").code == 0
    assert (tmp_path / "nasbench201@5.json").read_text() != "mine"


def test_what_cannot_be_written_is_named_and_the_rest_is(
    latfarm: Latfarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builders.build

    def no_cells(graph: Graph, *arguments: Any) -> bytes:
        if graph.name.startswith("nasbench201"):
            raise BuildError("node relu_3 (Relu): not in this format")
        return real(graph, *arguments)

    monkeypatch.setattr(builders, "build", no_cells)
    ended = latfarm(
        "zoo", "export", "nasbench201@1", "alexnet", "nin-cifar", "--resolution", "16",
        "-f", "graph-json", "-o", tmp_path, "--json",
    )  # fmt: skip
    assert ended.code == 1
    found = json.loads(ended.out)
    assert [Path(path).name for path in found["written"]] == ["nin-cifar-16px.json"]
    reasons = {failure["model"]: failure["reason"] for failure in found["failed"]}
    assert reasons["nasbench201@1-16px"] == "node relu_3 (Relu): not in this format"
    assert "larger than its padded input" in reasons["alexnet"]
    assert len(reasons) == 2
    assert [line.split(":")[1].strip() for line in ended.err.splitlines()] == list(reasons)
    assert [path.name for path in tmp_path.iterdir()] == ["nin-cifar-16px.json"]


def test_variants_are_those_of_the_dataset(latfarm: Latfarm, tmp_path: Path) -> None:
    ended = latfarm(
        "zoo", "export", "mobilenet-v1", "nasbench201", "--variants", "3", "--seed", "7",
        "--batch", "4", "-f", "graph-json", "-o", tmp_path,
    )  # fmt: skip
    assert ended.code == 0
    wanted = [g for n in ("mobilenet-v1", "nasbench201") for g in family_variants(n, 3, 7, batch=4)]
    assert len(list(tmp_path.iterdir())) == 6
    for graph in wanted:
        text = (tmp_path / f"{graph.name}-b4.json").read_text()
        assert Graph.from_json(json.loads(text)) == graph


def test_the_dataset_goes_into_one_file(latfarm: Latfarm, tmp_path: Path) -> None:
    for name in ("d.jsonl", "d.jsonl.gz", "again.jsonl.gz"):
        ended = latfarm("zoo", "export", "nn-meter", "--variants", "2", "--jsonl", tmp_path / name)
        assert ended.code == 0
        assert "26 graphs were written to" in ended.line
    graphs = lines(tmp_path / "d.jsonl")
    assert [graph.name for graph in graphs] == [f"{name}-{i}" for name in FAMILIES for i in (0, 1)]
    assert lines(tmp_path / "d.jsonl.gz") == graphs
    # The compressed file has neither a name nor a time inside.
    assert (tmp_path / "again.jsonl.gz").read_bytes() == (tmp_path / "d.jsonl.gz").read_bytes()
    assert len(list(tmp_path.glob("*"))) + len(list(tmp_path.glob(".*"))) == 3
    again = latfarm("zoo", "export", "alexnet", "--jsonl", tmp_path / "d.jsonl")
    assert again.code == 2
    assert "exists; --replace replaces it" in again.line
    assert (
        latfarm("zoo", "export", "alexnet", "--jsonl", tmp_path / "d.jsonl", "--replace").code == 0
    )
    assert [graph.name for graph in lines(tmp_path / "d.jsonl")] == ["alexnet"]


def test_an_interrupted_export_leaves_no_half_file(
    latfarm: Latfarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builders.build
    built: list[str] = []

    def interrupted(graph: Graph, *arguments: Any) -> bytes:
        built.append(graph.name)
        if len(built) == 3:
            raise KeyboardInterrupt
        return real(graph, *arguments)

    monkeypatch.setattr(builders, "build", interrupted)
    ended = latfarm("zoo", "export", "alexnet", "--variants", "5", "--jsonl", tmp_path / "d.jsonl")
    assert ended.code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_the_folder_is_told(latfarm: Latfarm, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    ended = latfarm(
        "zoo", "export", "nasbench201@1", "-f", "graph-json", "-o", tmp_path / "taken" / "models"
    )
    assert ended.code == 1
    assert "taken" in ended.line


def test_the_zoo_needs_neither_ray_nor_the_store() -> None:
    program = (
        "import sys\n"
        "from latfarm_controller.cli.main import run\n"
        "assert run(['zoo', 'show', 'alexnet']) == 0\n"
        "bad = {'ray', 'duckdb', 'grpc', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
