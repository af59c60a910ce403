"""The reports of runs, one line each, and the table at the end. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.faults.checks import COUNTS

WANTED_S = {"controller_s": 15.0, "ray_s": 15.0, "agent_s": 3.0}
"""Within how many seconds every board should measure again; told, not judged."""

TITLES = {
    "lost": "requests without an answer",
    "untyped": "failures without an error code",
    "doubled": "answers that the store has twice",
    "changed": "answers with another value than undisturbed",
    "two_holders": "boards that measured for two leases at once",
    "leases": "leases left",
    "spooled": "results left in spools",
    "processes": "processes left",
    "hands": "runs that needed a hand",
    "repeated": "finished measurements repeated after the controller's death",
    "controller_s": "seconds until every board measures again, controller killed",
    "ray_s": "longest pause of a board in seconds, raylet or GCS killed",
    "agent_s": "seconds until its boards measure again, agent restarted",
}
"""What the table calls each figure."""

Report = Mapping[str, Any]
"""One run: the scenario, `findings`, `passed` and `wall_s`."""


def line(report: Report) -> str:
    """One run in one line."""
    where = "Ray" if report["ray"] else "no Ray"
    faults = ", ".join(report["faults"])
    found = report["findings"]
    wrong = [f"{name} {found[name]}" for name in COUNTS if found[name]]
    wrong += [found["story"]] if found["story"] else []
    told = "ok" if report["passed"] else f"FAILED: {'; '.join(wrong)}"
    times = [f"{found[name]:.1f} s" for name in WANTED_S if found[name] is not None]
    again = f"; again after {', '.join(times)}" if times else ""
    again += f"; {found['missed']} struck nothing" if found["missed"] else ""
    return (
        f"seed {report['seed']:>4}  {report['wall_s']:6.1f} s  {where:<6}  {report['boards']:<8}  "
        f"{found['answers']}/{report['requests']} answers  [{faults}]  {told}{again}"
    )


def table(reports: Sequence[Report]) -> str:
    """The figures of all runs."""
    ray = sum(bool(report["ray"]) for report in reports)
    failed = [report for report in reports if not report["passed"]]
    lines = [
        f"{len(reports)} runs, {ray} of them on the real `latfarm serve` with Ray; "
        f"{len(failed)} failed",
        "",
    ]
    lines += [
        f"{TITLES[name]:<66}{sum(report['findings'][name] for report in reports):>8}"
        for name in COUNTS
    ]
    missed = sum(report["findings"]["missed"] for report in reports)
    lines.append(f"{'faults that struck nothing':<66}{missed:>8}")
    for name, wanted_s in WANTED_S.items():
        lines.append(_times(name, wanted_s, reports))
    codes: Counter[str] = Counter()
    for report in reports:
        codes.update(report["findings"]["failures"])
    told = ", ".join(f"{code} {count}" for code, count in codes.most_common()) or "none"
    lines += ["", f"typed failures: {told}", "", *_by_fault(reports)]
    if failed:
        seeds = " ".join(str(report["seed"]) for report in failed)
        lines += ["", f"failed seeds, each again with --seed N: {seeds}"]
    return "\n".join(lines)


def _times(name: str, wanted_s: float, reports: Sequence[Report]) -> str:
    """The median and the longest time, and how many were longer than wanted."""
    times = sorted(
        report["findings"][name] for report in reports if report["findings"][name] is not None
    )
    if not times:
        return f"{TITLES[name]:<66}{'-':>8}"
    late = sum(time_s > wanted_s for time_s in times)
    told = f"{times[len(times) // 2]:>8.1f} in the middle, {times[-1]:.1f} at most"
    return f"{TITLES[name]:<66}{told}; {late} of {len(times)} over {wanted_s:.0f}"


def _by_fault(reports: Sequence[Report]) -> list[str]:
    """How many runs had each fault, and how many of these failed."""
    runs: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for report in reports:
        runs.update(set(report["faults"]))
        failed.update(set(report["faults"]) if not report["passed"] else ())
    return [
        f"{kind:<40}{count:>4} runs" + (f", {failed[kind]} failed" if failed[kind] else "")
        for kind, count in sorted(runs.items())
    ]
