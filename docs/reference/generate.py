"""Write `cli.md` beside this file from the `--help` of every command.

Usage: `python docs/reference/generate.py`, or with `--check` to fail when the page is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from latfarm_controller.cli.main import app

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 88
HEAD = """# The command line

Generated from `--help` by `python docs/reference/generate.py`: change the commands, not this page.
"""


def commands() -> Iterator[tuple[str, Any, str]]:
    """Every command, groups before their own: (full name, command, what its `--help` prints)."""
    yield from _walk(typer.main.get_command(app), "latfarm", None)


def _walk(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, str]]:
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=WIDTH)
    yield context.command_path, command, command.get_help(context)
    for child, found in getattr(command, "commands", {}).items():
        yield from _walk(found, child, context)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, _, text in commands():
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## {name}\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


def main() -> int:
    """Write the page, or check it; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail when stale")
    if parser.parse_args().check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE} is stale: python docs/reference/generate.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
