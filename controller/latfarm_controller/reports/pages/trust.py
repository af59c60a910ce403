"""The report's section on trust in predictions: platform, networks, layers, and remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from latfarm_predictors.confidence.too_wide import MOST_WIDTH, says_nothing

from latfarm_controller.reports.pages import page, words

METRICS = ("CM_TV", "CM_LV", "CM_O")
_NOTE = (
    "CM_TV, CM_LV and CM_O are the smart padding paper's conformal intervals around its "
    "statistical model, as relative widths: by variance of throughput, by variance of latency, and "
    "by distance to what was measured. They are uncalibrated: of networks they hold far less than "
    f"they promise. Where one is wider than {MOST_WIDTH:g} times the prediction, it says nothing "
    "of the latency and is not shown. Covered: 100 % was measured as it is, 50 % lies an octave "
    "from the nearest measurement."
)


def trust(facts: Mapping[str, Any] | None) -> str:
    """The section on trust; empty if there is no predictor."""
    if facts is None:
        return ""
    if facts["missing"]:
        body = words.paragraph(facts["missing"], "told")
    else:
        body = _networks(facts) + _platform(facts["platform"])
    return page.section(
        "Where predictions are badly covered, and what would help", body, _NOTE, "trust"
    )


def _networks(facts: Mapping[str, Any]) -> str:
    networks: Sequence[Mapping[str, Any]] = facts["networks"]
    if not networks:
        return ""
    rows = [
        [
            page.cell(each["network"]),
            page.cell(words.ms(each["latency_ms"])),
            page.cell(words.span(each["calibrated_ms"])),
            page.cell(words.percent(_width(each), 0)),
            *(
                page.cell(_paper_width(each["paper"].get(name, {}).get("width")))
                for name in METRICS
            ),
            page.cell(words.percent(each["coverage"], 0)),
            page.cell(f"{each['badly_covered']} of {each['layers']}"),
        ]
        for each in networks
    ]
    level = networks[0]["level"]
    header = ["network", "predicted, ms", f"calibrated {level:.0%}, ms", "width"]
    header += [f"{name}, uncalibrated" for name in METRICS] + ["covered", "layers badly covered"]
    whose = (
        "networks that the predictor never saw" if facts["of_unseen"] else "calibration networks"
    )
    left = facts["known"] - len(networks)
    caption = (
        f"The {len(networks)} worst covered of {facts['known']} {whose}"
        if left
        else (f"{words.count(len(networks), 'network')}: {whose}, worst covered first")
    )
    return (
        "<h3>By network</h3>"
        + words.table(header, rows, caption)
        + "".join(_layers(each) for each in networks if each["worst"])
    )


def _paper_width(width: float | None) -> str:
    """A relative width of the paper's intervals; one that tells nothing is called that."""
    if width is not None and says_nothing(width):
        return "says nothing"
    return words.percent(width, 0)


def _width(each: Mapping[str, Any]) -> float:
    low, high = each["calibrated_ms"]
    return float((high - low) / each["latency_ms"])


def _layers(network: Mapping[str, Any]) -> str:
    rows = [
        [
            page.cell(layer["name"]),
            words.text_cell(f"{layer['kind']}: {_sizes(layer['configuration'])}"),
            page.cell(words.ms(layer["latency_ms"])),
            page.cell(words.span(layer["interval_ms"])),
            *(page.cell(_paper_width(layer["widths"].get(name))) for name in METRICS),
            page.cell(words.percent(layer["coverage"], 0)),
            words.text_cell(", ".join(layer["outside"]) or words.NONE),
            f'<td class="text">{words.command(layer["remedy"])}</td>',
        ]
        for layer in network["worst"]
    ]
    header = ["layer", "kernel", "predicted, ms", "calibrated, ms", *METRICS, "covered"]
    header += ["beyond all measured", "measure it"]
    many, shown = network["badly_covered"], len(rows)
    most = f", the {shown} longest" if many > shown else ""
    remedy = (
        f"<p>All of them, to {words.percent(network['reached'], 0)} covered: "
        f"{words.command(network['remedy'])}</p>"
    )
    return (
        f"<details><summary>{escape(network['network'])}: "
        f"{words.count(many, 'layer')} badly covered{most}</summary>"
        f"{words.table(header, rows)}{remedy}</details>"
    )


def _sizes(configuration: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in configuration.items() if k != "family")


def _platform(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return ""
    rows = [_family(each) for each in told["families"]]
    rows.append(_family(told["whole"]))
    header = ["kernel family", "measured", "layers", f"inside calibrated {told['level']:.0%}"]
    header += ["calibrated width", *(f"{name}, uncalibrated" for name in METRICS)]
    header += ["covered", "badly covered"]
    gaps = [
        [
            page.cell(gap["family"]),
            words.text_cell(gap["what"]),
            f'<td class="text">{words.command(gap["remedy"])}</td>',
        ]
        for gap in told["gaps"]
    ]
    body = "<h3>By kernel family, and the whole platform</h3>" + words.table(header, rows)
    if gaps:
        body += "<h3>What the platform lacks</h3>" + words.table(
            ["kernel family", "lacks", "measure it"], gaps
        )
    return body


def _family(each: Mapping[str, Any]) -> list[str]:
    some = each["layers"] > 0
    return [
        page.cell(each["family"]),
        page.cell(each["measured"]),
        page.cell(each["layers"]),
        page.cell(words.percent(each["calibrated_inside"] if each["measured"] else None, 0)),
        page.cell(words.percent(each["calibrated_width"] if some else None, 0)),
        *(page.cell(_paper_width(each["widths"].get(name))) for name in METRICS),
        page.cell(words.percent(each["coverage"] if some else None, 0)),
        page.cell(words.percent(each["badly"] if some else None, 0)),
    ]
