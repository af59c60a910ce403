"""Over all commands, an option has one name and one meaning; old spellings work, and are hidden."""

from __future__ import annotations

import re
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from latfarm_agent.arguments import make_parser
from latfarm_controller.cli.main import app
from latfarm_controller.cli.shell.old_spellings import (
    ARGUMENT,
    CommandLine,
    OldSpellings,
    rewritten,
)

MEANINGS = {
    r"Seconds to wait while another command holds the store": "--wait",
    r"Name of the platform|measurements of this platform|this platform": "--platform",
    r"^((New )?(folder|file) (to write|to keep)|also write the rules)": "--output",
    r"as HTML": "--html",
    r"as Markdown": "--markdown",
    r"as SVG": "--svg",
    r"as (the )?JSON on standard output|Print JSON": "--json",
    r"^(Largest )?number of (newest )?\w+ to (list|show)": "--limit",
    r"^(Replace|Overwrite) |^Change the entry": "--replace",
    r"Random seed": "--seed",
    r"Batch size": "--batch",
    r"^Data types?\b": "--dtype",
    r"Thread counts": "--threads",
    r"Name for the campaign": "--name",
    r"of (the|this) campaign( to report on|, named|with this id)": "--campaign",
    r"Host name or address": "--host",
    r"^Licence|Under which licence": "--licence",
    r"energy of an inference": "--energy",
    r"whose first line is the passphrase": "--passphrase-file",
}
"""What the help of an option says, and the only option that may say it."""

WRITES_ITS_ARGUMENT = {
    "latfarm bundle export",
    "latfarm db export",
    "latfarm db snapshot",
    "latfarm results export",
}
"""Commands that do nothing but write a file or folder; it is their argument."""


def commands() -> Iterator[tuple[str, Any]]:
    """All commands and groups of `latfarm`, with their full names."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        for child, found in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {child}", found)

    yield from walk("latfarm", typer.main.get_command(app))


COMMANDS = dict(commands())


def options() -> Iterator[tuple[str, Any]]:
    """All options of all commands, with the names of their commands."""
    for name, command in COMMANDS.items():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                yield name, parameter


def short_and_long() -> Iterator[tuple[str, str]]:
    """The short options of `latfarm` and `latfarm-agent`, each with its long option."""
    for _, option in options():
        long = next(name for name in option.opts if name.startswith("--"))
        yield from ((name, long) for name in option.opts if not name.startswith("--"))
    (commands,) = (a.choices for a in make_parser()._actions if isinstance(a.choices, dict))
    for parser in commands.values():
        for action in parser._actions:
            long = next((name for name in action.option_strings if name.startswith("--")), "")
            yield from ((n, long) for n in action.option_strings if not n.startswith("--"))


def kind_of(option: Any) -> Any:
    """The type of an option's value; that of one value where the option may be repeated."""
    kind = option.type_descriptor.annotation
    while typing.get_origin(kind) in (list, typing.Union, types.UnionType):
        (kind,) = (part for part in typing.get_args(kind) if part is not type(None))
    return kind


def test_a_short_option_means_one_thing() -> None:
    long = defaultdict(set)
    for short, name in short_and_long():
        long[short].add(name)
    assert {short: names for short, names in long.items() if len(names) > 1} == {}
    assert long["-p"] == {"--platform"}
    assert long["-o"] == {"--output"}


def test_a_long_option_has_its_short_option_everywhere() -> None:
    short: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for _, option in options():
        names = tuple(name for name in option.opts if not name.startswith("--"))
        short[option.opts[0]].add(names)
    assert {name: found for name, found in short.items() if len(found) > 1} == {}


def test_an_option_takes_the_same_kind_of_value_everywhere() -> None:
    kinds = defaultdict(set)
    for _, option in options():
        for name in option.opts:
            kinds[name].add(kind_of(option))
    several = {name: found for name, found in kinds.items() if len(found) > 1}
    assert several == {}


def test_a_meaning_has_one_option_and_is_no_argument() -> None:
    wrong = []
    for name, command in COMMANDS.items():
        for parameter in command.params:
            for meaning, option in MEANINGS.items():
                if not re.search(meaning, parameter.help or "", re.IGNORECASE):
                    continue
                is_option = parameter.param_type_name == "option"
                written = option == "--output" and name in WRITES_ITS_ARGUMENT
                if (is_option and option not in parameter.opts) or (not is_option and not written):
                    wrong.append(f"{name}: {parameter.opts} means what {option} means")
    assert wrong == []


def test_every_meaning_is_the_help_of_some_option() -> None:
    helps = [option.help or "" for _, option in options()]
    for meaning in MEANINGS:
        assert any(re.search(meaning, text, re.IGNORECASE) for text in helps), meaning


def test_options_that_say_the_same_are_spelled_the_same() -> None:
    spelled = defaultdict(set)
    for _, option in options():
        spelled[option.help].add(option.opts[0])
    assert {text: names for text, names in spelled.items() if len(names) > 1} == {}


def test_commands_that_read_models_can_set_the_sizes_that_these_leave_open() -> None:
    """The message that refuses such a model names these two options, whatever the command."""
    reading = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in COMMANDS.items()
        if any("ONNX" in (p.help or "") and p.param_type_name == "argument" for p in command.params)
    }
    assert {"latfarm query", "latfarm campaign run", "latfarm probes predict"} <= set(reading)
    assert {name for name, known in reading.items() if not {"--batch", "--shape"} <= known} == set()


OLD = {name: command for name, command in COMMANDS.items() if hasattr(command, "old")}


