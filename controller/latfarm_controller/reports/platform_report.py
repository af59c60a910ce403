"""The report of a platform: all facts as plain data, and an HTML page made from them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from html import escape
from typing import Any

from latfarm_controller.reports.facts import conduct, methods
from latfarm_controller.reports.facts.accuracy import OURS, network_accuracy, promise
from latfarm_controller.reports.facts.fusion import fusion_facts
from latfarm_controller.reports.facts.platform_record import PlatformRecord
from latfarm_controller.reports.facts.staircases import staircases
from latfarm_controller.reports.facts.trust import trust_facts
from latfarm_controller.reports.pages import accuracy as html_accuracy
from latfarm_controller.reports.pages import conduct as html_conduct
from latfarm_controller.reports.pages import fusion as html_fusion
from latfarm_controller.reports.pages import page, words
from latfarm_controller.reports.pages import trust as html_trust

FORMAT = 1
"""Version of the facts; it changes when a reader of the JSON would have to change."""
# Sections of the page in their order: name of the link, title.
SECTIONS = (
    ("networks", "Networks"),
    ("staircases", "Staircases"),
    ("kernels", "Kernels"),
    ("fusion", "Fusion"),
    ("trust", "Coverage"),
    ("insight", "Kernel times"),
    ("sampling", "Sampling"),
    ("cost", "Cost"),
    ("conditions", "Conditions"),
    ("failures", "Failures"),
)


def platform_facts(record: PlatformRecord, *, now_s: float | None = None) -> dict[str, Any]:
    """All facts of the report, as plain JSON types. This takes seconds, because models are fitted.

    Args:
        record: what is known about the platform.
        now_s: Unix time of the report in seconds; None: now.
    """
    baselines = []
    if record.predictor is not None and record.predictor.confidence is not None:
        from latfarm_controller.reports.facts.kernel_baselines import kernel_baselines

        baselines = kernel_baselines(record.predictor, record.predictor.confidence)
    from latfarm_controller.reports.facts.kernel_accuracy import kernel_accuracy

    campaign, predictor = record.campaign, record.predictor
    return {
        "format": FORMAT,
        "platform": record.platform,
        "made_at_s": time.time() if now_s is None else now_s,
        "bundle": "" if predictor is None else predictor.bundle,
        "provenance": dict(record.provenance),
        "predictor": None if predictor is None else predictor.explain(),
        "campaign": None
        if campaign is None
        else {
            "campaign_id": campaign.campaign_id,
            "name": campaign.name,
            "state": campaign.state,
            "error": campaign.error,
        },
        "told": list(record.told),
        "networks": network_accuracy(record, baselines),
        "guarantee": None if predictor is None else promise(predictor),
        "staircases": staircases(record),
        "kernels": kernel_accuracy(record, baselines),
        "fusion": fusion_facts(record),
        "trust": trust_facts(record),
        "insight": methods.insight(record),
        "sampling": methods.sampling(record),
        "duration": conduct.duration(record),
        "conditions": conduct.conditions(record.all_measured),
        "drift": conduct.drift(record),
        "failures": conduct.failures(record.all_measured),
    }


def render(facts: Mapping[str, Any]) -> str:
    """The facts of `platform_facts` as one HTML text, without scripts and links to other files."""
    body = [
        html_accuracy.networks(facts["networks"], facts.get("guarantee")),
        html_accuracy.staircases(facts["staircases"]),
        html_accuracy.kernels(facts["kernels"]),
        html_fusion.fusion(facts["fusion"]),
        html_trust.trust(facts["trust"]),
        html_conduct.insight(facts["insight"]),
        html_conduct.sampling(facts["sampling"]),
        html_conduct.duration(facts["duration"]),
        html_conduct.conditions(facts["conditions"], facts["drift"]),
        html_conduct.failures(facts["failures"]),
    ]
    there = [(name, title) for (name, title), part in zip(SECTIONS, body, strict=True) if part]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in there)
    told = "".join(words.paragraph(text, "told") for text in facts["told"])
    head = told + page.figures(headline(facts)) + (f"<nav>{links}</nav>" if links else "")
    return page.page(
        f"What is known about {facts['platform']}",
        _lead(facts),
        head + "".join(body),
        page.PLATFORM_STYLE,
    )


def headline(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures at the top of the page: each value, and what it is."""
    networks = facts["networks"]["unseen"] or facts["networks"]["calibration"]
    boxes = []
    if networks:
        scores = networks["methods"][OURS]
        which = "never seen" if facts["networks"]["unseen"] else "left out"
        boxes += [
            (
                words.percent(scores["within10"]),
                f"of {scores['count']} networks {which}: within 10 %",
            ),
            (words.percent(scores["mape"]), "mean absolute error of these"),
        ]
        if networks["inside"] is not None:
            if facts["networks"]["unseen"]:  # of networks left out, 90 % are by construction
                inside = f"inside their {networks['coverage']:.0%} interval"
                boxes.append((words.percent(networks["inside"]), inside))
            boxes.append((words.percent(networks["width"]), "median width of the interval"))
    kernels = facts["kernels"]
    if kernels:
        boxes.append((f"{kernels['methods'][OURS]['count']:,}", "kernels learned from"))
    if facts["duration"]["measurements"]:
        boxes.append((words.time(facts["duration"]["board_ms"]), "of board time"))
    return boxes


def _lead(facts: Mapping[str, Any]) -> str:
    campaign = facts["campaign"]
    made = time.strftime("%Y-%m-%d", time.gmtime(facts["made_at_s"]))
    parts = [
        f"bundle {facts['bundle']}" if facts["bundle"] else "no predictor yet",
        "" if campaign is None else f"campaign {campaign['name']}, {campaign['state']}",
        f"report of {made}",
    ]
    return " · ".join(part for part in parts if part)
