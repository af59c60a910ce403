"""The report's section on fusion: the matrix, and how well times alone tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from latfarm_controller.reports.pages import page, words
from latfarm_controller.reports.pages.plot_fusion import matrix

_MOST_OPEN = 8
_JUDGED = {
    "hit": "fused, found",
    "miss": "fused, taken for apart",
    "false": "apart, taken for fused",
    "right": "apart, found",
    "undecided": "left undecided",
}


def fusion(facts: Mapping[str, Any] | None) -> str:
    """The section on fusion; empty if no rules are known."""
    if facts is None:
        return ""
    counts = facts["counts"]
    keys = [
        ("fused", f"one kernel ({counts['fused']})"),
        ("separate", f"apart ({counts['separate']})"),
        ("undecided", f"undecided ({counts['undecided']})"),
        ("not-run", f"not run ({counts['not run']})"),
    ]
    if facts["black_box"] and not facts["untimed"]:
        keys += [("wrong", "times say otherwise"), ("open", "times leave it open")]
    scroll = '<div class="scroll" tabindex="0" role="region" aria-label="fusion matrix">'
    scroll += f"{matrix(facts)}</div>"
    return page.section(
        "Fusion: which ops run as one kernel",
        scroll
        + words.legend(keys)
        + _scores(facts)
        + _overruled(facts)
        + _disagreements(facts)
        + _pairs(facts),
        "Row: first op, column: the op after it. If the runtime reports the graph that it really "
        "ran, that is the verdict, and the verdict by times alone is judged by it. Precision and "
        "recall are those of pairs that run as one kernel; an undecided pair counts as not found.",
        "fusion",
    )


def _scores(facts: Mapping[str, Any]) -> str:
    told = facts["black_box"]
    if facts["untimed"]:
        return words.paragraph(
            "The runtime's own graph settled these verdicts, so that no pair was measured by times "
            "alone. `latfarm characterize --keep-fusion-tests` measures them, to score times."
        )
    if not told:
        said = {"opaque": "hides single layers", "off": "was not asked", "unavailable": "has none"}
        profile = said.get(str(facts["profile"]), "")
        return words.paragraph(
            "The runtime reports no graph by which these verdicts could be judged"
            + (f": its profiler {profile}." if profile else ".")
        )
    rows = [_score("times alone, our rule, as the characterisation found it", told)]
    if facts.get("dedicated_black_box"):
        rows.append(
            _score("the same rule, in a run of latfarm fusion", facts["dedicated_black_box"])
        )
    if facts["paper_black_box"]:
        rows.append(_score("times alone, nn-Meter's inequation 1", facts["paper_black_box"]))
    header = ["", "pairs judged", "fused", "found", "wrongly fused", "undecided"]
    return "<h3>Times against the runtime's own graph</h3>" + words.table(
        [*header, "precision", "recall"], rows
    )


def _score(name: str, told: Mapping[str, Any]) -> list[str]:
    keys = ("pairs", "fused", "found", "wrongly_fused", "undecided")
    return [
        page.cell(name),
        *(page.cell(told.get(key, words.NONE)) for key in keys),
        page.cell(words.ratio(told.get("precision"))),
        page.cell(words.ratio(told.get("recall"))),
    ]


def _overruled(facts: Mapping[str, Any]) -> str:
    """Pairs that networks fuse differently than models of the pair alone showed."""
    rows = [
        [
            page.cell(seen["pair"].replace("+", " > ")),
            page.cell("together" if seen["verdict"] == "fused" else "apart", "left"),
            page.cell(seen["fused"]),
            page.cell(seen["apart"]),
        ]
        for seen in facts["overruled"]
    ]
    if not rows:
        return ""
    note = (
        "The layers of profiled networks show another verdict for these pairs than models of the "
        "pair alone, which end after the second op. Networks are cut as their profiles show. "
        "Pairs that run as one kernel in some places and as two in others are timed and "
        "predicted together."
    )
    header = ["pair", "is cut", "one kernel", "two"]
    return "<h3>Corrected by profiles of networks</h3>" + words.table(header, rows, note)


def _disagreements(facts: Mapping[str, Any]) -> str:
    pairs: Sequence[Mapping[str, Any]] = facts["disagreements"]
    rows = [_row(pair, case) for pair in pairs for case in pair["cases"]]
    if not rows:
        return ""
    header = ["pair", "is, and was", "case", "by times", *_TIMES]
    note = words.paragraph(
        "Saved: T1 + T2 - T12, the time that connecting the two ops saves. The rule compares it "
        "with the shorter of both, min(T1, T2). All times are without the overhead of the call."
    )
    made = words.table(header, rows) + note
    title = f"Disagreements and the times behind them: {words.count(len(pairs), 'pair')}"
    if len(rows) > _MOST_OPEN:
        return f"<details><summary>{title}</summary>{made}</details>"
    return f"<h3>{title}</h3>{made}"


def _row(pair: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    return [
        page.cell(f"{pair['first']} > {pair['second']}"),
        page.cell(_JUDGED[pair["judged"]], "bad left"),
        page.cell(case["case"], "left"),
        page.cell(case["answer"], "left"),
        *_times(case),
    ]


_TIMES = ("saved, ms", "min(T1, T2), ms", "T12, ms", "saved / min", "rounds")


def _times(case: Mapping[str, Any]) -> list[str]:
    names = ("gain_ms", "base_ms", "connected_ms")
    return [
        *(page.cell(words.ms(case.get(name))) for name in names),
        page.cell("" if case.get("ratio") is None else f"{case['ratio']:.2f}"),
        page.cell(case.get("rounds", "")),
    ]


def _pairs(facts: Mapping[str, Any]) -> str:
    pairs: Sequence[Mapping[str, Any]] = facts["pairs"]
    rows = [
        [
            page.cell(f"{pair['first']} > {pair['second']}"),
            page.cell(pair["used"]),
            page.cell(pair["source"]),
            page.cell(_truth(pair)),
            page.cell(pair["time_fused"] + (" (layout)" if pair["layout"] else "")),
            page.cell(_JUDGED.get(pair["judged"], words.NONE), _mark(pair["judged"])),
            page.cell(words.ratio(pair["precision"])),
            page.cell(words.ratio(pair["recall"])),
            page.cell(len(pair["cases"])),
            words.text_cell(pair["error"]),
        ]
        for pair in pairs
    ]
    header = ["pair", "cut as", "known by", "by profile", "by times", "times are right"]
    header += ["precision", "recall", "cases", "failure"]
    made = words.table(header, rows, "Precision and recall of a pair are over its test cases.")
    return f"<details><summary>All {len(pairs)} pairs</summary>{made}</details>"


def _truth(pair: Mapping[str, Any]) -> str:
    return {True: "fused", False: "apart", None: words.NONE}[pair["graph_fused"]]


def _mark(judged: str) -> str:
    return {"hit": "good", "right": "good", "miss": "bad", "false": "bad"}.get(judged, "")
