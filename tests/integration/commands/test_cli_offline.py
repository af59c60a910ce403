"""Tests of what a characterisation produces, and of commands that only need its bundle."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from latfarm_predictors.frontends.onnx import read_onnx

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
SQUEEZENET = LIGHT / "light_squeezenet.onnx"
STAGES = (
    *("overhead", "context", "fusion", "probes", "kernels", "networks"),
    *("training", "training: kernels"),
)


@pytest.fixture
def alone(characterized: Any, farm: Any, request: pytest.FixtureRequest) -> Any:
    """Return a shell in a home that contains bundles and nothing else."""
    name = re.sub(r"\W", "_", request.node.name)
    shell = farm.shell(name)
    shutil.copytree(characterized.shell.home / "bundles", shell.home / "bundles")
    return shell


def test_characterize_is_quiet_and_tells_what_it_found(characterized: Any) -> None:
    ended = characterized.ended
    lines = ended.err.splitlines()
    assert all(re.fullmatch(r"[a-z: ]+: (\d+|\?) steps", line) for line in lines), ended.err
    stages = [line.rpartition(": ")[0] for line in lines]
    assert [stage for stage in stages if stage in STAGES] == list(STAGES)
    outcome = ended.json
    assert Path(outcome["bundle"]).is_file()
    assert outcome["networks_measured"] == 9
    assert outcome["kernels_measured"] >= 20
    assert outcome["rules"]["pairs"]["Conv+Relu"] == "fused"
    assert outcome["rules"]["pairs"]["Add+Relu"] == "separate"
    assert all(board.measured > 20 for board in characterized.boards)
    assert not characterized.shell.processes()


def test_a_finished_characterisation_measures_nothing_more(characterized: Any) -> None:
    before = sum(board.measured for board in characterized.boards)
    again = characterized.shell.run(*characterized.command)
    assert again.json["campaign_id"] == characterized.ended.json["campaign_id"]
    assert sum(board.measured for board in characterized.boards) == before


def test_predict_from_the_bundle_alone(alone: Any, characterized: Any) -> None:
    before = alone.listing()
    answer = alone.run("predict", SQUEEZENET, "-p", characterized.ended.json["rules"]["platform"])
    assert answer.code == 0
    assert answer.err == ""
    assert "squeezenet" in answer.out
    data = alone.run("predict", SQUEEZENET, "--json").json
    assert data["latency_ms"] > 0
    low, high = data["interval_ms"]
    assert low <= data["latency_ms"] <= high
    assert data["coverage"] == 0.9
    assert data["calibrated"] is True
    assert data["unsupported"] == []
    names = [name for kernel in data["kernels"] for name in kernel["nodes"]]
    assert sorted(names) == sorted(node.name for node in read_onnx(SQUEEZENET).nodes)
    for kernel in data["kernels"]:
        assert set(kernel) == {
            "type",
            "nodes",
            "configuration",
            "latency_ms",
            "interval_ms",
            "source",
        }
        assert kernel["interval_ms"][0] <= kernel["latency_ms"] <= kernel["interval_ms"][1]
        assert kernel["source"]
        assert kernel["configuration"]["family"]
    wide = alone.run("predict", SQUEEZENET, "--json", "--coverage", "0.99").json
    assert wide["interval_ms"][1] - wide["interval_ms"][0] > high - low
    assert alone.listing() == before


def test_predict_starts_neither_ray_nor_store_nor_grpc(alone: Any) -> None:
    program = (
        "import sys, threading, multiprocessing\n"
        "from latfarm_controller.cli.main import run\n"
        "code = run(sys.argv[1:])\n"
        "bad = {'ray', 'duckdb', 'grpc', 'latfarm_controller.api.server'} & set(sys.modules)\n"
        "sys.exit(f'{code} {bad} {threading.active_count()}' if code or bad else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "predict", str(SQUEEZENET), "--json"],
        env=alone.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["latency_ms"] > 0
    assert {path.name for path in alone.home.iterdir()} == {"bundles"}


def test_predict_a_folder_with_one_bad_file(alone: Any, models: Callable[..., Path]) -> None:
    folder = models(3, 5)
    bad = folder / "net006.onnx"
    bad.write_bytes(bad.read_bytes()[:50])
    ended = alone.run("predict", folder, "--json")
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1
    assert str(bad) in ended.err
    answers = json.loads(ended.out)
    assert [Path(a["model"]).name for a in answers] == ["net005.onnx", "net007.onnx"]
    assert [a["network"] for a in answers] == ["net5", "net7"]
    assert {k["type"] for a in answers for k in a["kernels"]} == {"Conv+Relu"}


def test_an_unknown_platform_lists_the_known(alone: Any, characterized: Any) -> None:
    ended = alone.run("predict", SQUEEZENET, "-p", "nope")
    assert ended.code == 2
    assert "'nope'" in ended.err
    assert characterized.ended.json["rules"]["platform"] in ended.err
    assert len(ended.err.splitlines()) == 1


def test_predict_and_lists_in_a_read_only_home(alone: Any) -> None:
    expected = alone.run("predict", SQUEEZENET, "--json").json
    folders = [alone.home, *(path for path in alone.home.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert alone.as_nobody_special("predict", SQUEEZENET, "--json").json == expected
        assert len(alone.as_nobody_special("bundle", "--json").json) == 1
        for command in (
            ("campaign", "list"),
            ("boards", "add", "b", "127.0.0.1:1"),
            ("bundle", "import", next(alone.home.glob("bundles/*/*.zip"))),
        ):
            ended = alone.as_nobody_special(*command)
            assert ended.code in (1, 2), ended
            assert len(ended.err.splitlines()) == 1, ended
            assert str(alone.home) in ended.err
            assert "Traceback" not in ended.err
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_a_file_that_may_not_be_read(alone: Any, models: Callable[..., Path]) -> None:
    path = models(1) / "net001.onnx"
    path.chmod(0)
    ended = alone.as_nobody_special("predict", path)
    assert ended.code == 2
    assert str(path) in ended.err
    assert "ermission" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_bundle_export_and_import(
    alone: Any, characterized: Any, farm: Any, tmp_path: Path
) -> None:
    platform = characterized.ended.json["rules"]["platform"]
    file = tmp_path / "toy.zip"
    assert alone.run("bundle", "export", "-p", platform, file).code == 0
    other = farm.shell("other")
    assert other.run("bundle", "import", file).code == 0
    listed = other.run("bundle", "--json").json
    assert [entry["platform"] for entry in listed] == [platform]
    theirs = other.run("predict", SQUEEZENET, "--json").json
    assert theirs == alone.run("predict", SQUEEZENET, "--json").json
    rules = other.run("fusion", "show", "--json").json
    assert rules == alone.run("fusion", "show", "--json").json
    shown = other.run("fusion", "show", "-p", platform)
    assert re.search(r"Conv +Relu +as one kernel", shown.out)
    same = other.run("fusion", "compare", platform, platform)
    assert "cut every network alike" in same.out

    before = other.listing()
    damaged = tmp_path / "damaged.zip"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    ended = other.run("bundle", "import", damaged)
    assert ended.code == 1
    assert str(damaged) in ended.err
    assert len(ended.err.splitlines()) == 1
    assert other.listing() == before
    full = other.with_small_files(1000, "bundle", "import", file)
    assert full.code == 1
    assert "cannot be written" in full.err
    assert other.listing() == before
    there = tmp_path / "kept.zip"
    there.write_text("what was here before")
    assert other.with_small_files(1000, "bundle", "export", "-p", platform, there).code == 1
    assert there.read_text() == "what was here before"


def test_doctor(farm: Any) -> None:
    shell = farm.shell("doctor")
    shell.home.rmdir()
    ended = shell.run("doctor", "--json")
    findings = {finding["name"]: finding for finding in ended.json}
    assert {"python", "cores", "memory", "disk", "ray", "duckdb", "store"} <= set(findings)
    assert any(name.startswith("runtime ") for name in findings)
    assert all(f["state"] == "ok" or f["remedy"] for f in findings.values())
    assert not shell.home.exists()
    text = shell.run("doctor")
    assert text.code == 0
    assert "python" in text.out
    assert text.err == ""


def test_a_full_disk_is_told(farm: Any, models: Callable[..., Path]) -> None:
    board = farm.board("full")
    shell = farm.shell("full-home", board)
    for command in (
        ("campaign", "list"),
        ("query", models(1) / "net001.onnx", "-p", farm.platform),
    ):
        ended = shell.with_small_files(4096, *command)
        assert ended.code == 1, ended
        assert str(shell.home) in ended.err
        assert len(ended.err.splitlines()) == 1, ended.err
    assert not shell.processes()


def test_output_into_a_closed_pipe_is_no_error(alone: Any) -> None:
    text = f"{sys.executable} -m latfarm_controller.cli.main predict {LIGHT} --json | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {text}"],
        env=alone.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
