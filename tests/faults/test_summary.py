"""The lines and the table of the runs."""

from __future__ import annotations

from typing import Any

from tests.faults import scenario as kinds
from tests.faults.checks import Findings
from tests.faults.scenario import drawn
from tests.faults.summary import TITLES, line, table


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
