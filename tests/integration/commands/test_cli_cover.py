"""Runs `latfarm predict --explain`, `latfarm cover` and `latfarm bundle retrain` as users do."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle


@pytest.fixture(scope="module")
def shell(characterized: Any, farm: Any) -> Any:
    """Return a copy of the characterised home with its own board.

    Other tests count the measurements of the original boards.
    """
    shell = farm.shell("cover", farm.board("cover-board"))
    shutil.copytree(characterized.shell.home / "bundles", shell.home / "bundles")
    shutil.copy(characterized.shell.home / "store.duckdb", shell.home)
    return shell


@pytest.fixture
def model(models: Callable[..., Path]) -> Path:
    """Return a network whose kernels are unlike all measured kernels."""
    return next(models(1).glob("*.onnx"))


def bundles(shell: Any, farm: Any) -> list[Path]:
    return sorted((shell.home / "bundles" / farm.platform).glob("*.zip"))


def test_the_remedy_that_explain_names_covers_the_layer(shell: Any, farm: Any, model: Path) -> None:
    asked = ("predict", model, "-p", farm.platform, "--explain", "--json")
    before = shell.run(*asked).json
    trust = before["trust"]
    (layer,) = trust["layers"]
    assert layer["kind"] == "Conv+Relu"
    assert layer["latency_ms"] == pytest.approx(before["kernels"][0]["latency_ms"])
    assert set(layer["widths"]) == set(trust["paper"]) == {"CM_TV", "CM_LV", "CM_O"}
    assert all(each["label"] == "uncalibrated" for each in trust["paper"].values())
    assert trust["calibrated_ms"] == before["interval_ms"]
    assert layer["coverage"] == pytest.approx(trust["coverage"])
    assert layer["coverage"] < 0.5
    assert layer["remedy"] == (
        f"latfarm cover {model} --platform {farm.platform} --layer {layer['name']}"
    )

    found = bundles(shell, farm)
    ended = shell.run(*shlex.split(layer["remedy"])[1:], "--json").json
    assert ended["measured"] == 1
    assert ended["failed"] == {}
    campaign = shell.run("campaign", "show", ended["campaign_id"], "--json").json
    assert list(ended["coverage_after"].values()) == [1.0], campaign
    new = [path for path in bundles(shell, farm) if path not in found]
    assert [str(path) for path in new] == [ended["new_bundle"]]

    after = shell.run(*asked).json["trust"]
    assert after["layers"][0]["coverage"] == 1.0
    assert after["layers"][0]["remedy"] == after["remedy"] == ""
    assert after["layers"][0]["source"] == "measured"
    old, now = (read_provenance(path) for path in (found[-1], new[0]))
    assert now["kernels"] == old["kernels"] + 1
    assert now["networks"] == old["networks"]
    assert now["campaign"] == ended["campaign_id"]
    again = shell.run(*shlex.split(layer["remedy"])[1:])
    assert again.code == 0
    assert "there is nothing to measure" in again.out


def test_explain_tells_people_what_to_do(shell: Any, farm: Any, models: Any) -> None:
    model = next(models(1, first=7).glob("*.onnx"))
    ended = shell.run("predict", model, "-p", farm.platform, "--explain")
    assert ended.code == 0, ended
    assert "calibrated" in ended.out
    assert "CM_TV, layers convolved" in ended.out
    assert "uncalibrated" in ended.out
    lines = [line.strip() for line in ended.out.splitlines()]
    remedy = next(line for line in lines if line.startswith("latfarm cover"))
    assert any(line.endswith(f"latfarm cover {model} --platform {farm.platform}") for line in lines)
    planned = shell.run(*shlex.split(remedy)[1:], "--dry-run")
    assert planned.code == 0, planned
    assert "1 kernels would be measured" in planned.out
    assert "Conv+Relu family=conv" in planned.out


def test_a_bundle_of_old_says_how_to_gain_confidence(shell: Any, farm: Any, model: Path) -> None:
    newest = bundles(shell, farm)[-1]
    predictor = load_bundle(newest)
    predictor.confidence = None
    save_bundle(predictor, newest, read_provenance(newest))
    asked = ("predict", model, "-p", farm.platform)
    answer = shell.run(*asked, "--json").json
    refused = shell.run(*asked, "--explain")
    assert refused.code == 2
    command = f"latfarm bundle retrain -p {farm.platform}"
    assert command in refused.err
    done = shell.run(*shlex.split(command)[1:])
    assert done.code == 0, done
    explained = shell.run(*asked, "--explain", "--json").json
    assert explained["trust"]["layers"]
    assert explained["latency_ms"] == answer["latency_ms"]
    assert load_bundle(bundles(shell, farm)[-1]).confidence is not None


def test_a_board_that_changed_since_is_refused_before_it_measures(
    shell: Any, farm: Any, model: Path
) -> None:
    newest = bundles(shell, farm)[-1]
    kept = newest.read_bytes()
    campaigns = shell.run("campaign", "list", "--json").json
    save_bundle(
        load_bundle(newest), newest, {**read_provenance(newest), "fingerprint": "0123456789abcdef"}
    )
    try:
        ended = shell.run("cover", model, "-p", farm.platform, "--family", "softmax")
        again = shell.run("cover", "retinanet-r34", "-p", farm.platform, "--budget", "1")
    finally:
        newest.write_bytes(kept)
    assert ended.code == 0
    assert "there is nothing to measure" in ended.out
    assert again.code == 2
    assert f"the boards of {farm.platform} changed since its bundle in use was made" in again.err
    assert "then 0123456789ab" in again.err
    assert f"latfarm characterize --platform {farm.platform}" in again.err
    assert shell.run("campaign", "list", "--json").json == campaigns


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--layer", "nowhere"], "no layer nowhere; some of the layers: "),
        (["--family", "cnov"], "no kernel family 'cnov'; known: conv, "),
    ],
)
def test_what_does_not_exist_is_named(
    shell: Any, farm: Any, model: Path, arguments: list[str], told: str
) -> None:
    ended = shell.run("cover", model, "-p", farm.platform, *arguments)
    assert ended.code == 2
    assert told in ended.err


def test_a_model_is_a_file_or_of_the_zoo(shell: Any, farm: Any) -> None:
    ended = shell.run("cover", "no-such-net", "-p", farm.platform)
    assert ended.code == 2
    assert "no-such-net: there is no such file, and no zoo family 'no-such-net'" in ended.err
    planned = shell.run("cover", "retinanet-r34", "-p", farm.platform, "--dry-run", "--json").json
    assert planned["badly_covered"] >= len(planned["kernels"]) > 0
    assert "new_bundle" not in planned


def test_a_bundle_from_elsewhere_cannot_be_added_to(
    characterized: Any, farm: Any, model: Path
) -> None:
    shell = farm.shell("elsewhere", *characterized.boards)
    shutil.copytree(characterized.shell.home / "bundles", shell.home / "bundles")
    for arguments in (
        ("cover", model, "-p", farm.platform),
        ("bundle", "retrain", "-p", farm.platform),
    ):
        ended = shell.run(*arguments)
        assert ended.code == 2
        assert "was made elsewhere" in ended.err
        assert f"latfarm characterize --platform {farm.platform}" in ended.err
