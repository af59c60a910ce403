"""Bad model files: one line names the file, the node and the remedy, and nothing is started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

PLATFORM = ("--platform", "toy-sim1.0-fp32-1t")
COMMANDS = ("predict", "query")


def model(op: str = "Relu", shape: tuple[int | str, ...] = (1, 8), weight: int = 0) -> Any:
    inputs = ["x", "w"] if weight else ["x"]
    node = helper.make_node("Add" if weight else op, inputs, ["y"], name="the-node")
    info = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(np.ones(weight, np.float32), "w")] if weight else []
    graph = helper.make_graph(
        [node],
        "net",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, None)],
        initializer=weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


def good(path: Path) -> None:
    onnx.save(model(), path)


def missing(path: Path) -> None:
    assert not path.exists()


def empty(path: Path) -> None:
    path.touch()


def truncated(path: Path) -> None:
    data = model(weight=4096, shape=(1, 4096)).SerializeToString()
    path.write_bytes(data[: len(data) // 2])


def text(path: Path) -> None:
    path.write_text("this is no model\n" * 100)


def picture(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + Random(5).randbytes(500))


def external(path: Path) -> None:
    onnx.save(
        model(weight=4096, shape=(1, 4096)),
        path,
        save_as_external_data=True,
        size_threshold=0,
        location="weights.bin",
    )
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../weights.bin"
    path.write_bytes(proto.SerializeToString())


def dynamic(path: Path) -> None:
    onnx.save(model(shape=("N", 8)), path)


def dynamic_sides(path: Path) -> None:
    onnx.save(model(shape=(1, 3, "H", "W")), path)


def unsupported(path: Path) -> None:
    onnx.save(model("NonZero"), path)


BAD: dict[Callable[[Path], None], tuple[str, ...]] = {
    missing: ("no such file", "check the path"),
    empty: ("is empty", "export"),
    truncated: ("cut off", "again"),
    text: ("not an ONNX model", "again"),
    picture: ("not an ONNX model", "again"),
    external: ("'w'", "not in the model's folder"),
    dynamic: ("'x'", "--batch 1"),
    dynamic_sides: ("'x'", "--shape x:1,3,224,224"),
    unsupported: ("'the-node'", "NonZero", "export"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_one_line_names_file_node_and_remedy(
    make: Callable[[Path], None], command: str, latfarm: Any, home: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    make(path)
    before = {file.name for file in tmp_path.iterdir()}
    ended = latfarm(command, path, *PLATFORM)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.line.startswith(f"latfarm: {path}: ")
    for word in BAD[make]:
        assert word in ended.line
    assert not home.exists()
    assert {file.name for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("command", COMMANDS)
def test_all_files_of_a_bad_folder_are_named(
    command: str, latfarm: Any, home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for number, make in enumerate((empty, text, unsupported)):
        make(folder / f"{number}.onnx")
    ended = latfarm(command, folder, *PLATFORM)
    assert ended.code == 2
    assert [line.split(": ")[1] for line in ended.err.splitlines()] == [
        str(folder / f"{number}.onnx") for number in range(3)
    ]
    assert not home.exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--shape", "x:1,0"), ("--shape x:1,0", "name:1,3,224,224")),
        (("--shape", "z:1,8"), ("no input 'z'", "x")),
        (("--shape", "x:1,8,8"), ("does not fit", "--shape")),
    ],
)
def test_bad_shapes(
    command: str,
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    latfarm: Any,
    home: Path,
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.onnx"
    good(path)
    ended = latfarm(command, path, *PLATFORM, *arguments)
    assert ended.code == 2
    assert all(word in ended.line for word in words)
    assert not home.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_file_and_a_platform_that_are_named_twice_are_told_once(
    command: str, latfarm: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    empty(path)
    ended = latfarm(command, path, path, *PLATFORM, *PLATFORM)
    assert ended.code == 2
    assert ended.line.startswith(f"latfarm: {path}: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_models(command: str, latfarm: Any, home: Path, tmp_path: Path) -> None:
    ended = latfarm(command, tmp_path, *PLATFORM)
    assert (ended.code, home.exists()) == (2, False)
    assert ended.line == f"latfarm: {tmp_path}: this folder holds no *.onnx or *.tflite file"


def test_a_name_with_line_breaks_stays_one_line(latfarm: Any, tmp_path: Path) -> None:
    path = tmp_path / "a\nb.onnx"
    path.touch()
    ended = latfarm("predict", path)
    assert ended.code == 2
    assert "a b.onnx" in ended.line


def test_no_bundle_lists_the_known_platforms(latfarm: Any, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    good(path)
    ended = latfarm("predict", path, "-p", "c-platform")
    assert ended.code == 2
    assert "latfarm characterize makes a bundle of one of them" in ended.line
    assert not home.exists()
    for platform in ("b-platform", "a-platform"):
        (home / "bundles" / platform).mkdir(parents=True)
        (home / "bundles" / platform / "0001.zip").touch()
    for arguments in ((), ("-p", "c-platform")):
        ended = latfarm("predict", path, *arguments)
        assert ended.code == 2
        assert "a-platform, b-platform" in ended.line
    assert "'c-platform'" in ended.line


def test_a_damaged_bundle(latfarm: Any, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    good(path)
    (home / "bundles" / "p").mkdir(parents=True)
    bundle = home / "bundles" / "p" / "0001.zip"
    bundle.write_bytes(b"PK" + bytes(100))
    ended = latfarm("predict", path)
    assert ended.code == 1
    assert str(bundle) in ended.line


def test_bad_files_start_neither_ray_nor_controller(latfarm: Any, tmp_path: Path) -> None:
    known = set(sys.modules)
    latfarm("query", tmp_path / "missing.onnx", *PLATFORM)
    assert not {"ray", "latfarm_controller.api.server"} & (set(sys.modules) - known)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("campaign", "run", "kernels", "-p", "p", "--config", "{"), "not valid JSON"),
        (("campaign", "run", "kernels", "-p", "p", "--config", "[]"), "JSON object"),
        (("campaign", "run", "kernels", "-p", "p", "x.onnx"), "campaign run networks"),
        (("campaign", "run", "networks", "-p", "p", "x.onnx"), "no such file"),
        (("results", "export", "x.txt"), ".csv or .parquet"),
        (("bundle", "export", "-p", "p", "x.zip"), "there is no bundle for platform 'p'"),
        (("bundle", "import", "x.zip"), "no such file"),
        (("boards", "add", "b", "nowhere"), "host:port"),
        (("boards", "add", "b"), "board b has no address: it must be host:port"),
        (("boards", "add", "b/c", "127.0.0.1:1"), "board name"),
        (("boards", "remove", "b"), "no board 'b'"),
        (("bundle", "show"), "no platform has a bundle yet"),
        (("bundle", "show", "-p", "sample"), "latfarm predict alone reads"),
        (("compare", "x.onnx"), "latfarm demo makes one for this machine"),
        (("results", "-p", "p", "export", "x.csv"), "--platform stands before export"),
        (("bundle", "--json", "list"), "options of latfarm bundle list stand after it"),
        (("boards", "--tag", "lab2", "remove", "b"), "--tag stands before remove"),
        (("graph", "show", "c92a4bf3ed70", "--batch", "8"), "is shown as it was measured"),
        (("campaign", "run", "networks", "-p", "p", "--batch", "2"), "name the models, too"),
        (("probes", "predict", "-p", "p", "--shape", "x:1,8"), "name the models, too"),
        (("probes", "predict", "-p", "p", "m.onnx", "--shape", "x"), "--shape x: a shape is"),
        (
            ("campaign", "run", "networks", "-p", "p", "m.onnx", "--config", '{"graphs": []}'),
            "leave out one of them",
        ),
        (
            ("characterize", "-p", "p", "--energy-ms", "99"),
            "--energy-ms says how --energy measures",
        ),
        (("characterize", "-p", "p", "--sampler", "random", "--guide", "both"), "--sampler random"),
        (("characterize", "-p", "p", "--sampler", "prior", "--from", "b"), "--from is for the"),
        (("demo", "--kernels", "90", "--budget", "90"), "--budget bounds a budget"),
        (("demo", "--budget-minutes", "5", "--minutes", "5"), "--minutes bounds a demo without"),
        (("probes", "plan", "-p", "p", "--survey"), "give --measure, too"),
        (("query", "m.onnx", "-p", "p", "--predict", "--refresh"), "--refresh says how a board"),
        (
            ("query", "m.onnx", "-p", "p", "--no-measure", "--tag", "t"),
            "--no-measure asks no board",
        ),
        (("query", "m.onnx", "-p", "p", "--predict", "--repeat", "2"), "leave out one of them"),
        (("query", "m.onnx", "-p", "p", "--repeat", "2", "--max-age", "1d"), "--repeat takes none"),
        (("query", "m.onnx", "-p", "p", "--refresh", "--foreign"), "--foreign says which stored"),
        (
            ("zoo", "export", "resnet18", "-o", "x", "--seed", "2"),
            "give their number with --variants",
        ),
        (("bundle", "remove", "-p", "p", "--all", "--model", "0001"), "leave out one"),
        (
            ("graph", "build", "m.onnx", "-o", "m.json", "-f", "graph-json", "--noise"),
            "graph-json has none",
        ),
        (("campaign", "run", "networks", "-p", "p"), "name the models to measure, or draw"),
        (("backup", "list", "/dev/null/x"), "there is no such folder; latfarm backup create"),
        (("fusion", "compare", "a.json", "b"), "a.json: there is no such file, and there is no"),
        (("report", "-p", "p", "-o", "/"), "/ is a folder; name a file in it"),
        (("cover", "-p", "p", "--shape", "x:1,8"), "name a file, or give the batch size"),
        (("cover", "-p", "p", "resnet18", "--shape", "x:1,8"), "networks of the zoo have shapes"),
        (("fusion", "detect", "-p", "p", "-o", "/"), "/ is a folder; name a file in it"),
        (("engines", "run", "--html", "/dev/null/a.html"), "/dev/null is a file"),
        (("demo", "--figures", "/"), "/ is a folder; name a file in it"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(
    arguments: tuple[str, ...], word: str, latfarm: Any, home: Path
) -> None:
    ended = latfarm(*arguments)
    assert ended.code == 2
    assert word in ended.line
    assert not (home / "store.duckdb").exists()
    assert not (home / "controller.lock").exists()


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("predict",), ("query", "x.onnx"), ("predict", "x", "--nope")]
)
def test_usage_of_the_parser_is_exit_code_2(arguments: tuple[str, ...], latfarm: Any) -> None:
    ended = latfarm(*arguments)
    assert ended.code == 2
    assert "latfarm" in ended.err


def test_a_home_that_cannot_be(latfarm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("/dev/null/home", "/proc/latfarm-home"):
        monkeypatch.setenv("LATFARM_HOME", place)
        for command in (("boards",), ("results",), ("query", onnx_light(), *PLATFORM)):
            ended = latfarm(*command)
            assert ended.code == 2, ended
            assert "LATFARM_HOME" in ended.line
            assert place in ended.line


def onnx_light() -> str:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return str(folder / "light_squeezenet.onnx")


def test_bad_settings_name_their_place(
    latfarm: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "latfarm.toml").write_text("no_such = 1\n")
    ended = latfarm("bundle")
    assert ended.code == 2
    assert "latfarm.toml" in ended.line
    (home / "latfarm.toml").unlink()
    monkeypatch.setenv("LATFARM_LEASE_MS", "soon")
    ended = latfarm("bundle")
    assert ended.code == 2
    assert "LATFARM_LEASE_MS" in ended.line
