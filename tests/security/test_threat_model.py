"""Each threat in `docs/security.md` is numbered and names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from latfarm_protos.trust.identity import REASONS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/security.md").read_text(encoding="utf-8")
THREATS = TEXT.partition("\n## Threats\n")[2].partition("\n## ")[0]


def named_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_threat_has_a_defence_and_a_test() -> None:
    lines = [line for line in THREATS.splitlines() if re.match(r"\d", line)]
    assert len(lines) >= 30
    assert [int(line.partition(".")[0]) for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        named = re.search(r"Test: `(tests/[\w/]+\.py)::(test_\w+)`$", line)
        assert named is not None, line
        assert named[2] in named_in(ROOT / named[1]), line


def test_the_document_lists_all_reasons_of_refusals() -> None:
    table = TEXT.partition("\n## Reasons in the log\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table.partition("|---|")[2])) >= set(REASONS) - {"latfarm"}
