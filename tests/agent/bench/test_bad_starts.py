"""Runtimes that misbehave when they start, and an agent that follows a killed one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.worker import keeper
from tests.agent.bench.bad_kit import (
    LIMITS,
    STEADY,
    lay_out,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plugins, and with a file that must survive."""
    return lay_out(tmp_path_factory.mktemp("bad"))


def test_starts_that_fail_take_nobody_with_them(folder: Path, tmp_path: Path) -> None:
    (folder / "plugins" / "bad_import.py").write_text("import ctypes\nctypes.string_at(0)\n")
    wanted = {
        ("make", "segfault"): "SIGSEGV",
        ("describe", "system_exit"): "exit status 7",
        ("describe", "forge_garbage"): "corrupted",
        ("describe", "take_shared"): "GB of memory",
        ("make", "fork_on"): "processes; 16 are allowed",
    }
    acts = {f"{act}-{at}": (at, act) for at, act in wanted}
    says = {
        "none": "'NoneType'",
        "no version": "version is 'None'",
        "no platforms": "no platforms, or too many",
        "too many": "no platforms, or too many",
        "nameless": "name is ''",
        "escapes": "name is 'a ?[2J?'",
        "no settings": "settings must be texts",
        "not finite": "settings.size is nan",
        "objects": "not JSON serializable",
        "endless": "version is '1111",
    }
    runtimes = {name: "bad_acts:ActsAtStart" for name in acts}
    runtimes.update({f"misdescribed-{name}": "bad_acts:Misdescribed" for name in says})
    runtimes.update(steady="bad_acts:Steady", imported="bad_import:Any")
    configured = {
        name: RuntimeConfig(options={"at": at, "act": a}) for name, (at, a) in acts.items()
    }
    configured.update(
        {f"misdescribed-{name}": RuntimeConfig(options={"says": name}) for name in says}
    )
    before = keeper.descendants(os.getpid())
    bench = host_bench(
        BenchOptions(
            "board",
            None,
            tmp_path,
            runtimes=runtimes,
            search_path=[folder / "plugins"],
            config=AgentConfig(runtimes=configured),
            limits=LIMITS,
        )
    )
    try:
        found = {entry.name: entry for entry in bench.describe()[1]}
        for (at, act), text in wanted.items():
            assert text in found[f"{act}-{at}"].missing
        for name, text in says.items():
            assert text in found[f"misdescribed-{name}"].missing
        assert "SIGSEGV" in found["imported"].missing
        assert [entry.name for entry in found.values() if entry.available] == ["steady"]
        assert keeper.descendants(os.getpid()) <= before
        assert not list(tmp_path.glob("worker-*"))
    finally:
        bench.close()


def test_an_agent_cleans_up_after_one_that_was_killed(folder: Path, tmp_path: Path) -> None:
    for name in ("worker-left", "scratch-left"):
        (tmp_path / name / "tmp").mkdir(parents=True)
    cache = tmp_path / "cache" / "steady" / "kept"
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"\1" * (1 << 20))
    for allowed, kept in ((2 << 20, True), (1 << 19, False)):
        bench = host_bench(
            BenchOptions(
                "board",
                None,
                tmp_path,
                runtimes={"steady": "bad_acts:Steady"},
                search_path=[folder / "plugins"],
                limits=replace(LIMITS, cache_bytes=allowed),
            )
        )
        try:
            steady_platform = bench.describe()[1][0].platforms[0].name
            assert steady_platform == STEADY
            assert not list(tmp_path.glob("*-left"))
            assert cache.exists() == kept
        finally:
            bench.close()
