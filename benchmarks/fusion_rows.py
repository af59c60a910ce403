"""The rows of the fusion benchmark: how they are made, printed and written."""

from __future__ import annotations

import json
import os
import platform as host
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from latfarm_controller.campaigns.fusion.campaign import FusionCampaign
from latfarm_controller.campaigns.fusion.results import PairResult, scored

Load = tuple[float, float]
"""The load averages of the host over a minute, when a run began and when it ended."""

HEADER = (
    f"{'platform':38} {'truth':>12} {'prec':>6} {'recall':>6} {'paper':>6} {'recall':>6} "
    f"{'pairs':>5} {'fused':>5} {'undecided':>9} {'rounds':>6} {'measurements':>12} {'minutes':>7}"
)


class Measured(Protocol):
    """The board that a campaign was driven on, with the core's slowdowns and the failures."""

    name: str
    slowdowns: list[float]
    failed: dict[str, int]


def load_average() -> float:
    """The load average of the last minute; above 1 per core, other programs compute too."""
    return round(os.getloadavg()[0], 1)


def plain_op(op: str) -> str:
    """The name of an op without what rules add to it for a constant operand or a gate."""
    return op.partition(":")[0]


def is_true(result: PairResult, profile: Mapping[str, Any]) -> bool:
    """Whether a simulated board's hidden rules fuse a pair; they contain names of ops only."""
    first, second = result.rule
    return (plain_op(first), plain_op(second)) in {tuple(p) for p in profile["fused_pairs"]}


def of_hidden_rules(
    results: Sequence[PairResult], profile: Mapping[str, Any], *, paper: bool
) -> dict[str, Any]:
    """Precision and recall compared with a simulated board's hidden rules."""
    return scored([(is_true(r, profile), r.paper if paper else r.time_fused) for r in results])


def row_of(campaign: FusionCampaign, board: Measured, seconds: float, load: Load) -> dict[str, Any]:
    """The row of a platform.

    Its key `untruthed` has the pairs that the runtime's own graph cannot settle, by the reason.

    Args:
        campaign: the finished campaign.
        board: the board that it was driven on.
        seconds: the duration of the campaign.
        load: the host's load averages at its beginning and its end.
    """
    outcome = campaign.outcome()
    results = campaign.results()
    untruthed: dict[str, list[str]] = {}
    for r in results:
        if r.untold:
            untruthed.setdefault(r.untold, []).append("+".join(r.rule))
    return {
        "platform": board.name,
        "truth": outcome["profile"],
        "ours": outcome["black_box"],
        "paper": outcome["paper"],
        "wrong": [
            {"pair": "+".join(r.rule), "judged": r.judged, "cases": cases_of(r)}
            for r in results
            if r.judged not in ("hit", "right", "")
        ],
        "untruthed": untruthed,
        "untold": sum(r.time_fused == "undecided" for r in results),
        "branches": {
            "multi_inbound": campaign.rules().multi_inbound,
            "multi_outbound": campaign.rules().multi_outbound,
        },
        "rounds": max((d.rounds for r in results for d in r.cases.values()), default=0),
        "measurements": len(board.slowdowns),
        "conditions": {
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "processor": host.processor() or host.machine(),
            "load_average": list(load),
            "slowdown_median": round(median(board.slowdowns or [1.0]), 3),
            "slowdown_most": round(max(board.slowdowns, default=1.0), 3),
            "failed": board.failed,
            "minutes": round(seconds / 60.0, 2),
        },
    }


def simulated_row_of(
    campaign: FusionCampaign,
    board: Measured,
    seconds: float,
    load: Load,
    profile: Mapping[str, Any],
) -> dict[str, Any]:
    """The row of a simulated board, scored by its hidden rules; see `row_of` for the arguments."""
    results = campaign.results()
    return row_of(campaign, board, seconds, load) | {
        "platform": f"{board.name}, noise {profile['noise']:.0%}",
        "truth": "hidden rules",
        "ours": of_hidden_rules(results, profile, paper=False),
        "paper": of_hidden_rules(results, profile, paper=True),
        "wrong": [
            {"pair": "+".join(r.rule), "judged": r.time_fused, "cases": cases_of(r)}
            for r in results
            if r.time_fused != ("fused" if is_true(r, profile) else "separate")
        ],
        "true_branches": {
            name: profile.get(name, 0) for name in ("multi_inbound", "multi_outbound")
        },
    }


def failed_row(name: str, why: str) -> dict[str, Any]:
    """The row of a platform that gave no result, with the reason."""
    nothing = scored([])
    return {
        "platform": name,
        "truth": "none",
        "ours": nothing,
        "paper": nothing,
        "wrong": [],
        "untruthed": {why: []},
        "untold": 0,
        "rounds": 0,
        "measurements": 0,
        "conditions": {
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load_average": [load_average()] * 2,
            "minutes": 0.0,
        },
    }


def cases_of(result: PairResult) -> dict[str, str]:
    """The answer of each size and chain of a pair, and the saved share of the cheaper op's time."""
    return {label: f"{d.answer} {d.ratio:.2f}" for label, d in result.cases.items()}


def line(row: Mapping[str, Any]) -> str:
    """A row of the printed table."""
    cells = [f"{row['platform']:38}", f"{row['truth']:>12}"]
    for way in ("ours", "paper"):
        found = row[way]
        cells += [
            f"{'-' if found[share] is None else format(found[share], '.2f'):>6}"
            for share in ("precision", "recall")
        ]
    found = row["ours"]
    cells += [f"{found['pairs']:>5} {found['fused']:>5} {row['untold']:>9} {row['rounds']:>6}"]
    cells += [f"{row['measurements']:>12} {row['conditions']['minutes']:>7}"]
    return " ".join(cells)


def details(row: Mapping[str, Any]) -> list[str]:
    """The lines below a row: pairs with a wrong answer, and pairs without a truth and why."""
    found = []
    for wrong in row["wrong"]:
        said = ", ".join(f"{label} {told}" for label, told in wrong["cases"].items())
        found.append(f"  {wrong['judged']}: {wrong['pair']} ({said})")
    for why, pairs in row["untruthed"].items():
        found.append(f"  no truth: {why}{': ' if pairs else ''}{', '.join(pairs)}")
    return found


def keep(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows into the file; they replace older rows of the same platforms."""
    known = json.loads(path.read_text())["platforms"] if path.is_file() else []
    named = {row["platform"]: row for row in (*known, *rows)}
    path.write_text(json.dumps({"platforms": list(named.values())}, indent=2) + "\n")
