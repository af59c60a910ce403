"""Write the tables of variables in the READMEs of the collection's roles.

Usage: `python ansible/role_tables.py`; with `--check` it fails if a table is stale. Each table
comes from `meta/argument_specs.yml` of its role. Roles also name the variables of boards that
their files read.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROLES = Path(__file__).parent / "collections/ansible_collections/latfarm/farm/roles"
"""The folder of the collection's roles."""

SHARED = "board"
"""The role that declares the variables that every role of a board may read."""

BEGIN = "<!-- Written by ansible/role_tables.py from meta/argument_specs.yml. -->"
END = "<!-- End of what is written. -->"
_NAME = re.compile(r"\blatfarm_[a-z0-9_]+")


def specs(role: str) -> dict[str, dict[str, Any]]:
    """The options of a role by the part of the role that takes them."""
    data = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())
    return {part: entry.get("options") or {} for part, entry in data["argument_specs"].items()}


def read_of_boards(role: str) -> list[str]:
    """Variables of boards that the files of another role name."""
    if role == SHARED:
        return []
    declared = specs(SHARED)["main"]
    files = [path for path in (ROLES / role).rglob("*") if path.suffix in (".yml", ".j2", ".sh")]
    named = {name for path in files for name in _NAME.findall(path.read_text())}
    return sorted(named & set(declared))


def table(options: dict[str, Any]) -> list[str]:
    """The lines of one table."""
    lines = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for name, option in options.items():
        kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
        default = f"`{json.dumps(option['default'])}`" if "default" in option else ""
        default = "required" if option.get("required") else default
        meaning = " ".join(option["description"].split())
        if "choices" in option:
            meaning += f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}."
        lines.append(f"| `{name}` | {kind} | {default} | {meaning} |")
    return lines


def section(role: str) -> str:
    """What stands between the two marks in the README of a role."""
    lines: list[str] = []
    told: list[dict[str, Any]] = []
    for part, options in specs(role).items():
        if options and options not in told:
            told.append(options)
            lines += [
                *([f"Of `tasks_from: {part}`:", ""] if part != "main" else []),
                *table(options),
                "",
            ]
    if read := read_of_boards(role):
        names = ", ".join(f"`{name}`" for name in read)
        lines += [f"It reads these variables of a [board](../{SHARED}/README.md): {names}.", ""]
    return "\n".join(lines)


def readme(role: str) -> str:
    """The README of a role with its present table.

    Raises:
        ValueError: the file does not have both marks.
    """
    text = (ROLES / role / "README.md").read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README of {role} lacks the line {END if begin else BEGIN!r}")
    return f"{before}{BEGIN}\n\n{section(role)}{END}{after}"


def main() -> int:
    """Write the tables, or tell which are stale."""
    stale = []
    for folder in sorted(path for path in ROLES.iterdir() if path.is_dir()):
        text = readme(folder.name)
        if text != (folder / "README.md").read_text():
            stale.append(folder.name)
            if "--check" not in sys.argv:
                (folder / "README.md").write_text(text)
    if stale and "--check" in sys.argv:
        print(f"stale: {', '.join(stale)}: python ansible/role_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
