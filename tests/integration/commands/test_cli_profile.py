"""Runs `latfarm profile` as users do: the times of layers beside what a bundle predicts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def shell(characterized: Any, farm: Any) -> Any:
    """Return a copy of the characterised home with its own board."""
    shell = farm.shell("profile", farm.board("profile-board"))
    shutil.copytree(characterized.shell.home / "bundles", shell.home / "bundles")
    shutil.copy(characterized.shell.home / "store.duckdb", shell.home)
    return shell


def test_kernels_stand_beside_their_predictions(
    shell: Any, farm: Any, models: Callable[..., Path]
) -> None:
    model = next(models(1, first=3).glob("*.onnx"))
    told = shell.run("profile", model, "-p", farm.platform, "--json").json
    assert told["failed"] == {}
    (network,) = told["networks"]
    assert network["usable"]
    whole_ms = sum(kernel["profiled_ms"] for kernel in network["kernels"])
    assert whole_ms == pytest.approx(network["corrected_ms"] - network["fixed_ms"], rel=0.2)
    predicted = shell.run("predict", model, "-p", farm.platform, "--json").json
    assert network["predicted_ms"] == pytest.approx(predicted["latency_ms"])
    assert [kernel["nodes"] for kernel in network["kernels"]] == [
        kernel["nodes"] for kernel in predicted["kernels"]
    ]
    shown = shell.run("profile", model, "-p", farm.platform)
    assert shown.code == 0
    assert f"{network['corrected_ms']:.3f}" in shown.out  # the same measurement
    assert "kernels, those with the largest errors first" in shown.out


def test_several_networks_are_added_up_by_configuration(shell: Any, farm: Any) -> None:
    asked = ("profile", "squeezenet1.0", "mobilenet-v2", "-p", farm.platform)
    told = shell.run(*asked, "--json").json
    assert [network["model"] for network in told["networks"]] == ["squeezenet1.0", "mobilenet-v2"]
    kernels = sum(len(network["kernels"]) for network in told["networks"])
    assert sum(each["kernels"] for each in told["configurations"]) == kernels
    shown = shell.run(*asked, "--most", "3")
    assert "configurations of kernels" in shown.out
    assert f"... and {len(told['configurations']) - 3} configurations" in shown.out


def test_layers_stand_alone_if_that_is_asked_for(shell: Any, farm: Any) -> None:
    asked = ("profile", "squeezenet1.0", "-p", farm.platform, "--layers")
    (network,) = shell.run(*asked, "--json").json["networks"]
    longest = max(network["layers"], key=lambda layer: layer["latency_ms"])
    shown = shell.run(*asked)
    assert longest["name"] in shown.out
    assert "shorter layers" in shown.out


def test_a_platform_without_a_bundle_shows_layers_and_names_the_remedy(farm: Any) -> None:
    bare = farm.shell("bare", farm.board("bare-board"))
    shown = bare.run("profile", "squeezenet1.0", "-p", farm.platform)
    assert shown.code == 0
    assert "ms, as timed" in shown.out
    assert f"latfarm characterize --platform {farm.platform}" in shown.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no-such-network",), "no-such-network"),
        (("squeezenet1.0", "--shape", "input:1,3,224,224"), "--shape says how files are read"),
    ],
)
def test_wrong_networks_are_refused(
    shell: Any, farm: Any, arguments: tuple[str, ...], says: str
) -> None:
    ended = shell.run("profile", *arguments, "-p", farm.platform)
    assert ended.code == 2
    assert says in ended.err


def test_a_platform_that_no_board_offers_is_refused(shell: Any) -> None:
    ended = shell.run("profile", "squeezenet1.0", "-p", "other-sim1.0-fp32-1t")
    assert ended.code == 2
    assert "latfarm platforms" in ended.err
