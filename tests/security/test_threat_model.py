"""Each threat in `docs/security.md` is numbered and names a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from latfarm_protos.trust.identity import REASONS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/security.md").read_text(encoding="utf-8")
THREATS = TEXT.partition("\n## Threats\n")[2].partition("\n## ")[0]

ATTACKS = (
    *("other CA", "expired", "self-signed", "wrong role"),
    *("revoked while connected", "expired while connected", "plaintext", "HTTP/1", "TLS 1.2"),
    *("stale and future tokens", "path tricks", "claims of 1 EB", "slow senders"),
    *("two controllers at one home", "clock jumps of a day", "full disk while measuring"),
    "kill -9 of every process at every stage",
)


@cache
def named_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_threat_has_a_defence_and_a_test() -> None:
    lines = [line for line in THREATS.splitlines() if re.match(r"\d", line)]
    assert len(lines) >= 30
    assert [int(line.partition(".")[0]) for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        tests = line.partition(" Test: ")[2].split(", ")
        for test in tests:
            named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
            assert named is not None, line
            assert named[2] in named_in(ROOT / named[1]), line


def test_each_attack_of_the_list_has_tests() -> None:
    table = TEXT.partition("\n## The attack's own list\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    attacks = dict(rows[1:])
    assert tuple(attacks) == ATTACKS
    for attack, tests in attacks.items():
        assert "::" in tests or tests.startswith("the same"), attack


def test_every_test_that_the_document_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 100
    for path, test in named:
        assert (ROOT / path).exists(), path
        assert not test or test in named_in(ROOT / path), f"{path}::{test}"


def test_the_document_lists_all_reasons_of_refusals() -> None:
    table = TEXT.partition("\n## Reasons in the log\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table.partition("|---|")[2])) >= set(REASONS) - {"latfarm"}
