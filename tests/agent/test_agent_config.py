"""The agent's configuration: what it refuses, and how it changes workers."""

from __future__ import annotations

import json
import os
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig, parse_threads, read_config
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.cli import main
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.testing.runtime_suite import measure
from latfarm_agent.worker.pool import WorkerLimits

TELLING = '''
"""A runtime that tells in its conditions which options it was made with."""
import os, sys
from latfarm_agent.runtimes.base import Description, PlatformSpec, Prepared


class Telling:
    wants_cache_dir = True

    def __init__(self, threads=1, cache_dir="", colour=""):
        self.told = {"threads": threads, "cache_dir": cache_dir, "colour": colour}

    def describe(self):
        return Description("1", (
            PlatformSpec("telling1-%dt" % self.told["threads"], "any", "fp32"),
            PlatformSpec("telling1-npu", "any", "fp32"),
        ))

    def prepare(self, job):
        told = dict(self.told, pid=os.getpid(), python=sys.executable, path="|".join(sys.path))
        return Prepared(conditions={name: str(value) for name, value in told.items()})

    def run(self):
        sum(range(1000))

    def profile(self, job, runs):
        return []
'''

Make = typing.Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes benches with the runtime `Telling` and a configuration, and closes them."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "telling.py").write_text(TELLING)
    (tmp_path / "model").write_bytes(b"any")
    made: list[Bench] = []

    def bench(config: AgentConfig) -> Bench:
        made.append(
            host_bench(
                BenchOptions(
                    "board",
                    None,
                    tmp_path / "work",
                    runtimes={"telling": "telling:Telling"},
                    search_path=[plugins],
                    limits=WorkerLimits(busy_wait_s=0.0),
                    config=config,
                )
            )
        )
        return made[-1]

    yield bench
    for each in made:
        each.close()


def written(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "agent.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_a_file_gives_threads_and_runtimes(tmp_path: Path) -> None:
    config = read_config(
        written(
            tmp_path,
            {
                "threads": [1, 4, 1],
                "runtimes": {"a": {"python": "/x/python", "options": {"k": [1]}}, "b": {}},
            },
        )
    )
    assert config.threads == (1, 4)
    assert config.runtimes["a"] == RuntimeConfig("/x/python", {"k": [1]}, True)
    assert config.runtimes["b"] == RuntimeConfig()
    assert read_config(written(tmp_path, {})) == AgentConfig()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{", "is not JSON"),
        ([], "the file must be an object"),
        ({"thread": [1]}, "unknown key 'thread'"),
        ({"threads": []}, "threads must be a list"),
        ({"threads": [0]}, "from 1"),
        ({"threads": [True]}, "from 1"),
        ({"threads": 4}, "must be a list"),
        ({"runtimes": []}, "runtimes must be an object"),
        ({"runtimes": {"a": 1}}, "runtimes.a must be an object"),
        ({"runtimes": {"a": {"interpreter": ""}}}, "unknown key 'interpreter'"),
        ({"runtimes": {"a": {"python": "python3"}}}, "absolute path"),
        ({"runtimes": {"a": {"options": []}}}, "options must be an object"),
        ({"runtimes": {"a": {"options": {"threads": 2}}}}, "at the top"),
        ({"runtimes": {"a": {"enabled": "no"}}}, "true or false"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, data: object, says: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(AgentUsageError, match=says) as raised:
        read_config(path)
    assert str(path) in str(raised.value)


def test_the_command_line_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path, {"runtimes": {"onnxruntimes": {}}})
    assert main(["describe", "--config", str(config)]) == 2
    assert "did you mean onnxruntime?" in capsys.readouterr().err
    assert main(["describe", "--config", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["describe", "--threads", "1,x"]) == 2
    assert "for example 1,2,4" in capsys.readouterr().err


def test_thread_counts_are_read() -> None:
    assert parse_threads("4, 1,4") == (4, 1)
    for wrong in ("", "1,,2", "-1", "0", "99999"):
        with pytest.raises(AgentUsageError, match="--threads"):
            parse_threads(wrong)


def test_each_number_of_threads_is_a_platform_and_a_process(make: Make, tmp_path: Path) -> None:
    bench = make(AgentConfig(threads=(1, 2)))
    (runtime,) = bench.describe()[1]
    names = [platform.name for platform in runtime.platforms]
    assert names == ["board-telling1-1t", "board-telling1-npu", "board-telling1-2t"]
    if len(os.sched_getaffinity(0)) > 2:
        assert len({platform.fingerprint for platform in runtime.platforms}) == 2
    told = {}
    for name in (*names, names[0]):
        result = measure(bench, name, tmp_path / "model")
        assert result.outcome == "ok", result.error_message
        told[name] = dict(result.conditions)
    assert [told[name]["threads"] for name in names] == ["1", "1", "2"]
    assert told[names[0]]["pid"] != told[names[1]]["pid"], "it was replaced by that of 2 threads"
    if len(os.sched_getaffinity(0)) > 2:
        assert [len(told[name]["core_mask"].split(",")) for name in names] == [1, 1, 2]


def test_a_runtime_gets_its_options_and_its_cache(make: Make, tmp_path: Path) -> None:
    bench = make(AgentConfig(runtimes={"telling": RuntimeConfig(options={"colour": "red"})}))
    told = measure(bench, "board-telling1-1t", tmp_path / "model").conditions
    assert told["colour"] == "red"
    assert told["cache_dir"] == str(tmp_path / "work" / "cache" / "telling")


def test_an_unknown_option_leaves_the_runtime_missing(make: Make) -> None:
    bench = make(AgentConfig(runtimes={"telling": RuntimeConfig(options={"color": "red"})}))
    (runtime,) = bench.describe()[1]
    assert not runtime.available
    assert "color" in runtime.missing


def test_a_disabled_runtime_is_not_looked_for(make: Make) -> None:
    bench = make(AgentConfig(runtimes={"telling": RuntimeConfig(enabled=False)}))
    assert bench.describe()[1] == []


def test_a_worker_may_have_an_interpreter_of_its_own(make: Make, tmp_path: Path) -> None:
    base = getattr(sys, "_base_executable", sys.executable)
    other = tmp_path / "env"
    (other / "bin").mkdir(parents=True)
    # An environment without a single package, as `python -m venv --without-pip` makes it.
    (other / "pyvenv.cfg").write_text(f"home = {Path(base).parent}\n")
    python = other / "bin" / "python"
    python.symlink_to(base)
    bench = make(AgentConfig(runtimes={"telling": RuntimeConfig(python=str(python))}))
    result = measure(bench, "board-telling1-1t", tmp_path / "model")
    assert result.outcome == "ok", result.error_message
    assert result.conditions["python"] == str(python)
    agent_folder = str(Path(__file__).parents[2] / "agent")
    assert agent_folder not in result.conditions["path"].split("|"), "nothing but the agent itself"


def test_a_missing_interpreter_leaves_the_runtime_missing(make: Make, tmp_path: Path) -> None:
    gone = RuntimeConfig(python=str(tmp_path / "gone" / "python"))
    (runtime,) = make(AgentConfig(runtimes={"telling": gone})).describe()[1]
    assert not runtime.available
    assert "no worker could be started" in runtime.missing
