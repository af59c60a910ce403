"""Every command explains itself, and the pages of the reference are up to date."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "reference" / "generate.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("latfarm_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "zoo.md"])
def test_the_page_is_up_to_date(generator: ModuleType, name: str) -> None:
    made = {path.name: (path, text) for path, text in generator.PAGES}
    path, text = made[name]
    written = path.read_text(encoding="utf-8")
    assert written == text(), "stale: python docs/reference/generate.py"


def test_every_command_has_a_description_and_examples(generator: ModuleType) -> None:
    names = []
    for name, command, text in generator.commands():
        names.append(name)
        description = (command.help or "").strip()
        assert len(description.split()) >= 3, f"{name} has no description"
        examples = [line for line in text.splitlines() if line.startswith("    latfarm ")]
        assert examples, f"{name} has no example"
        inside = [line for line in examples if line.strip().startswith(name)]
        assert inside, f"no example of {name} shows {name}"
        for parameter in command.params:
            if parameter.name not in {"help", "verbose"}:
                assert getattr(parameter, "help", ""), f"{name}: {parameter.name} is not explained"
    assert {"latfarm predict", "latfarm campaign resume", "latfarm bundle import"} <= set(names)
    assert len(names) == len(set(names))


def test_every_listing_offers_json(generator: ModuleType) -> None:
    with_json = {
        name
        for name, command, _ in generator.commands()
        if any("--json" in getattr(parameter, "opts", ()) for parameter in command.params)
    }
    without = {name for name, *_ in generator.commands()} - with_json
    assert without == {
        "latfarm certs",
        "latfarm certs authority",
        "latfarm certs authority begin",
        "latfarm certs authority finish",
        "latfarm certs authority switch",
        "latfarm certs init",
        "latfarm certs issue",
        "latfarm certs keep",
        "latfarm certs revoke",
        "latfarm",
        "latfarm serve",
        "latfarm boards console",
        "latfarm boards accept",
        "latfarm boards add",
        "latfarm boards power",
        "latfarm boards remove",
        "latfarm boards set",
        "latfarm campaign",
        "latfarm engines",
        "latfarm results export",
        "latfarm backup",
        "latfarm db",
        "latfarm probes",
        "latfarm fusion",
        "latfarm fusion edit",
        "latfarm bundle export",
        "latfarm bundle import",
        "latfarm graph",
        "latfarm zoo",
    }


def test_summaries_in_lists_of_commands_end_within_80_columns(generator: ModuleType) -> None:
    for name, command, _ in generator.commands():
        listed = getattr(command, "commands", {})
        context = command.context_class(command, info_name=name, terminal_width=80)
        shown = command.get_help(context).partition("Commands:")[2].splitlines()
        assert not [line for line in shown if line.endswith("...")], name
        assert all(len(line) <= 80 for line in shown), name
        assert len(shown) >= len(listed)


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from latfarm_controller.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'ray', 'grpc', 'duckdb', 'onnx', 'numpy', 'sklearn', 'pydantic', 'pyarrow',"
        " 'google.protobuf', 'psutil', 'rich.console'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    assert "Commands:" in done.stdout
