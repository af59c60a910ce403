"""Write the pages beside this file: `cli.md` from the `--help` of every command, and `zoo.md`.

Usage: `python docs/reference/generate.py`, or with `--check` to fail when a page is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from latfarm_controller import zoo
from latfarm_controller.cli.main import app
from latfarm_predictors.graph.totals import macs_of, trained_parameters

PAGE = Path(__file__).with_name("cli.md")
ZOO_PAGE = Path(__file__).with_name("zoo.md")
WIDTH = 88
HEAD = """# The command line

`python docs/reference/generate.py` generates this page from the `--help` of every command. Change
the commands, not this page.
"""
ZOO_HEAD = """# The zoo

`python docs/reference/generate.py` generates this page from the catalogues in
`controller/latfarm_controller/zoo/`. Change those, not this page.

Every family is a network that can be built at any width, resolution and batch size. The table shows
the families as published, at batch 1.

- **Parameters** are the trained ones; of a batch normalisation, these are its scale and bias.
- **Multiply-adds** are those of convolutions and matrix products.
- **Published** is the figure of the publication, or else of the named reference implementation,
  with the difference that is allowed: 1 %, or the rounding of the figure if that is coarser.
  "Exact" means exact to the last parameter. A test checks every row.
- **Lines**: families that share a line are relatives. A campaign that must not see a network leaves
  out all families that share a line with it.
- **Sampled** families are those from which priors and calibration networks are drawn.

"""
COLUMNS = (
    *("family", "task", "input", "parameters", "published", "multiply-adds", "published"),
    *("figures from", "publication", "lines", "sampled"),
)


def commands() -> Iterator[tuple[str, Any, str]]:
    """Every command, groups before their own: (full name, command, what its `--help` prints)."""
    yield from _walk(typer.main.get_command(app), "latfarm", None)


def _walk(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, str]]:
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=WIDTH)
    yield context.command_path, command, command.get_help(context)
    for child, found in getattr(command, "commands", {}).items():
        yield from _walk(found, child, context)


def page() -> str:
    """The whole page of the command line."""
    parts = [HEAD]
    for name, _, text in commands():
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## {name}\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


def zoo_page() -> str:
    """The whole page of the zoo: a table of its families, each of them built."""
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(_zoo_row, zoo.families().values())]
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return ZOO_HEAD + "\n".join(lines) + "\n"


def _zoo_row(family: zoo.Family) -> list[str]:
    size = family.resolution
    side = f"{size} tokens" if family.task == "language" else f"{size} x {size}"
    if family.drawn:
        built = ["drawn", "", "drawn", "", ""]
    else:
        graph = family.build()
        built = [f"{trained_parameters(graph):,}", "", f"{macs_of(graph) / 1e6:,.1f} M", "", ""]
    said = family.published
    if said is not None:
        built[1] = _published(said.parameters, said.parameters_tolerance)
        if said.macs is not None:
            built[3] = _published(said.macs, said.macs_tolerance)
        built[4] = said.source
    lines = ", ".join(sorted(family.lineage))
    sampled = "yes" if family.sampled else "no"
    return [f"`{family.name}`", family.task, side, *built, family.source, lines, sampled]


def _published(figure: float, tolerance: float) -> str:
    if tolerance == 0:
        return f"{figure:,.0f} exact"
    return f"{figure / 1e6:,.7g} M ± {tolerance * 100:.2g} %"


PAGES: tuple[tuple[Path, Callable[[], str]], ...] = ((PAGE, page), (ZOO_PAGE, zoo_page))


def main() -> int:
    """Write the pages, or check them; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail when stale")
    check = parser.parse_args().check
    stale = 0
    for path, made in PAGES:
        text = made()
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is stale: python docs/reference/generate.py", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
