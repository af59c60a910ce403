"""README's commands and Python code run unchanged, and print what README shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks.models import tables as exports
from benchmarks.startup import commands as start_ups
from benchmarks.unseen.published import (
    ACCURACY_HEAD,
    INTERVALS_HEAD,
    README_HEAD,
    SEEDS_HEAD,
    TRANSFORMERS_HEAD,
    published,
    published_transformers,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+(\.\d+)?|\b[0-9a-f]{12}\b")


def blocks(language: str, text: str = README) -> list[str]:
    """The code blocks of one language in a text."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def shape(line: str) -> str:
    """A line with `#` for each number, and with single spaces."""
    return " ".join(NUMBER.sub("#", line).split())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("reader")
def test_the_commands_print_what_is_shown_and_the_python_runs(reader: Any) -> None:
    (console,) = blocks("console")
    for part in console.split("$ ")[1:]:
        command, *shown = part.splitlines()
        name, *arguments = shlex.split(command)
        assert name == "latfarm"
        told = [shape(line) for line in reader.latfarm(*arguments).splitlines()]
        for line in shown:
            assert line == "..." or shape(line) in told, f"{command}: {line}"
    (python,) = blocks("python")
    program = reader.folder / "readme.py"
    program.write_text(python, encoding="utf-8")
    told = reader.python(program).splitlines()
    assert len(python.split("\n\n")) == 3
    assert re.fullmatch(r"[\d.]+ ms, between [\d.]+ and [\d.]+", told[0])


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README + RESULTS, re.MULTILINE))
    assert named
    assert named <= targets


def test_it_is_short() -> None:
    prose = re.sub(r"```.*?```|\]\([^)]*\)", "", README, flags=re.DOTALL)
    words = re.findall(r"[A-Za-z][\w.'-]*", prose)
    assert len(words) <= 600


def test_the_demos_figures_are_those_of_its_file() -> None:
    demo = json.loads((ROOT / "benchmarks" / "demo.json").read_text(encoding="utf-8"))
    summary = demo["summary"]
    assert f"median error is {summary['median_error'] * 100:.1f} %" in README
    assert f"the worst {summary['worst_error'] * 100:.1f} %" in README
    rows = dict(re.findall(r"^(\S+) +(\d+\.\d\d .*)$", RESULTS, re.MULTILINE))
    for network in demo["networks"]:
        low_ms, high_ms = network["interval_ms"]
        measured = f"{network['measured_ms']:.2f} ±{network['standard_error_ms']:.2f}"
        told = (
            f"{network['timed_ms']:.2f} {measured} {network['predicted_ms']:.2f} "
            f"{network['error'] * 100:+.1f} % {low_ms:.2f} to {high_ms:.2f}"
        )
        assert " ".join(rows[network["network"]].split()).startswith(told)


def test_the_tables_of_networks_are_those_of_their_file() -> None:
    for figures in published():
        assert figures.readme_row() in README.splitlines()
        assert figures.accuracy_row() in RESULTS.splitlines()
        assert figures.intervals_row() in RESULTS.splitlines()
        for row in figures.seed_rows():
            assert row in RESULTS.splitlines()
    assert "\n".join(README_HEAD) in README
    assert "\n".join(ACCURACY_HEAD) in RESULTS
    assert "\n".join(INTERVALS_HEAD) in RESULTS
    assert "\n".join(SEEDS_HEAD) in RESULTS
    assert "\n".join([*TRANSFORMERS_HEAD, *published_transformers()]) in RESULTS


def test_the_tables_of_exports_and_of_start_ups_are_those_of_their_files() -> None:
    lines = RESULTS.splitlines()
    models = json.loads((ROOT / "benchmarks" / "models" / "models.json").read_text("utf-8"))
    for line in exports.published(models["families"]):
        assert line in lines
    share = models["overall"]["within10"] / models["overall"]["judged"]
    assert f"a median error of {models['overall']['median_error'] * 100:.1f} %" in RESULTS
    assert f"{share * 100:.0f} % within 10 %" in RESULTS
    commands = json.loads((ROOT / "benchmarks" / "startup" / "startup.json").read_text("utf-8"))
    for line in start_ups.published(commands["commands"]):
        assert line in lines
