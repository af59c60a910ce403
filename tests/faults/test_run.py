"""Which seeds are run, what is kept for the next time, and the lines and the table of the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.faults import scenario as kinds
from tests.faults.checks import Findings
from tests.faults.run import chosen, earlier, parsed
from tests.faults.scenario import drawn
from tests.faults.summary import TITLES, line, table


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


def report(seed: int, findings: Findings, faults: list[str] | None = None) -> dict[str, Any]:
    made = {**drawn(seed).to_json(), "faults": faults or [kinds.CONTROLLER_KILLED]}
    return {**made, "passed": findings.passed, "wall_s": 12.3, "findings": findings.to_json()}


GOOD = report(4, Findings(answers=90, controller_s=2.5, agent_s=4.0, failures={"MODEL_TIMEOUT": 3}))
BAD = report(7, Findings(answers=88, lost=2, story="it hung"), [kinds.SILENCE, kinds.DRIFTS])


def test_a_run_is_one_line_with_its_seed() -> None:
    told = line(GOOD)
    assert told.startswith("seed    4")
    assert "ok; again after 2.5 s, 4.0 s" in told
    assert "[controller killed]" in told
    assert "Ray" in told
    assert "\n" not in told


def test_a_failed_run_says_what_is_wrong() -> None:
    assert "FAILED: lost 2; it hung" in line(BAD)


def test_the_table_adds_up_and_names_the_seeds_that_failed() -> None:
    told = table([GOOD, BAD])
    assert "2 runs, 1 of them on the real `latfarm serve` with Ray; 1 failed" in told
    assert all(title in told for title in TITLES.values())
    (lost,) = [text for text in told.splitlines() if text.startswith(TITLES["lost"])]
    assert lost.split()[-1] == "2"
    (agent,) = [text for text in told.splitlines() if text.startswith(TITLES["agent_s"])]
    assert "4.0 at most; 1 of 1 over 3" in agent
    (ray,) = [text for text in told.splitlines() if text.startswith(TITLES["ray_s"])]
    assert ray.endswith("-")
    assert "typed failures: MODEL_TIMEOUT 3" in told
    assert "failed seeds, each again with --seed N: 7" in told
    assert any(text.startswith(kinds.DRIFTS) and "1 failed" in text for text in told.splitlines())
