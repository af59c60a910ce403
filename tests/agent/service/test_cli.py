"""The command line: exit codes, one-line errors, help with examples."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from latfarm_agent import __version__, arguments, cli, errors
from latfarm_agent.bench.doctor import examine
from latfarm_agent.confinement.plan import PROTECTIONS
from latfarm_agent.service.server import is_loopback, split_address

if TYPE_CHECKING:
    from tests.agent.service.conftest import Farm
    from tests.agent.service.fake_bench import FakeBench


@pytest.fixture
def run(farm: Farm) -> object:
    """Runs `main` with the fake bench."""

    def make(args: argparse.Namespace, work_dir: Path) -> FakeBench:
        return farm.bench

    return lambda *argv: cli.main(list(argv), make)


def test_describe_for_people(run, capsys: pytest.CaptureFixture[str], farm: Farm) -> None:  # type: ignore[no-untyped-def]
    assert run("describe") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "board fake (board-1)" in lines
    assert "runtime tflite: missing: install latfarm-agent[tflite]" in lines
    assert "  platform fake-onnxruntime1.0-fp32-1t (onnx, fp32)" in lines
    assert farm.bench.closed


def test_describe_for_programs(run, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    assert run("describe", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["board"]["board_id"] == "board-1"
    assert [runtime["available"] for runtime in found["runtimes"]] == [True, False]
    assert found["runtimes"][0]["platforms"][0]["model_format"] == "onnx"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has protections")
def test_the_doctor_tells_what_is_on_and_what_was_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = cli.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found] == list(PROTECTIONS)
    assert code == (0 if all(each["on"] for each in found) else 1)
    for each in found:
        # What is told as on has refused everything; what is off has a remedy.
        assert not each["not_refused"] or not each["told"].startswith("on")
        assert bool(each["remedy"]) == (not each["on"])
    assert cli.main(["doctor"]) == code
    text = capsys.readouterr().out
    assert all(f"  {each['name']}: {each['told']}" in text for each in found)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has protections")
def test_the_doctor_imports_nothing_from_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ctypes", "json", "latfarm_agent", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert [each.name for each in examine()] == list(PROTECTIONS)


@pytest.mark.parametrize("command", ["serve", "rack", "describe", "doctor"])
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"  latfarm-agent {command} " in text.replace("\n", " \n")


EXAMPLES = (
    arguments.SERVE_EXAMPLES,
    arguments.RACK_EXAMPLES,
    arguments.WORK_EXAMPLES,
    arguments.SETTLE_EXAMPLES,
    arguments.DESCRIBE_EXAMPLES,
    arguments.DOCTOR_EXAMPLES,
)


def test_the_examples_parse() -> None:
    for examples in EXAMPLES:
        joined = examples.replace("\\\n", " ")
        for line in joined.splitlines()[1:]:
            program, *argv = line.split()
            assert program == "latfarm-agent"
            assert arguments.make_parser().parse_args(argv).command == argv[0]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["sing"],
        ["serve", "--bogus"],
        ["serve", "--metrics-port", "many"],
        ["serve", "--max-blob-mb", "0"],
        ["rack", "profile.json"],
        ["rack", "profile.json", "--boards", "0"],
        ["rack", "profile.json", "--boards", "2", "--measuring-time", "5"],
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("latfarm-agent")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--listen", "nonsense"], "not HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "not HOST:PORT"),
        (["--listen", "::1:5"], "write an IPv6 address as"),
        (["--listen", "0.0.0.0:0"], "can be reached from outside"),
        (["--listen", "192.0.2.1:0", "--insecure"], "cannot listen on"),
        (["--tls-cert", "c.pem"], "belong together"),
        (["--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a"], "cannot read the TLS file c"),
        (["--port-file", "/nonexistent/port"], "cannot write /nonexistent/port"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(  # type: ignore[no-untyped-def]
    run, argv: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, farm: Farm
) -> None:
    state = ["--state-dir", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    assert run("serve", *state, *argv) == 2
    message = [line for line in capsys.readouterr().err.splitlines() if "serves on" not in line]
    assert len(message) == 1
    assert text in message[0]
    assert farm.bench.closed or not (tmp_path / "state").exists()


def test_a_damaged_state_exits_1(  # type: ignore[no-untyped-def]
    run, capsys: pytest.CaptureFixture[str], tmp_path: Path, farm: Farm
) -> None:
    (tmp_path / "token").write_text("junk")
    serve = ["serve", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path)]
    assert run(*serve) == 1
    assert "token is damaged" in capsys.readouterr().err
    assert farm.bench.closed
    (tmp_path / "token").write_text("3")
    farm.start(state_dir=tmp_path)  # the lock was given back


def test_the_state_lives_under_the_users_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("LATFARM_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    base = tmp_path / ".local" / "share" / "latfarm" / "agents"
    assert cli.default_state_dir("local") == base / "local"
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path / "farm"))
    assert cli.default_state_dir("local") == tmp_path / "farm" / "agents" / "local"
    with pytest.raises(errors.AgentUsageError, match="not a file name"):
        cli.default_state_dir("../local")


def test_the_home_belongs_to_its_owner_also_where_the_agent_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "data" / "latfarm"
    monkeypatch.delenv("LATFARM_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    asked = arguments.make_parser().parse_args(["serve", "--name", "toy"])
    assert cli._state_dir(asked) == home / "agents" / "toy"
    for folder in (home, home / "agents", home / "agents" / "toy"):
        assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/data")  # told by who writes there first
    assert cli._state_dir(asked) == Path("/dev/null/data/latfarm/agents/toy")
    given = arguments.make_parser().parse_args(["serve", "--state-dir", str(tmp_path / "given")])
    assert cli._state_dir(given) == tmp_path / "given"
    assert not (tmp_path / "given").exists()


def test_addresses() -> None:
    assert split_address("127.0.0.1:5") == ("127.0.0.1", 5)
    assert split_address("[::1]:0") == ("::1", 0)
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "board7"))


def test_grpc_leaves_forks_alone(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    name = "GRPC_ENABLE_FORK_SUPPORT"
    monkeypatch.delenv(name, raising=False)
    assert run("describe") == 0
    assert os.environ[name] == "0"


def test_usage_needs_no_grpc() -> None:
    script = (
        "import sys; from latfarm_agent import cli; cli.make_parser(); "
        "print([name for name in ('grpc', 'prometheus_client', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"latfarm-agent {__version__}\n"
