"""Models are trained and put in use while `latfarm serve` runs in a process of its own."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from latfarm_controller.config import ControllerConfig
from latfarm_controller.training.model_register import read_register

from tests.controller.reports.toy import PLATFORM
from tests.controller.training.toy_home import ToyHome, asked_networks, more_depthwise
from tests.integration.conftest import Shell, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("command")]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A home with one model, and with rows that are newer than it, behind `latfarm serve`."""
    home = tmp_path_factory.mktemp("beside") / "home"
    ControllerConfig(home=home).make_dirs()
    made = ToyHome(home)
    made.characterise()
    made.ask(asked_networks())
    made.train()
    made.cover(more_depthwise(), "more", 2000.0)
    made.store.close()
    shell = Shell(home)
    with shell.start("serve") as serve:
        until(lambda: "latfarm serves on unix:" in serve.line(), "the server")
        yield shell
        assert serve.process.poll() is None
        assert serve.signal(signal.SIGTERM).code == 130


def in_use(shell: Shell) -> str:
    return read_register(shell.home / "bundles" / PLATFORM).promoted


def test_models_are_trained_and_put_in_use(shell: Shell) -> None:
    trained = shell.run("train", "-p", PLATFORM, "--json").json
    assert (trained["model"], trained["state"]) == ("0002", "candidate")
    assert trained["scores"]["networks"] == len(asked_networks())
    assert shell.run("bundle", "promote", "-p", PLATFORM, "--json").json["model"] == "0002"
    assert in_use(shell) == "0002"
    (listed,) = shell.run("platforms", "--json").json
    assert listed["bundle"] == "0002", "the server uses it, too"
    back = shell.run("bundle", "rollback", "-p", PLATFORM, "--json").json
    assert (back["model"], back["replaced"]) == ("0001", "0002")
    nothing = shell.run("train", "-p", PLATFORM, "--since", trained["data_revision"], "--json")
    assert nothing.json == {"platform": PLATFORM, "trained": False}
    again = shell.run("bundle", "retrain", "-p", PLATFORM, "--json").json
    assert again["model"] == "0003"
    assert in_use(shell) == "0003"
    assert [path.name for path in shell.home.glob(".copy-*")] == []


def test_repair_alone_needs_the_server_to_be_stopped(shell: Shell) -> None:
    refused = shell.run("db", "repair")
    assert refused.code == 1
    assert "the store is held by process" in refused.err
    assert "stop it" in refused.err
