"""The page about unseen networks: how close predictions came to measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from latfarm_predictors.predict.source_words import in_words

from latfarm_controller.reports import energy
from latfarm_controller.reports.facts.network_rows import AccuracySummary, NetworkRow
from latfarm_controller.reports.pages import page, svg


def _percent(share: float, sign: bool = False) -> str:
    return f"{share * 100:+.1f} %" if sign else f"{share * 100:.1f} %"


def _unless_single(error_ms: float | None) -> str:
    return "" if error_ms is None else f"{error_ms:.2f}"


def _networks(rows: Sequence[NetworkRow]) -> str:
    baselines = sorted({name for row in rows for name in row.baseline_ms})
    header = [
        "network",
        "as timed, ms",
        "corrected, ms",
        "standard error, ms",
        "predicted, ms",
        "error",
        "interval, ms",
        "inside?",
        *(f"{name}, ms" for name in baselines),
    ]
    return page.table(
        header,
        (
            [
                page.cell(row.network),
                page.cell(f"{row.timed_ms:.2f}"),
                page.cell(f"{row.corrected_ms:.2f}"),
                page.cell(_unless_single(row.standard_error_ms)),
                page.cell(f"{row.answer.latency_ms:.2f}"),
                page.cell(
                    _percent(row.error, sign=True), "good" if abs(row.error) <= 0.1 else "bad"
                ),
                page.cell("{:.2f} to {:.2f}".format(*row.answer.interval_ms)),
                page.cell("yes" if row.inside else "no", "good" if row.inside else "bad"),
                *(
                    page.cell(f"{row.baseline_ms[name]:.2f}" if name in row.baseline_ms else "")
                    for name in baselines
                ),
            ]
            for row in rows
        ),
    )


def _passes(rows: Sequence[NetworkRow]) -> str:
    """The latency of each pass, behind a line to click on."""
    body = page.table(
        ["network", "passes, corrected, ms"],
        (
            [
                page.cell(row.network),
                page.cell(", ".join(f"{latency:.2f}" for latency in row.passes_ms), "text"),
            ]
            for row in rows
        ),
    )
    return f"<details><summary>each pass</summary>{body}</details>"


def _breakdown(rows: Sequence[NetworkRow], most: int = 12) -> str:
    blocks = []
    for row in rows:
        kernels = sorted(row.answer.kernels, key=lambda k: -k.latency_ms)[:most]
        body = page.table(
            ["kernel", "configuration", "latency, ms", "interval, ms", "source"],
            (
                [
                    page.cell(kernel.type),
                    page.cell(
                        " ".join(f"{k}={v}" for k, v in kernel.configuration.items()), "text"
                    ),
                    page.cell(f"{kernel.latency_ms:.3f}"),
                    page.cell("{:.3f} to {:.3f}".format(*kernel.interval_ms)),
                    page.cell(in_words(kernel.source)),
                ]
                for kernel in kernels
            ),
        )
        count = len(row.answer.kernels)
        blocks.append(
            f"<details><summary>{escape(row.network)}: {count} kernels, "
            f"the {len(kernels)} longest</summary>{body}</details>"
        )
    return "".join(blocks)


def plot(rows: Sequence[NetworkRow]) -> str:
    """A plot of corrected against predicted latencies, as SVG."""
    return svg.agreement(
        [
            svg.Point(row.network, row.corrected_ms, row.answer.latency_ms, *row.answer.interval_ms)
            for row in rows
        ]
    )


@dataclass(frozen=True)
class NetworksReport:
    """What the page about unseen networks shows, beside the networks themselves.

    Attributes:
        title: heading of the page.
        lead: one line with the platform, the board and the date.
        verdicts: fusion rules as (first op, second op, verdict).
        groups: accuracy of the kernel predictors: group, rows, mean_ape, within10 (shares).
        campaign: the cost of the characterisation, as texts by their names.
        conditions: the conditions of the board, as texts by their names.
        energies: energies of the networks, where they were measured and predicted.
    """

    title: str
    lead: str
    verdicts: Sequence[tuple[str, str, str]] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    campaign: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    energies: Sequence[energy.EnergyRow] = ()


def render(report: NetworksReport, rows: Sequence[NetworkRow]) -> str:
    """The report as one HTML text.

    Args:
        report: what the page shows beside the networks.
        rows: the networks, of which the predictor saw no measurement; at least one.
    """
    unsupported = [f"{row.network}: {text}" for row in rows for text in row.answer.unsupported]
    body = [
        page.figures(_headline(rows)),
        page.section(
            "Corrected against predicted latency",
            plot(rows),
            "Latencies are corrected for the slowdown of the core; the table shows them as timed, "
            "too. Bars are the predicted intervals; the band is ±10 %. The predictor saw no "
            "measurement of these networks.",
        ),
        page.section("Networks", _networks(rows) + _passes(rows)),
        energy.section(report.energies),
        page.section("Where the time goes", _breakdown(rows)),
        page.section(
            "Fusion rules",
            svg.matrix(report.verdicts),
            "Row: first op, column: second op. Filled: executed as one kernel; grey: apart; "
            "outlined: undecided.",
        ),
        page.section("Kernel predictors, judged out of fold", _groups(report.groups)),
        page.section("Unsupported", "".join(f"<p>{escape(t)}</p>" for t in unsupported)),
        page.section("What it cost", _listed(report.campaign)),
        page.section("Conditions", _listed(report.conditions)),
    ]
    return page.page(report.title, report.lead, "".join(body))


def _headline(rows: Sequence[NetworkRow]) -> list[tuple[str, str]]:
    """The figures at the top of the page: each value, and what it is."""
    summary = AccuracySummary.of(rows)
    coverage = rows[0].answer.coverage
    boxes = [
        (str(summary.networks), "networks never seen in training"),
        (_percent(summary.within10.share), "within 10 %"),
        (_percent(summary.median_error), "median absolute error"),
        (_percent(summary.worst_error), "worst absolute error"),
        (f"{summary.inside} of {summary.networks}", f"inside their {coverage:.0%} interval"),
        (_percent(summary.median_width), "median width of the interval"),
    ]
    if summary.perfect is not None:
        perfect = f"{_percent(summary.perfect.within10.share)}"
        boxes.append((perfect, "within 10 % by a perfect predictor, given how the passes differ"))
    if summary.standard_error is not None:
        boxes.append((_percent(summary.standard_error), "median standard error of the measured"))
    return boxes


def _listed(texts: Mapping[str, str]) -> str:
    """A table of texts and their names; empty without any."""
    if not texts:
        return ""
    return page.table(["", ""], ([page.cell(k), page.cell(v, "text")] for k, v in texts.items()))


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    """A table of the accuracy of each kernel predictor; empty without any."""
    if not groups:
        return ""
    return page.table(
        ["group", "kernels", "within 10 %", "mean error"],
        (
            [
                page.cell(group["group"]),
                page.cell(group["rows"]),
                page.cell(_percent(group["within10"])),
                page.cell(_percent(group["mean_ape"])),
            ]
            for group in groups
        ),
    )