@pytest.mark.parametrize("name", OLD)
def test_old_spellings_are_hidden_and_lead_to_options_of_today(name: str) -> None:
    command = OLD[name]
    known = {option for parameter in command.params for option in parameter.opts}
    today = {*command.old.options.values(), *command.old.flags.values()} - {ARGUMENT}
    assert today <= known
    assert not set(command.old.options) & known
    assert not command.old.first or command.old.first in known
    context = command.context_class(command, info_name=name, terminal_width=88)
    for option in command.old.options:
        assert not re.search(rf"(?<!\S){option}(?!\S)", command.get_help(context)), option


@pytest.mark.parametrize(
    ("words", "parameter", "value"),
    [
        ("bundle show toy", "platform", "toy"),
        ("bundle export toy file.zip", "platform", "toy"),
        ("bundle remove toy --all", "platform", "toy"),
        ("bundle retrain --wait 5 toy", "platform", "toy"),
        ("report toy --json", "platform", "toy"),
        ("engines run --platforms local-*", "platforms", "local-*"),
        ("engines run --dtypes=int8", "dtypes", "int8"),
        ("engines run --networks resnet18", "networks", "resnet18"),
        ("boards drain pixel4 --wait", "until_idle", True),
        ("boards drain pixel4 --wait --json", "until_idle", True),
        ("boards drain pixel4 --wait-store 300 --wait", "wait_s", 300.0),
        ("boards resume pixel4 --wait-store=7", "wait_s", 7.0),
        ("boards quarantine pixel4 --wait-store 7", "wait_s", 7.0),
        ("audit --last 3", "limit", 3),
        ("certs issue ada --role agent --name a --name b", "names", ["a", "b"]),
        ("certs init --name a", "names", ["a"]),
        ("fusion detect -p toy --method paper", "method", "paper"),
        ("demo --picture x.svg", "svg", "x.svg"),
        ("zoo export alexnet --out there --force", "replace", True),
        ("zoo export alexnet -o there --rule wide", "rule", "wide"),
        ("graph build m.onnx --out there", "out", "there"),
        ("db repair --to there", "to", "there"),
        ("boards wheels --python 3.8 --arch x --own there --folder here", "own", "there"),
        ("campaign run networks -p toy --model a.onnx --model b.onnx", "models", "b.onnx"),
    ],
)
def test_an_old_spelling_means_what_it_meant(
    words: str, parameter: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    *arguments, last = words.split()
    arguments.append(last)
    depth = 2 if f"latfarm {' '.join(arguments[:2])}" in COMMANDS else 1
    name = " ".join(("latfarm", *arguments[:depth]))
    context = COMMANDS[name].make_context(name, arguments[depth:])
    found = context.params[parameter]
    if isinstance(found, list) and not isinstance(value, list):
        found = found[-1]
    assert str(found) == str(value)
    told = capsys.readouterr().err
    assert told.count("\n") >= 1
    assert "the next release refuses the old way" in told


@pytest.mark.parametrize(
    "words",
    [
        "boards drain pixel4 --wait 5 --until-idle",
        "boards drain pixel4 --wait=5",
        "bundle export -p toy file.zip",
        "bundle export --platform=toy file.zip",
        "bundle export -ptoy file.zip",
        "report -p toy",
        "campaign run networks -p toy a.onnx b.onnx",
    ],
)
def test_a_spelling_of_today_is_not_commented(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = words.split()
    depth = 2 if f"latfarm {' '.join(arguments[:2])}" in COMMANDS else 1
    name = " ".join(("latfarm", *arguments[:depth]))
    COMMANDS[name].make_context(name, arguments[depth:])
    assert capsys.readouterr().err == ""


LINE = CommandLine(frozenset({"-p", "--platform", "--to"}), frozenset({"-p", "--platform"}), 1)


@pytest.mark.parametrize(
    ("typed", "today"),
    [
        (["toy", "file"], ["--platform", "toy", "file"]),
        (["file", "-p", "toy"], ["file", "-p", "toy"]),
        (["--", "toy", "file"], ["--platform", "toy", "--", "file"]),
        (["--", "--out", "file"], ["--platform", "--out", "--", "file"]),
        (["--out", "--out", "file"], ["--to", "--out", "file"]),
        (["--to", "--out", "file"], ["--to", "--out", "file"]),
        (["--out"], ["--to"]),
        (["--out=a=b"], ["--to=a=b"]),
        (["-"], ["-"]),
        (["--model"], []),
        (["--model=a", "file"], ["--platform", "file", "a"]),
        (["-p", "toy", "--model", "a"], ["-p", "toy", "a"]),
    ],
)
def test_command_lines_are_rewritten(typed: list[str], today: list[str]) -> None:
    old = OldSpellings({"--out": "--to", "--model": ARGUMENT}, first="--platform")
    made, told = rewritten(typed, old, LINE)
    assert made == today
    assert bool(told) == (typed != today)


def test_nothing_is_moved_where_any_number_of_arguments_may_stand() -> None:
    line = CommandLine(frozenset(), frozenset({"--platform"}), None)
    words = ["a", "b", "c"]
    assert rewritten(words, OldSpellings(first="--platform"), line) == (words, [])


def test_a_command_with_an_old_spelling_still_runs(latfarm: Callable[..., Any]) -> None:
    ended = latfarm("audit", "--last", "2", "--json")
    assert ended.code == 0
    assert ended.out == "[]\n"
    assert (
        ended.line == "latfarm: audit: --last is now --limit; the next release refuses the old way"
    )
