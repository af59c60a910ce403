"""Which seeds are run, and what is kept for the next time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.run import chosen, earlier, parsed


def seeds(*words: str) -> list[int]:
    options = parsed(words)
    passed = frozenset(report["seed"] for report in earlier(options))
    return [scenario.seed for scenario in chosen(options, passed)]


def test_two_hundred_seeds_are_run_unless_told_otherwise() -> None:
    assert seeds() == list(range(1, 201))
    assert seeds("--runs", "3", "--first", "9") == [9, 10, 11]
    assert seeds("--seed", "42") == [42]


def test_seeds_that_have_passed_are_left_out_on_request(tmp_path: Path) -> None:
    kept = tmp_path / "faults.json"
    words = ("--runs", "4", "--json", str(kept))
    assert seeds(*words, "--resume") == [1, 2, 3, 4]
    kept.write_text(
        json.dumps([{"seed": seed, "passed": passed} for seed, passed in ((1, True), (2, False))])
    )
    assert seeds(*words, "--resume") == [2, 3, 4]
    assert seeds(*words) == [1, 2, 3, 4]


def test_a_seed_is_the_same_scenario_alone() -> None:
    (alone,) = chosen(parsed(["--seed", "8"]), frozenset())
    assert alone == chosen(parsed([]), frozenset())[7]
    assert alone.ray
    (quick,) = chosen(parsed(["--seed", "8", "--quick"]), frozenset())
    assert not quick.ray
