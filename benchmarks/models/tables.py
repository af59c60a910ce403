"""The tables of `make bench-models`: a row for each model, and one for each family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Protocol


class Examined(Protocol):
    """What the tables need of a model."""

    name: str
    family: str
    exported: bool
    read: bool
    predicted_ms: float | None
    interval_ms: tuple[float, float] | None
    corrected_ms: float | None

    @property
    def predicted(self) -> bool:
        """Whether the latency is predicted with all ops of the model."""
        ...


def share_read(rows: Sequence[Examined]) -> float:
    """Share of the exported models that are read and predicted."""
    exported = [row for row in rows if row.exported]
    return sum(row.read and row.predicted for row in exported) / len(exported) if exported else 0.0


def overall(rows: Sequence[Examined]) -> dict[str, Any]:
    """How well all models that were predicted and measured are predicted."""
    errors, inside, widths = [], 0, []
    for row in rows:
        if row.predicted_ms is None or row.interval_ms is None or row.corrected_ms is None:
            continue
        low_ms, high_ms = row.interval_ms
        errors.append(abs(row.predicted_ms / row.corrected_ms - 1.0))
        inside += low_ms <= row.corrected_ms <= high_ms
        widths.append((high_ms - low_ms) / row.predicted_ms)
    return {
        "judged": len(errors),
        "median_error": round(median(errors), 4) if errors else None,
        "within10": sum(error <= 0.1 for error in errors),
        "inside": inside,
        "median_width": round(median(widths), 4) if widths else None,
    }


def told(found: Mapping[str, Any]) -> str:
    """What became of all models, in a sentence or two.

    Args:
        found: the figures of all models, as `run.figures` gives them.
    """
    models, judged = found["models"], found["overall"]
    exported = sum(row["exported"] for row in models)
    share = f"{found['read_share']:.0%} of them are read and predicted"
    text = f"{exported} of {len(models)} models are exported, and {share}"
    if judged is None or not judged["judged"]:
        return text
    count = judged["judged"]
    return (
        f"{text}\n{count} are measured as well: median error {judged['median_error']:.1%}, "
        f"{judged['within10'] / count:.0%} within 10%; 90% intervals hold "
        f"{judged['inside'] / count:.0%}, median width {judged['median_width']:.0%}"
    )


def by_family(rows: Sequence[Examined], *, with_errors: bool) -> list[dict[str, Any]]:
    """Counts for each family, and the median error of those that were predicted and measured."""
    found = []
    for family in dict.fromkeys(row.family for row in rows):
        members = [row for row in rows if row.family == family]
        errors = [error_of(vars(row)) for row in members]
        known = [abs(error) for error in errors if error is not None]
        found.append(
            {
                "family": family,
                "models": len(members),
                "exported": sum(row.exported for row in members),
                "read": sum(row.read for row in members),
                "predicted": sum(row.predicted for row in members),
                "measured": sum(row.corrected_ms is not None for row in members),
                "median_error": round(median(known), 4) if known and with_errors else None,
            }
        )
    return found


def families(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each family."""
    header = ("models", "exported", "read", "predicted", "measured")
    lines = [f"{'family':<24}{''.join(f'{name:>10}' for name in header)}{'median error':>14}"]
    for row in rows:
        error = row["median_error"]
        counts = "".join(f"{row[name]:>10}" for name in header)
        lines.append(f"{row['family']:<24}{counts}{'-' if error is None else f'{error:.1%}':>14}")
    return "\n".join(lines)


def published(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the documentation's table: one for each family."""
    counts = ("models", "exported", "predicted", "measured")
    lines = []
    for row in rows:
        error = "-" if row["median_error"] is None else f"{row['median_error'] * 100:.1f} %"
        lines.append(f"| {' | '.join([row['family'], *(str(row[n]) for n in counts), error])} |")
    return lines


def error_of(row: Mapping[str, Any]) -> float | None:
    """Relative error of a prediction; None where a model was not predicted or not measured.

    Predictions are corrected latencies, so they are compared with those and not with times.
    """
    predicted_ms, corrected_ms = row["predicted_ms"], row["corrected_ms"]
    if predicted_ms is None or corrected_ms is None:
        return None
    return float(predicted_ms / corrected_ms - 1.0)


def by_model(rows: Sequence[Mapping[str, Any]], *, with_errors: bool) -> str:
    """A line for each model."""
    names = ("predicted, ms", "corrected, ms", "as timed, ms")
    lines = [f"{'model':<34}{'nodes':>7}{''.join(f'{name:>15}' for name in names)}{'error':>9}"]
    for row in rows:
        error = error_of(row) if with_errors else None
        cells = [
            f"{row['nodes'] or '-':>7}",
            f"{_ms(row['predicted_ms']):>15}",
            f"{_ms(row['corrected_ms']):>15}",
            f"{_ms(row['timed_ms']):>15}",
            f"{'-' if error is None else f'{error:+.1%}':>9}",
        ]
        reasons = [*(row["reasons"] or {}).values(), *row["unsupported"][:1]]
        lines.append(f"{row['name']:<34}{''.join(cells)}  {'; '.join(reasons)[:100]}".rstrip())
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
