"""The report's sections on the campaign: insight, sampling, cost, failures and conditions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from latfarm_controller.campaigns.host_noise import counts_told
from latfarm_controller.reports.pages import page, words

_INSIGHTS = {
    "profile": "the runtime's profiler",
    "padded": "between pads",
    "single": "a model of its own",
}
_STOPPED = {
    "target": "the target was met",
    "count": "the budget of kernels was spent",
    "board_minutes": "the boards' time was spent",
    "budget": "the budget of all stages was spent",
}
_DAY = "%Y-%m-%d %H:%M UTC"


def insight(facts: Mapping[str, Any]) -> str:
    """The section on how kernel times were obtained."""
    counts = facts["counts"]
    if not counts:
        return ""
    rows = [[page.cell(_INSIGHTS[name]), page.cell(count)] for name, count in counts.items()]
    compared = [
        [
            page.cell(_INSIGHTS[each["insight"]]),
            page.cell(each["kernels"]),
            page.cell(words.ratio(each["pearson"])),
            page.cell(words.ratio(each["pearson_log"])),
            page.cell(f"{each['median_ratio']:.2f}"),
        ]
        for each in facts["beside_profile"]
    ]
    body = words.facts(
        [
            ("chosen", _INSIGHTS.get(facts["chosen"], facts["chosen"])),
            ("asked for", facts["asked"]),
            ("because", facts["reason"]),
            ("kernels seen in profiled networks alone", str(facts["in_networks"] or "")),
        ]
    ) + words.table(["the time of a kernel rests on", "kernels"], rows)
    if compared:
        header = ["", "kernels", "Pearson", "Pearson of logarithms", "median over profiler"]
        body += "<h3>Beside the profiler, where both exist</h3>" + words.table(header, compared)
    return page.section("How the time of each kernel was obtained", body, name="insight")


def sampling(facts: Mapping[str, Any]) -> str:
    """The section on how kernels were chosen, and why the sampler stopped."""
    if facts["measured"] is None and not facts["rounds"]:
        return ""
    target = facts["target"]
    met = {True: "met", False: "not met", None: ""}[facts["target_met"]]
    told = "" if target is None else f"{words.percent(target, 0)} within 10 %"
    if target is not None and facts["accuracy"] is not None:
        told += f": {met}, {words.percent(facts['accuracy'])} reached"
        if facts["accuracy_interval"] is not None:
            low, high = (words.percent(end, 0) for end in facts["accuracy_interval"])
            told += f" by {facts['judged']} kernels kept back, 95 % interval {low} to {high}"
    body = words.facts(
        [
            ("sampler", str(facts["sampler"])),
            ("guided by", str(facts["guide"])),
            ("budget", "" if facts["budget"] is None else f"{facts['budget']} kernels"),
            (
                "budget of all stages",
                "" if facts["all_stages"] is None else f"{facts['all_stages']} measurements",
            ),
            ("board time at most", _minutes(facts["board_minutes"])),
            ("started from the bundle", str(facts["from_bundle"])),
            ("target", told or "none was set"),
            ("ended because", _STOPPED.get(facts["stopped"], facts["stopped"])),
            ("drawn", "" if facts["drawn"] is None else str(facts["drawn"])),
            ("measured", "" if facts["measured"] is None else str(facts["measured"])),
        ]
    )
    rows = [
        [
            page.cell(number),
            *(page.cell(each[name]) for name in ("kernels", "measurements", "failed")),
            page.cell(words.time(each["board_ms"])),
        ]
        for number, each in enumerate(facts["rounds"], 1)
    ]
    header = ["round", "new kernels", "measurements", "failed", "board time"]
    types = [[page.cell(kind), page.cell(count)] for kind, count in facts["types"].items()]
    kinds = words.table(["kernel", "measured"], types)
    body += words.table(header, rows)
    if kinds:
        body += f"<details><summary>{len(types)} types of kernels</summary>{kinds}</details>"
    return page.section("How kernels were chosen", body, name="sampling")


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:g} min"


def duration(facts: Mapping[str, Any]) -> str:
    """The section on the cost of the campaign, by purpose of measurements."""
    if not facts["measurements"]:
        return ""
    idle = [b["idle_share"] for b in facts["boards"].values() if "idle_share" in b]
    body = words.facts(
        [
            ("measurements", f"{facts['measurements']:,}"),
            ("board time", words.time(facts["board_ms"])),
            ("wall time", words.time(facts["wall_ms"]) if facts["wall_ms"] else ""),
            ("boards idle", ", ".join(words.percent(share) for share in idle)),
            ("began", _date(facts["started_at_s"])),
            ("ended", _date(facts["finished_at_s"])),
        ]
    )
    rows = [
        [
            page.cell(row["purpose"]),
            page.cell(f"{row['measurements']:,}"),
            page.cell(words.time(row["board_ms"])),
            page.cell(row["failed"], "bad" if row["failed"] else ""),
            page.cell(row["unstable"]),
        ]
        for row in facts["purposes"]
    ]
    header = ["measured for", "measurements", "board time", "failed", "unstable"]
    body += words.table(header, rows) + _spent(facts["spent"])
    return page.section("What it cost", body, name="cost")


def _spent(spent: Mapping[str, Any]) -> str:
    """The stages on which a budget was spent; empty for campaigns without a budget."""
    if not spent:
        return ""
    rows = [
        [
            page.cell(row["stage"]),
            page.cell(f"{row['measurements']:,}"),
            page.cell(words.time(row["board_ms"])),
            page.cell(row["left_out"] or ""),
        ]
        for row in spent["stages"]
    ]
    limits = [
        ("budget", f"{spent['most_measurements']:,} measurements"),
        (
            "budget of board time",
            words.time(spent["most_board_ms"]) if spent["most_board_ms"] else "",
        ),
    ]
    header = ["stage", "measurements", "board time", "left out for want of budget"]
    return "<h3>Where the budget went</h3>" + words.facts(limits) + words.table(header, rows)


def _date(at_s: float) -> str:
    return time.strftime(_DAY, time.gmtime(at_s)) if at_s else ""


def failures(facts: Sequence[Mapping[str, Any]]) -> str:
    """The section on failures, by type."""
    rows = [
        [
            page.cell(row["code"]),
            page.cell(row["outcome"].replace("_", " ")),
            page.cell(row["purpose"]),
            page.cell(row["count"]),
            page.cell(row["graphs"]),
            words.text_cell(row["example"]),
        ]
        for row in facts
    ]
    header = ["failure", "whose", "measured for", "measurements", "models", "for example"]
    return page.section("Failures", words.table(header, rows), name="failures")


def conditions(facts: Mapping[str, Any], drift: Mapping[str, Any]) -> str:
    """The section on the conditions of the boards and the drift of their sentinels."""
    if not facts["measurements"]:
        return ""
    throttling, clock = facts["throttling"], facts["clock"]
    total = facts["measurements"]
    body = words.facts(
        [
            ("boards", str(len(facts["boards"]))),
            ("fingerprints of the platform", str(len(facts["fingerprints"]))),
            ("throttled", _known(throttling["throttled"], throttling["known"], total)),
            ("throttled all the time (not corrected)", _throughout(facts, total)),
            ("clock fell by over 2 %", _known(clock["dropped"], clock["known"], total)),
            ("slower clock than at best (not corrected)", _lower_clock(clock, total)),
            ("runs rejected while measuring", f"{facts['rejected_runs']:,}"),
            ("unstable measurements", f"{facts['unstable']} of {total}"),
            ("on this host", _host(drift)),
            ("voided by the sentinel", str(drift["void"])),
            ("measured again", str(drift["measured_again"])),
            ("effect of a slow core", _felt(drift["slow_core"])),
            ("not trained on", ", ".join(f"{n} {w}" for w, n in drift["left_out"].items())),
        ]
    )
    sentinels = [
        [
            page.cell(each["board_id"][:12]),
            page.cell(each["count"]),
            page.cell(words.ms(each["median_ms"])),
            page.cell(words.percent(each["spread"], 2)),
            page.cell(words.percent(each["drift"], 2), _drifted(each)),
            page.cell(words.percent(each["limit"], 1)),
        ]
        for each in drift["sentinels"]
    ]
    header = ["board", "sentinels", "median, ms", "spread", "drift", "limit"]
    body += words.table(header, sentinels, "The sentinel, one model measured again and again")
    sensors = [
        [page.cell(row["sensor"]), page.cell(_share(row)), words.text_cell(_readings(row))]
        for row in facts["sensors"]
    ]
    made = words.table(["sensor", "told by", "readings"], sensors)
    body += f"<details><summary>All {len(sensors)} sensors</summary>{made}</details>"
    return page.section("Conditions of the boards", body, name="conditions")


def _lower_clock(clock: Mapping[str, Any], total: int) -> str:
    """How many measurements had a lower clock than the board had at its best."""
    if not clock.get("compared"):
        return ""
    told = _known(clock["lower"], clock["compared"], total)
    if not clock["lower"]:
        return told
    return f"{told}, at worst {clock['worst_slowdown']:.2f} times slower"


def _host(drift: Mapping[str, Any]) -> str:
    """How noisy the host is, and how many measurements can be trusted there; empty if unknown."""
    counts = drift.get("steadiness") or {}
    told = [
        drift.get("host_noise", {}).get("sentence", ""),
        counts_told(counts),
    ]
    return "; ".join(filter(None, told))


def _felt(told: Mapping[str, Any]) -> str:
    """How much the correction for a slow core was changed by repeated measurements."""
    if not told["pairs"]:
        return ""
    if not told["shift"]:
        return f"as assumed, by {told['pairs']} repeats"
    than = "more" if told["shift"] > 0 else "less"
    return (
        f"{than} than assumed, by {told['pairs']} repeats: latencies are corrected by a factor of "
        f"slowdown ** {-told['shift']:.2f}"
    )


def _throughout(facts: Mapping[str, Any], total: int) -> str:
    """How many measurements throttled from before to after; empty where no board tells it."""
    told = facts.get("throttled_throughout", {"known": 0})
    return _known(told["throttled"], told["known"], total) if told["known"] else ""


def _known(count: int, known: int, total: int) -> str:
    """A count among the measurements with a known reading; unknown ones are told separately."""
    if not known:
        return "unknown: there is no sensor"
    return f"{count} of {known}" + (f" ({total - known} unknown)" if known < total else "")


def _drifted(each: Mapping[str, Any]) -> str:
    return "bad" if abs(each["drift"]) > each["limit"] else "good"


def _share(row: Mapping[str, Any]) -> str:
    return f"{row['known']} of {row['of']}"


def _readings(row: Mapping[str, Any]) -> str:
    if "least" in row:
        return f"{row['least']:g} to {row['most']:g}, median {row['median']:g}"
    values = ", ".join(row["values"]) or "unknown"
    return values + (" ..." if row["distinct"] > len(row["values"]) else "")
