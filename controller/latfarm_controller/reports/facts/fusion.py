"""Fusion on a platform: a verdict for each pair of ops, and how well times alone tell it.

Precision and recall are those of the verdict `fused`. For one pair they are taken over its test
cases (other sizes, other variants of the ops), for the platform over all pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from latfarm_controller.campaigns.fusion.operators import OPERATORS
from latfarm_controller.reports.facts.platform_record import PlatformRecord

FUSED, SEPARATE, UNDECIDED = "fused", "separate", "undecided"


def fusion_facts(record: PlatformRecord) -> dict[str, Any] | None:
    """The fusion matrix and its evidence; only the matrix, where no detection is stored."""
    outcome: Mapping[str, Any] = record.outcome.get("fusion", {})
    entries: Sequence[Mapping[str, Any]] = outcome.get("pairs", ())
    if entries:
        pairs = [_pair(entry) for entry in entries]
    elif record.rules is not None and record.rules.pairs:
        pairs = [
            _unmeasured(first, second, str(verdict))
            for (first, second), verdict in sorted(record.rules.pairs.items())
        ]
    else:
        return None
    firsts, seconds = _axis(p["first"] for p in pairs), _axis(p["second"] for p in pairs)
    known = [pair for pair in pairs if pair["graph_fused"] is not None]
    # Tests that were kept for scoring time every pair; a budget's own tests time few or none.
    timed: Mapping[str, Any] = record.outcome.get("fusion_tests", outcome)
    return {
        "firsts": firsts,
        "seconds": seconds,
        "pairs": pairs,
        "counts": {
            name: sum(pair["verdict"] == name for pair in pairs)
            for name in (FUSED, SEPARATE, UNDECIDED)
        }
        | {"not run": len(firsts) * len(seconds) - len({(p["first"], p["second"]) for p in pairs})},
        "profile": outcome.get("profile", ""),
        "black_box": dict(timed["black_box"]) if known and timed.get("black_box") else None,
        "paper_black_box": _scored(timed.get("paper")) if known else None,
        "untimed": bool(known) and not timed.get("black_box", {"pairs": 1})["pairs"],
        "dedicated_black_box": _dedicated(record),
        "disagreements": [pair for pair in known if pair["judged"] in ("miss", "false")],
        "unsettled": sum(pair["judged"] == UNDECIDED for pair in known),
        "multi_inbound": None if record.rules is None else record.rules.multi_inbound,
        "multi_outbound": None if record.rules is None else record.rules.multi_outbound,
        "connections": [dict(each) for each in outcome.get("connections", ())],
        "overruled": [
            {"pair": pair, **seen}
            for pair, seen in sorted(record.provenance.get("overruled", {}).items())
        ],
    }


def _dedicated(record: PlatformRecord) -> dict[str, Any] | None:
    """How well times alone told fusion in a run that did nothing else, where it was scored.

    Such a run has the board for itself, so that its figures may be better than those of the
    characterisation, which are the ones that predictors were made with.
    """
    run = record.fusion_run
    return None if run is None else _scored(run.outcome.get("black_box"))


def _scored(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The scores of a way to tell fusion by times; None where no pair was scored."""
    return dict(found) if found and found.get("pairs") else None


def _pair(entry: Mapping[str, Any]) -> dict[str, Any]:
    first, second = entry["pair"]
    truth, found = entry.get("graph_fused"), entry.get("time_fused", UNDECIDED)
    cases = [{"case": name, **case} for name, case in entry.get("cases", {}).items()]
    verdict = found if truth is None else FUSED if truth else SEPARATE
    return {
        "first": first,
        "second": second,
        "verdict": verdict,
        "used": entry.get("used", verdict),
        "source": entry.get("source", ""),
        "time_fused": found,
        "paper_fused": entry.get("paper_fused"),
        "graph_fused": truth,
        "judged": entry.get("judged") or judged(truth, found),
        "size_dependent": bool(entry.get("size_dependent")),
        "layout": bool(entry.get("layout")),
        "error": entry.get("error", ""),
        "cases": cases,
        **case_scores(truth, [case["answer"] for case in cases]),
    }


def _unmeasured(first: str, second: str, verdict: str) -> dict[str, Any]:
    return _pair({"pair": (first, second), "time_fused": verdict, "source": "rules"})


def judged(truth: bool | None, found: str) -> str:
    """How a verdict by times compares with the truth of the profiler.

    Args:
        truth: whether the profiler shows one kernel; None: it does not tell.
        found: the verdict by times.

    Returns:
        hit, miss, false, right or undecided; empty where there is no truth.
    """
    if truth is None:
        return ""
    if found == UNDECIDED:
        return UNDECIDED
    if truth:
        return "hit" if found == FUSED else "miss"
    return "false" if found == FUSED else "right"


def case_scores(truth: bool | None, answers: Sequence[str]) -> dict[str, float | None]:
    """Precision and recall of `fused` over the test cases of one pair; None where undefined."""
    if truth is None or not answers:
        return {"precision": None, "recall": None}
    claimed = sum(answer == FUSED for answer in answers)
    hits = claimed if truth else 0
    return {
        "precision": hits / claimed if claimed else None,
        "recall": hits / len(answers) if truth else None,
    }


def _axis(names: Any) -> list[str]:
    """Ops in the order of the list of operators, then all others by name."""
    order = {
        operator.op: place for place, operator in reversed(list(enumerate(OPERATORS.values())))
    }
    return sorted(set(names), key=lambda name: (order.get(name, len(order)), name))
