"""The output of `latfarm predict` for people: one network in detail, or a table of many."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_controller.cli.answers.predict_remarks import COVERAGE, Remark
from latfarm_controller.cli.answers.predict_remarks import UNCALIBRATED as NOT_CALIBRATED
from latfarm_controller.cli.shell import output

if TYPE_CHECKING:
    from latfarm_predictors.predict.answer import Answer, EnergyAnswer
    from latfarm_predictors.trust.network_trust import NetworkTrust

MOST_KERNELS = 8
"""Number of kernels that the table shows, the longest first."""
ROOM_FOR_CONFIGURATIONS = 120
"""Columns of a terminal from which on configurations of kernels are shown; else their layers."""
MOST_NAMED = 3
"""Largest number of files that a remark on a table names in its command; for more, it names what
the caller named."""
UNCALIBRATED = " (uncalibrated: too few measured networks)"
"""Note after an interval whose width rests on no calibration networks."""


@dataclass
class Prediction:
    """All that is predicted of one model on one platform.

    Attributes:
        model: its file.
        answer: its latency.
        covered: share of the predicted time that is covered, from 0 to 1.
        remarks: what makes the answer less sure.
        cost: its energy; None unless it is asked for.
        trust: how far the answer can be trusted; None unless it is asked for.
        baselines: latencies by other predictors, in milliseconds, by their names.
    """

    model: Path
    answer: Answer
    covered: float = 1.0
    remarks: Sequence[Remark] = ()
    cost: EnergyAnswer | None = None
    trust: NetworkTrust | None = None
    baselines: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The answer as plain JSON types, with what else was asked for."""
        data = {"model": str(self.model)} | self.answer.to_json()
        data["covered"] = self.covered
        data["remarks"] = [r.to_json(self.model, self.answer.platform) for r in self.remarks]
        if self.cost is not None:
            data["energy"] = self.cost.to_json()
        if self.trust is not None:
            data["trust"] = self.trust.to_json()
        if self.baselines:
            data["baselines"] = self.baselines
        return data


def show_one(found: Prediction) -> None:
    """Print one prediction in detail: totals, remarks, kernels, other predictors, trust."""
    answer, cost = found.answer, found.cost
    _show_totals(found)
    _show_kernels(answer, cost)
    for text in answer.unsupported:
        output.out().print(f"unsupported: {text}", style="yellow")
    output.out().print()
    for name, latency_ms in found.baselines.items():
        output.out().print(f"by {name}: {latency_ms:.3f} ms")
    if found.trust is not None:
        from latfarm_controller.cli.answers.predict_explain import show_trust

        show_trust(found.trust)


def _show_totals(found: Prediction) -> None:
    """The latency, never alone: what limits it follows at once, with the next command."""
    answer, cost = found.answer, found.cost
    low, high = answer.interval_ms
    trust = "" if answer.calibrated else UNCALIBRATED
    console = output.out()
    told = [remark for remark in found.remarks if remark.kind != NOT_CALIBRATED]
    # Every export of some tools is named "main_graph", so the file names the network.
    console.print(
        f"{found.model.stem} on {answer.platform}: {answer.latency_ms:.3f} ms, "
        f"{answer.coverage:.0%} interval "
        f"{low:.3f} to {high:.3f} ms{trust}",
        style="" if told else "bold",
    )
    for remark in told:
        command = remark.command_for([found.model], answer.platform)
        _warn(f"{remark.text}; {remark.purpose}: {command}")
    if all(remark.kind != COVERAGE for remark in told):
        console.print(f"{found.covered:.0%} of the time is in kernels near to measured ones")
    if answer.guarantee is not None and answer.calibrated:
        console.print(answer.guarantee.sentence, style="dim")
    if cost is not None:
        low, high = cost.interval_mj
        trust = "" if cost.calibrated else UNCALIBRATED
        console.print(
            f"{cost.energy_mj:.4g} mJ an inference above rest, by {cost.rail}, "
            f"{cost.coverage:.0%} interval {low:.4g} to {high:.4g} mJ{trust}",
            style="" if told else "bold",
        )


