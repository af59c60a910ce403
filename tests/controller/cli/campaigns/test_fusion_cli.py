"""`latfarm fusion` on files of rules: show, edit and compare, and their errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from latfarm_predictors.kernels.fusion import FusionRules

Latfarm = Callable[..., Any]

MINE = FusionRules(
    pairs={
        ("Conv", "Relu"): "fused",
        ("Conv", "Add"): "fused",
        ("Add", "Relu"): "undecided",
        ("Relu", "Conv"): "separate",
    },
    multi_inbound=1,
    platform="mine",
)
TRUTH = FusionRules(
    pairs={
        ("Conv", "Relu"): "fused",
        ("Conv", "Add"): "separate",
        ("Add", "Relu"): "fused",
        ("Relu", "Conv"): "separate",
        ("MaxPool", "Conv"): "separate",
    },
    platform="truth",
)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(MINE.dumps())
    return path


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    path = tmp_path / "truth.json"
    path.write_text(TRUTH.dumps())
    return path


def test_show_a_file(latfarm: Latfarm, mine: Path) -> None:
    ended = latfarm("fusion", "show", "--rules", mine)
    assert ended.code == 0
    assert "multi-inbound 1" in ended.out
    assert json.loads(latfarm("fusion", "show", "--rules", mine, "--json").out) == MINE.to_json()


def test_compare_takes_the_second_for_the_truth(latfarm: Latfarm, mine: Path, truth: Path) -> None:
    found = json.loads(latfarm("fusion", "compare", mine, truth, "--json").out)
    assert found["differ"] == {
        "Add+Relu": ["undecided", "fused"],
        "Conv+Add": ["fused", "separate"],
    }
    assert found["only_right"] == {"MaxPool+Conv": "separate"}
    assert found["options"] == {"multi_inbound": [1, 0]}
    assert (found["precision"], found["recall"]) == (0.5, 0.5)
    assert not found["equal"]
    shown = latfarm("fusion", "compare", mine, truth)
    assert "precision 0.50, recall 0.50" in shown.out
    assert json.loads(latfarm("fusion", "compare", mine, mine, "--json").out)["equal"]


def test_edit_by_options(latfarm: Latfarm, mine: Path, tmp_path: Path) -> None:
    to = tmp_path / "changed.json"
    changes = ("--set", "Conv+Add=separate", "--set", "Mul+Relu=fused", "--multi-inbound", "0")
    assert latfarm("fusion", "edit", mine, *changes, "-o", to).code == 0
    changed = FusionRules.loads(to.read_text())
    assert changed.verdict("Conv", "Add") == "separate"
    assert changed.verdict("Mul", "Relu") == "fused"
    assert changed.multi_inbound == 0
    assert FusionRules.loads(mine.read_text()) == MINE
    assert latfarm("fusion", "edit", mine, "--set", "Add+Relu=fused").code == 0
    assert FusionRules.loads(mine.read_text()).fuses("Add", "Relu")


def test_edit_in_an_editor(latfarm: Latfarm, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edited(text: str, extension: str) -> str:
        assert extension == ".json"
        return text.replace('"Conv+Relu": "fused"', '"Conv+Relu": "separate"')

    monkeypatch.setattr(click, "edit", edited)
    assert latfarm("fusion", "edit", mine).code == 0
    assert FusionRules.loads(mine.read_text()).verdict("Conv", "Relu") == "separate"
    before = mine.read_text()
    monkeypatch.setattr(click, "edit", lambda text, extension: text.replace("separate", "maybe"))
    ended = latfarm("fusion", "edit", mine)
    assert ended.code == 2
    assert "maybe" in ended.line
    assert mine.read_text() == before
    (kept,) = mine.parent.glob(f"{mine.stem}-edited-*.json")
    assert f"correct {kept}, then copy it to {mine}" in ended.line
    assert kept.read_text() == before.replace("separate", "maybe")


@pytest.mark.parametrize("editor", ["", "no-such-editor", "false", "'"])
def test_without_an_editor_the_remedy_is_told(
    latfarm: Latfarm, mine: Path, monkeypatch: pytest.MonkeyPatch, editor: str
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor)
    if editor != "false":
        monkeypatch.setenv("PATH", str(mine.parent))
    ended = latfarm("fusion", "edit", mine)
    assert ended.code == 2
    assert "set EDITOR to an editor, or name the changes with --set" in ended.line
    assert FusionRules.loads(mine.read_text()) == MINE


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["edit", "{mine}", "--set", "Conv=fused"], "written as Conv+Relu=fused"),
        (["edit", "{mine}", "--set", "Conv+Relu=maybe"], "fused, separate or undecided"),
        (["edit", "toy-board", "--set", "Conv+Relu=fused"], "-o FILE"),
        (["edit", "{mine}", "--set", "A+B=fused", "-o", "{none}/x.json"], "no such folder"),
        (["compare", "{mine}", "{none}"], "there is no bundle for platform"),
        (["compare", "{mine}", "name@known"], "used or detected"),
        (["compare", "{broken}", "{mine}"], "not JSON"),
        (["show", "--rules", "{none}"], "cannot be read"),
        (["show", "--rules", "{mine}", "-p", "toy"], "not both"),
        (["detect", "-p", "toy", "-o", "{none}/rules.json"], "no such folder"),
    ],
)
def test_wrong_words_are_told_in_one_line(
    latfarm: Latfarm, mine: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    places = {"mine": mine, "none": tmp_path / "none", "broken": broken}
    ended = latfarm("fusion", *(text.format(**places) for text in arguments))
    assert ended.code == 2
    assert says in ended.line
    assert FusionRules.loads(mine.read_text()) == MINE
