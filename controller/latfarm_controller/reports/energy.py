"""Energies in the report on unseen networks: what an inference takes, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.answer import EnergyAnswer

from latfarm_controller.reports.pages import page


@dataclass(frozen=True)
class EnergyRow:
    """The energy of one network, predicted and measured.

    Energies are in millijoules for one inference, without what the board takes at rest.

    Attributes:
        network: its name.
        measured_mj: the measured energy.
        spread_mj: the standard deviation of the measured energy.
        answer: the prediction.
    """

    network: str
    measured_mj: float
    spread_mj: float
    answer: EnergyAnswer

    @property
    def error(self) -> float:
        """Relative error with its sign: (predicted - measured) / measured."""
        return self.answer.energy_mj / self.measured_mj - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured energy lies in the interval."""
        low, high = self.answer.interval_mj
        return low <= self.measured_mj <= high


def energy_rows(
    answers: Mapping[str, EnergyAnswer], measured: Sequence[Measurement]
) -> list[EnergyRow]:
    """The networks whose energy was measured at the rail that the predictor learned from.

    Args:
        answers: predictions by the hash of their graph, in the order to show them.
        measured: measurements of any graphs; the median counts where a graph has several.
    """
    rows = []
    for graph_hash, answer in answers.items():
        mine = [
            m
            for m in measured
            if m.graph_hash == graph_hash
            and m.energy_mj is not None
            and m.energy_source == answer.rail
        ]
        if mine:
            energy_mj = median(m.energy_mj or 0.0 for m in mine)
            spread_mj = median(m.energy_spread_mj or 0.0 for m in mine)
            rows.append(EnergyRow(answer.network, energy_mj, spread_mj, answer))
    return rows


def section(rows: Sequence[EnergyRow]) -> str:
    """The section of the page on energies; empty without rows."""
    if not rows:
        return ""
    coverage = rows[0].answer.coverage
    errors = [abs(row.error) for row in rows]
    table = page.table(
        ["network", "measured, mJ", "predicted, mJ", "error", "interval, mJ", "inside?"],
        (
            [
                page.cell(row.network),
                page.cell(f"{row.measured_mj:.4g} ± {row.spread_mj:.2g}"),
                page.cell(f"{row.answer.energy_mj:.4g}"),
                page.cell(f"{row.error * 100:+.1f} %", "good" if abs(row.error) <= 0.1 else "bad"),
                page.cell("{:.4g} to {:.4g}".format(*row.answer.interval_mj)),
                page.cell("yes" if row.inside else "no", "good" if row.inside else "bad"),
            ]
            for row in rows
        ),
    )
    idle_mw = rows[0].answer.idle_mw
    rest = "" if idle_mw is None else f" The board takes {idle_mw:.4g} mW at rest."
    return page.section(
        "Energy of an inference",
        table,
        f"Above what the board takes at rest, by {rows[0].answer.rail}.{rest} Median error "
        f"{median(errors):.1%}, {sum(row.inside for row in rows)} of {len(rows)} inside their "
        f"{coverage:.0%} interval.",
    )


def energy_facts(rows: Sequence[EnergyRow], measured: Sequence[Measurement]) -> dict[str, Any]:
    """Energies as plain JSON types, with one sentence that sums them up.

    Args:
        rows: energies that were predicted and measured.
        measured: all measurements; where none has an energy, they tell why.
    """
    stories = [m.energy_story for m in measured if m.energy_story]
    summary = "no energy was measured" + (f": {stories[0]}" if stories else "")
    if rows:
        error = median(abs(row.error) for row in rows)
        summary = (
            f"energy by {rows[0].answer.rail}: median error {error:.1%}, "
            f"{sum(row.inside for row in rows)} of {len(rows)} inside"
        )
    return {
        "summary": summary,
        "networks": [
            {
                "network": row.network,
                "measured_mj": row.measured_mj,
                "spread_mj": row.spread_mj,
                "predicted_mj": row.answer.energy_mj,
                "interval_mj": row.answer.interval_mj,
                "rail": row.answer.rail,
            }
            for row in rows
        ],
    }