def _show_kernels(answer: Answer, cost: EnergyAnswer | None) -> None:
    """A table of the longest kernels."""
    from latfarm_predictors.predict.source_words import in_words

    order = sorted(range(len(answer.kernels)), key=lambda i: -answer.kernels[i].latency_ms)
    longest = order[:MOST_KERNELS]
    console = output.out()
    # Configurations take six lines and more each where they are broken.
    narrow = console.is_terminal and console.width < ROOM_FOR_CONFIGURATIONS
    output.table(
        "",
        [
            *("kernel", "at layer" if narrow else "configuration", "ms", "interval"),
            *(["mJ"] if cost else []),
            "source",
        ],
        [
            [
                kernel.type,
                kernel.nodes[0]
                if narrow
                else " ".join(f"{k}={v}" for k, v in kernel.configuration.items()),
                f"{kernel.latency_ms:.4f}",
                "{:.4f} to {:.4f}".format(*kernel.interval_ms),
                *([f"{cost.kernels[index].energy_mj:.4g}"] if cost else []),
                in_words(kernel.source),
            ]
            for index in longest
            for kernel in [answer.kernels[index]]
        ],
    )
    if len(answer.kernels) > len(longest):
        hidden = len(answer.kernels) - len(longest)
        told = "the others, and all configurations: --json" if narrow else "--json"
        output.out().print(f"... and {hidden} shorter kernels ({told})")


def show_table(found: Sequence[Sequence[Prediction]], asked: Sequence[Path]) -> None:
    """Print one table of many models, or of one on several platforms.

    Args:
        found: for each platform, the predictions of all models, in the same order.
        asked: the files and folders that the caller named.
    """
    if len(found) == 1:
        _show_one_platform(found[0])
    else:
        _show_platforms(found)
    for predictions in found:
        _show_remarks(predictions, asked)


def _show_one_platform(predictions: Sequence[Prediction]) -> None:
    first = predictions[0]
    names = list(first.baselines)
    files = _short([one.model for one in predictions])
    output.table(
        f"on {first.answer.platform}; intervals hold {first.answer.coverage:.0%} of cases",
        [
            *("file", "ms", "interval", "covered"),
            *(["mJ"] if first.cost else []),
            *(f"{name}, ms" for name in names),
            "remark",
        ],
        [
            [
                file,
                f"{one.answer.latency_ms:.3f}",
                "{:.3f} to {:.3f}".format(*one.answer.interval_ms),
                f"{one.covered:.0%}",
                *([f"{one.cost.energy_mj:.4g}"] if one.cost else []),
                *(f"{one.baselines[name]:.3f}" for name in names),
                ", ".join(remark.short for remark in one.remarks),
            ]
            for file, one in zip(files, predictions, strict=True)
        ],
    )
    if first.answer.guarantee is not None and first.answer.calibrated:
        output.out().print(first.answer.guarantee.sentence, style="dim")


def _show_platforms(found: Sequence[Sequence[Prediction]]) -> None:
    """The table of several platforms, each of which is a column."""
    rows = []
    files = _short([one.model for one in found[0]])
    for file, same in zip(files, zip(*found, strict=True), strict=True):
        remarks = {
            f"{one.answer.platform}: {', '.join(remark.short for remark in one.remarks)}": None
            for one in same
            if one.remarks
        }
        cells = [
            "{:.3f} ({:.3f} to {:.3f})".format(one.answer.latency_ms, *one.answer.interval_ms)
            for one in same
        ]
        rows.append([file, *cells, "\n".join(remarks)])
    coverage = found[0][0].answer.coverage
    output.table(
        f"latency in ms, and its {coverage:.0%} interval",
        ["file", *(predictions[0].answer.platform for predictions in found), "remark"],
        rows,
    )


def _short(files: Sequence[Path]) -> list[str]:
    """The files without the folder that all of them are in, so that their names are not folded."""
    if len(files) < 2:
        return [str(file) for file in files]
    folder = os.path.commonpath([file.absolute().parent for file in files])
    return [os.path.relpath(file.absolute(), folder) for file in files]


def _show_remarks(predictions: Sequence[Prediction], asked: Sequence[Path]) -> None:
    """A line for each kind of remark on the models of one platform, with the next command."""
    platform = predictions[0].answer.platform
    kinds: dict[tuple[str, str], list[tuple[Path, Remark]]] = {}
    for one in predictions:
        for remark in one.remarks:
            kinds.setdefault((remark.kind, remark.short), []).append((one.model, remark))
    for noted in kinds.values():
        remark = noted[0][1]
        models = [model for model, _ in noted]
        command = remark.command_for(models if len(models) <= MOST_NAMED else asked, platform)
        counted = f"{len(models)} of {len(predictions)} on {platform}: {remark.short}"
        _warn(f"{counted}; {remark.purpose}: {command}")


def _warn(text: str) -> None:
    """Print a yellow line, however long it is, so that its command can be copied."""
    output.out().print(text, style="yellow", soft_wrap=True)
