"""The report that compares engines: tables and plots, as HTML, Markdown, SVG or text.

Everything is made from the outcome of a campaign (`EnginesCampaign.outcome`), which is plain JSON.
So a stored campaign can be shown again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from latfarm_controller.reports.engines.cost_model import Agreement, ModelReport
from latfarm_controller.reports.engines.plot import plot
from latfarm_controller.reports.pages import page

Outcome = Mapping[str, Any]
CellData = Mapping[str, Any]

BUSY = 0.1
"""A cell counts as disturbed if other programs used its cores for more than this share of time."""

MARKS = "Bold: the network's fastest. In brackets: the latency as timed, where the one before was \
corrected for the core's slowdown. ~: unstable (passes differ by more than 5 %, or the runs' \
deviation is above 2 %). ± spread: the larger of the deviation between sessions and between runs. \
x: speed-up over one thread of the same engine."
"""Explains the marks in the cells of a table."""


def dtypes(outcome: Outcome) -> list[str]:
    """Data types that were compared, floating-point types first."""
    return sorted(
        {found["dtype"] for found in outcome["platforms"]}, key=lambda t: (t == "int8", t)
    )


def columns(outcome: Outcome, dtype: str) -> list[tuple[str, str]]:
    """Platforms of a data type as (name, heading), in the order of the table."""
    return [
        (found["name"], heading(found)) for found in outcome["platforms"] if found["dtype"] == dtype
    ]


def heading(found: Mapping[str, Any]) -> str:
    """Heading of a column: the engine, and its threads if it has a number of threads."""
    return f"{found['engine']} {found['threads']}t" if found["threads"] else str(found["engine"])


def rows(outcome: Outcome, dtype: str) -> Iterator[tuple[str, list[CellData]]]:
    """Each network with its cells, in the order of `columns`."""
    cells = {(cell["network"], cell["platform"]): cell for cell in outcome["cells"]}
    for network in outcome["networks"]:
        name = network["name"]
        yield name, [cells[name, platform] for platform, _ in columns(outcome, dtype)]


def cell_text(cell: CellData) -> str:
    """One cell as text, for example "12.3 (15.1) ±1.1 % 1.9x"; "failed" if there is no latency.

    A latency that was corrected for the core's slowdown has the latency as timed in brackets.
    """
    if cell["latency_ms"] is None:
        return "failed"
    mark = "~" if cell["unstable"] else ""
    speedup = cell["speedup"]
    gain = f" {speedup:.1f}x" if speedup is not None and cell["threads"] != 1 else ""
    timed_ms = cell.get("uncorrected_ms")
    # MNN's protocol shows the mean of the runs, which is as timed.
    corrected = timed_ms is not None and cell["latency_ms"] != cell.get("mean_ms")
    timed = f" ({timed_ms:.4g})" if corrected else ""
    return f"{mark}{cell['latency_ms']:.4g}{timed} ±{cell['spread'] * 100:.1f} %{gain}"


def failures(outcome: Outcome) -> list[tuple[str, str, str]]:
    """Failed cells and runtimes that the board lacks, each as (network, platform, reason)."""
    failed = [
        (cell["network"], cell["platform"], cell["reason"])
        for cell in outcome["cells"]
        if cell["latency_ms"] is None
    ]
    return failed + [("all", name, reason) for name, reason in outcome["missing"].items()]


def facts(outcome: Outcome) -> dict[str, str]:
    """The conditions of the measurements, which every copy of the tables must show."""
    hardware = outcome["hardware"]
    begun, ended = outcome["measured_at_s"]
    day = datetime.fromtimestamp(begun, UTC).date().isoformat() if begun else "unknown"
    settings = outcome["settings"]
    if outcome["protocol"] == "mnn":
        how = "mean of 10 runs after one warm-up (MNN, section 4.1), as timed"
    else:
        how = (
            f"{outcome['passes'] * settings['sessions']} fresh sessions in all, medians, the "
            "core's slowdown taken out"
        )
    drift = [
        f"sentinel on {outcome['sentinel_platform']}: spread {mark['spread'] * 100:.1f} %, "
        f"drift {mark['drift'] * 100:+.1f} % over {mark['count']} measurements"
        for mark in outcome["sentinel"]
    ]
    shared = sum((cell.get("busy") or 0.0) > BUSY for cell in outcome["cells"])
    passes = f"{outcome['passes']} pass{'es' * (outcome['passes'] > 1)} in random order"
    versions = sorted({f"{found['engine']} ({found['version']})" for found in outcome["platforms"]})
    conditions = outcome["conditions"]
    return {
        "board": f"{outcome['board']}: {hardware.get('cpu', 'unknown processor')}",
        "cores": str(hardware.get("cores", "unknown")),
        "system": f"{conditions.get('os', 'unknown')}, "
        f"kernel {conditions.get('kernel', 'unknown')}",
        "taken on": f"{day}, within {(ended - begun) / 60:.0f} min",
        "engines": ", ".join(versions),
        "protocol": f"{passes}; {how}",
        "noise": "; ".join(drift) or "unknown",
        "measured again after a shift": str(outcome["void"]),
        "beside other work": f"{shared} of {len(outcome['cells'])} cells had their cores used by "
        f"others for more than {BUSY:.0%} of the time",
        "clocks": f"governor {conditions.get('governor', 'unknown')}, "
        f"highest {conditions.get('clock_max_khz', 'unknown')} kHz",
    }


def markdown(outcome: Outcome, model: ModelReport, title: str, picture: str = "") -> str:
    """The report as Markdown.

    Args:
        outcome: the outcome of the campaign.
        model: MNN's cost model, compared with it.
        title: heading of the page.
        picture: path of the plot, relative to the page; empty: there is none.
    """
    parts = [f"# {title}", ""]
    parts += [f"- **{name}**: {text}" for name, text in facts(outcome).items()]
    for dtype in dtypes(outcome):
        parts += ["", f"## {dtype}, ms", "", *markdown_table(outcome, dtype)]
    parts += ["", MARKS]
    if picture:
        parts += ["", f"![latency by network and engine]({picture})"]
    failed = failures(outcome)
    if failed:
        parts += ["", "## What failed", ""]
        parts += _md_table(["network", "platform", "reason"], [list(row) for row in failed])
    if model.rows:
        parts += ["", "## MNN's cost model against MNN", "", _model_lead(model), ""]
        parts += _md_table(*_model_rows(model))
        parts += ["", *_md_table(*_agreement_rows(model))]
        parts += ["", "Algorithms that it would choose, convolutions and matrix products:", ""]
        parts += [f"- {name}: {_counts(found)}" for name, found in model.algorithms.items()]
    return "\n".join(parts) + "\n"


def markdown_table(outcome: Outcome, dtype: str) -> list[str]:
    """Lines of the table of a data type: a row for each network, a column for each platform."""
    header = ["network", *(name for _, name in columns(outcome, dtype))]
    body = [[name, *map(_md_cell, cells)] for name, cells in rows(outcome, dtype)]
    return _md_table(header, body)


def render(outcome: Outcome, model: ModelReport, title: str) -> str:
    """The report as one HTML text that needs no other files."""
    body = []
    for dtype in dtypes(outcome):
        shown = columns(outcome, dtype)
        body.append(
            page.section(
                f"{dtype}, ms",
                page.table(
                    ["network", *(name for _, name in shown)],
                    (
                        [page.cell(name), *(_html_cell(cell) for cell in cells)]
                        for name, cells in rows(outcome, dtype)
                    ),
                ),
                "Green: the network's fastest; orange: failed. " + MARKS.partition(". ")[2],
            )
        )
        body.append(page.section(f"{dtype}: latency by engine", plot(outcome, dtype)))
    failed = [(f"{network} on {name}", reason) for network, name, reason in failures(outcome)]
    body.append(page.section("What failed", _listed(failed)))
    body.append(_model_section(model))
    body.append(page.section("Conditions", _listed(facts(outcome).items())))
    lead = ", ".join(facts(outcome)[name] for name in ("board", "taken on"))
    return page.page(title, lead, "".join(body))


def _html_cell(cell: CellData) -> str:
    if cell["latency_ms"] is None:
        return f'<td class="bad" title="{escape(cell["reason"])}">failed</td>'
    passes = ", ".join(f"{ms:.4g}" for ms in cell["passes_ms"])
    note = f"passes {passes} ms; {cell['runs']} runs in {cell['sessions']} sessions"
    kind = ' class="good"' if cell["fastest"] else ""
    latency, _, rest = map(escape, cell_text(cell).partition(" "))
    latency = f"<b>{latency}</b>" if cell["fastest"] else latency
    return f'<td{kind} title="{escape(note)}">{latency}<br><small>{rest}</small></td>'


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    """Texts of any length, each after its name."""
    return "".join(f"<p><b>{escape(name)}</b>: {escape(text)}</p>" for name, text in pairs)


def _md_cell(cell: CellData) -> str:
    return f"**{cell_text(cell)}**" if cell["fastest"] else cell_text(cell)


def _md_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [list(header), ["---"] * len(header), *map(list, body)]
    return ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]


def _model_lead(model: ModelReport) -> str:
    clock = (
        f" Clock by {model.clock}."
        if model.clock
        else " The host does not tell its clock, so the paper's 2e9 FLOPS stand in, whatever the "
        "number of threads."
    )
    return (
        "Jiang et al. 2020, Eqs. 2-5 and 9 and appendix C: no measurement goes into it. `direct` "
        "counts the direct algorithm's multiplications, `chosen` what the algorithms compute that "
        f"it would choose.{clock}"
    )


def _model_rows(model: ModelReport) -> tuple[list[str], list[list[str]]]:
    header = [
        "network",
        "platform",
        "corrected, ms",
        "direct, ms",
        "chosen, ms",
        "with one factor, ms",
    ]
    factor = model.agreement["all"]["chosen"].factor
    return header, [
        [
            row.network,
            row.platform,
            f"{row.measured_ms:.4g}",
            f"{row.direct_ms:.4g}",
            f"{row.chosen_ms:.4g}",
            f"{factor * row.chosen_ms:.4g}",
        ]
        for row in model.rows
    ]


def _agreement_rows(model: ModelReport) -> tuple[list[str], list[list[str]]]:
    header = ["rows", "counted", "factor", "error", "error with factor", "Pearson", "Kendall"]
    return header, [
        [f"{name} ({found.rows})", counted, *_agreement_cells(found)]
        for name, pair in model.agreement.items()
        for counted, found in pair.items()
    ]


def _agreement_cells(found: Agreement) -> list[str]:
    return [
        f"{found.factor:.3g}",
        f"{found.error:.0%}",
        f"{found.scaled_error:.0%}",
        *("-" if value is None else f"{value:.2f}" for value in (found.pearson, found.kendall)),
    ]


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.items())


def _model_section(model: ModelReport) -> str:
    if not model.rows:
        return ""
    blocks = []
    for header, body in (_model_rows(model), _agreement_rows(model)):
        blocks.append(page.table(header, ([*map(page.cell, row)] for row in body)))
    for name, layers in model.layers.items():
        listed = page.table(["op", "algorithm"], ([*map(page.cell, row)] for row in layers))
        counts = escape(f"{name}: {_counts(model.algorithms[name])}")
        blocks.append(f"<details><summary>{counts}</summary>{listed}</details>")
    return page.section(
        "MNN's cost model against MNN", "".join(blocks), _model_lead(model).replace("`", "")
    )
