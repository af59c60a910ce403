"""The report's sections on accuracy: networks, kernels, and staircases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from latfarm_controller.reports.facts.accuracy import OURS
from latfarm_controller.reports.pages import page, svg, words
from latfarm_controller.reports.pages.plot_stairs import axis_name, stairs

METHODS = {
    OURS: "latfarm",
    "forest": "random forests by group",
    "roofline": "roofline",
    "lookup": "nearest measured kernel",
    "sum": "our kernels, plain sum",
    "flops": "FLOPs",
    "flops_mac": "FLOPs and memory traffic",
    "operators": "our kernels, nothing fused",
    "nn-meter": "nn-Meter's forests by kernel",
    "annette-roofline": "ANNETTE: roofline",
    "annette-refined": "ANNETTE: refined roofline",
    "annette-statistical": "ANNETTE: statistical",
    "annette-mixed": "ANNETTE: mixed",
    "mnn_cost": "MNN's cost, as published",
    "mnn_cost_scaled": "MNN's cost, scaled",
}
"""Names of methods in the report; a method that is not listed has its own name."""
PERFECT = "a perfect predictor"
"""Name of the row with what a predictor without any error would score."""
_MOST_NETWORKS = 40
_MOST_NAMED = 8


def networks(facts: Mapping[str, Any], promised: Mapping[str, Any] | None = None) -> str:
    """The section on networks: those that the bundle never saw, then the calibration networks.

    Args:
        facts: what is known of their accuracy.
        promised: what intervals promise for the platform; None where no bundle does.
    """
    unseen, calibration = facts["unseen"], facts["calibration"]
    parts = []
    if unseen:
        parts.append(
            "<h3>Networks that the predictor never saw</h3>"
            + _wide(_agreement(unseen))
            + _methods(unseen, "networks")
            + _families(unseen, "network family", "networks")
            + _each(unseen)
        )
    if calibration:
        note = (
            "The correction from kernels to networks was made without the network in question. "
            "Latfarm and the baselines also predict every kernel without having seen it. The other "
            "networks calibrate the interval of each. So about 90 % of all are inside by "
            "construction; what tells is the width, and the share of each family."
        )
        parts.append(
            "<h3>Calibration networks, each left out in turn</h3>"
            + words.paragraph(note)
            + ("" if unseen else _wide(_agreement(calibration)))
            + _methods(calibration, "networks")
            + _families(calibration, "network family", "networks")
            + _each(calibration)
        )
    # A controller of an older version gives no such facts, and none of the others read by `get`.
    parts.append(_refused(facts.get("refused", ())))
    if (unseen or calibration) and promised:
        sentence = promised["sentence"]
        corrector = promised.get("corrector")  # older facts do not have it
        if corrector:
            parts.insert(0, words.paragraph(f"Besides the corrected sum of kernels: {corrector}"))
        parts.insert(0, words.paragraph(f"{sentence[0].upper()}{sentence[1:]}."))
    return page.section(
        "Networks: predicted and corrected latencies",
        "".join(parts),
        "RMSPE: root mean square percentage error. MAPE: mean absolute percentage error. Intervals "
        "should hold the latency in 90 % of cases; width: median width of the interval divided by "
        "the prediction. Latencies are corrected for the slowdown of the core, as those were that "
        "the predictor learned from; as timed: what the clock showed. A prediction is compared "
        "with the mean of a network's passes. "
        "A perfect predictor: what a predictor without any error would score, told from how far "
        "the passes differ. Behind a share stands its binomial 95 % interval; ahead: the lead over "
        "a method within 10 %, in points, with the interval of the paired difference.",
        "networks",
    )


def kernels(facts: Mapping[str, Any] | None) -> str:
    """The section on kernels, which are predicted by models that did not see them."""
    body = (
        ""
        if facts is None
        else _methods(facts, "kernels") + _families(facts, "kernel family", "kernels")
    )
    return page.section(
        "Kernels: predicted by models that did not see them",
        body,
        "Each kernel is predicted by models that were fitted without it: ours out of fold, the "
        "baselines fitted again to three quarters of the kernels at a time. (Forests by kind of "
        "kernel are only judged by unseen networks, because fitting them again takes minutes.) A "
        "perfect predictor is told from the passes of kernels measured alone. "
        "Intervals are calibrated by these kernels, so that about 90 % of all are inside by "
        "construction; what tells is the width, and the share of each family. "
        "Latencies do not include the overhead of the call, so the shortest kernels, which are "
        "small beside it, have the largest errors.",
        "kernels",
    )


def staircases(entries: Sequence[Mapping[str, Any]]) -> str:
    """The section with the staircases and the meaning of their marks."""
    if not entries:
        return ""
    plots = "".join(_stairs(entry, number) for number, entry in enumerate(entries))
    tolerance = entries[0]["tolerance"]
    keys = words.legend(
        [
            ("curve", "our prediction"),
            ("band", f"its {entries[0]['coverage']:.0%} interval"),
            ("forest", "random forest, the baseline"),
            ("on", "measured on the slice"),
            ("near", f"measured nearby: other sizes within a factor of {tolerance:g}"),
        ]
    )
    return page.section(
        "Staircases of the kernels that networks spend most time in",
        f'<div class="plots">{plots}</div>{keys}',
        "In a slice all sizes of a kernel but one are constant. Points near the slice are moved "
        "onto it: their measured latency is multiplied by the predicted ratio of the two "
        "latencies. The curve is predicted by the model alone, even where the same kernel was "
        "measured. Point at a mark to read its values.",
        "staircases",
    )


def _stairs(entry: Mapping[str, Any], number: int) -> str:
    on = f"{words.count(entry['exact'], 'point')} on the slice"
    near = f", {entry['near']} nearby" if entry["near"] else ""
    step = f", drawn at multiples of {entry['step']}" if entry["step"] > 1 else ""
    return (
        f"<figure><figcaption><b>{escape(entry['type'])}</b><span>against "
        f"{escape(axis_name(entry))}: {escape(entry['held'])} &middot; {on}{near}{step} &middot; "
        f"{escape(entry['family'])}: {words.percent(entry['time_share'], 0)} of networks' time"
        f"</span></figcaption>{stairs(entry, number)}</figure>"
    )


def _wide(plot: str) -> str:
    return f'<div class="wide">{plot}</div>' if plot else ""


def _agreement(facts: Mapping[str, Any]) -> str:
    rows = [row for row in facts["networks"] if row["interval_ms"]]
    return svg.agreement(
        [
            # Many names would overlap, so then only those furthest off have one.
            svg.Point(row["network"], row["corrected_ms"], row["predicted_ms"], *row["interval_ms"])
            for row in rows
        ],
        named=len(rows) <= _MOST_NAMED,
    )


def _methods(facts: Mapping[str, Any], noun: str) -> str:
    leads = facts.get("leads", {})
    rows = [
        _scores(METHODS.get(name, name), scores, leads.get(name), ours=name == OURS)
        for name, scores in facts["methods"].items()
    ]
    if facts.get("perfect"):
        rows.append(_perfect(facts["perfect"], noun))
    count = facts["methods"][OURS]["count"]
    told = f"{words.count(count, noun.removesuffix('s'), noun)}"
    if facts["inside"] is not None:
        told += (
            f"; {words.percent(facts['inside'])} inside their {facts['coverage']:.0%} interval, "
            f"median width {words.percent(facts['width'])}"
        )
    header = ["method", "RMSPE", "MAPE", "within 5 %", "within 10 %", "latfarm is ahead by"]
    return words.table(header, rows, told)


def _scores(
    name: str,
    scores: Mapping[str, Any],
    lead: Mapping[str, Any] | None,
    *,
    ours: bool = False,
) -> list[str]:
    bold = ("<b>", "</b>") if ours else ("", "")
    shown = [words.percent(scores["rmspe"]), words.percent(scores["mape"])]
    shown += [_share(scores, within) for within in ("within5", "within10")]
    return [
        *(f"<td>{bold[0]}{escape(text)}{bold[1]}</td>" for text in (name, *shown)),
        page.cell(_lead(lead), "" if lead is None or lead["ahead"] else "bad"),
    ]


def _perfect(scores: Mapping[str, Any], noun: str) -> list[str]:
    name = f"{PERFECT}, {scores['count']} {noun} with {scores['passes']} or more passes"
    shown = (words.NONE, words.NONE, _share(scores, "within5"), _share(scores, "within10"), "")
    return [f"<td><i>{escape(text)}</i></td>" for text in (name, *shown)]


def _share(scores: Mapping[str, Any], within: str) -> str:
    """A share with its binomial interval, both in per cent."""
    told = words.percent(scores[within])
    if f"{within}_interval" not in scores:
        return told
    low, high = scores[f"{within}_interval"]
    return f"{told} ({100 * low:.0f} to {100 * high:.0f})"


def _lead(lead: Mapping[str, Any] | None) -> str:
    if lead is None:
        return ""
    points = [100 * lead[name] for name in ("difference", "low", "high")]
    return "{:+.1f} ({:+.0f} to {:+.0f})".format(*points)


def _refused(families: Sequence[Mapping[str, Any]]) -> str:
    """The networks that the platform cannot run, by family; no figure above speaks of them."""
    rows = [
        [
            page.cell(row["family"]),
            page.cell(f"{len(row['networks'])} of {row['tried']}"),
            words.text_cell(", ".join(row["networks"][:_MOST_NAMED])),
            words.text_cell(row["reason"]),
        ]
        for row in families
    ]
    note = "Networks that the platform cannot run are in none of the shares above."
    header = ["network family", "cannot run", "networks", "first reason"]
    made = words.table(header, rows, note)
    return f"<h3>Networks that the platform cannot run</h3>{made}" if made else ""


def _families(facts: Mapping[str, Any], title: str, noun: str) -> str:
    baselines = list(facts["families"][0]["baseline_within10"]) if facts["families"] else []
    header = [
        title,
        noun,
        "RMSPE",
        "MAPE",
        "within 5 %",
        "within 10 %",
        "inside",
        "width",
    ]
    rows = [
        [
            page.cell(row["family"]),
            page.cell(row["count"]),
            *(page.cell(words.percent(row[n])) for n in ("rmspe", "mape", "within5", "within10")),
            page.cell(words.percent(row["inside"], 0)),
            page.cell(words.percent(row["width"], 0)),
        ]
        for row in facts["families"]
    ]
    beside = [
        [
            page.cell(row["family"]),
            page.cell(words.percent(row["within10"], 0)),
            *(page.cell(words.percent(row["baseline_within10"][n], 0)) for n in baselines),
        ]
        for row in facts["families"]
    ]
    made = words.table([title, OURS, *baselines], beside) if baselines else ""
    said = "The same families, within 10 %: ours beside each baseline"
    return words.table(header, rows) + (
        f"<details><summary>{said}</summary>{made}</details>" if made else ""
    )


def _each(facts: Mapping[str, Any]) -> str:
    shown = facts["networks"][:_MOST_NETWORKS]
    rows = [
        [
            page.cell(row["network"]),
            page.cell(words.ms(row.get("timed_ms"))),
            page.cell(words.ms(row["corrected_ms"])),
            page.cell(words.ms(row.get("standard_error_ms"))),
            page.cell(", ".join(words.ms(each) for each in row["passes_ms"])),
            page.cell(words.ms(row["predicted_ms"])),
            page.cell(
                words.signed_percent(row["error"]), "good" if abs(row["error"]) <= 0.1 else "bad"
            ),
            page.cell(words.span(row["interval_ms"])),
            _inside(row),
            *(
                [words.text_cell("; ".join(row["unsupported"]))]
                if any(each["unsupported"] for each in shown)
                else []
            ),
        ]
        for row in shown
    ]
    header = ["network", "as timed, ms", "corrected, ms", "standard error, ms", "passes, ms"]
    header += ["predicted, ms", "error", "interval, ms", "inside"] + (
        ["unknown to the predictor"] if any(r["unsupported"] for r in shown) else []
    )
    made = words.table(header, rows)
    left = len(facts["networks"]) - len(shown)
    more = f", the {len(shown)} with the largest errors" if left else ", largest errors first"
    count = words.count(len(facts["networks"]), "network")
    return f"<details><summary>{count}{more}</summary>{made}</details>"


def _inside(row: Mapping[str, Any]) -> str:
    if not row["interval_ms"]:
        return page.cell(words.NONE)
    low, high = row["interval_ms"]
    held = low <= row["corrected_ms"] <= high
    return page.cell("yes" if held else "no", "good" if held else "bad")
