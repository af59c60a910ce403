"""Prints what judged networks say about a predictor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.unseen.verdicts import OURS, OWN_PARTS

PERFECT = "a perfect predictor"
"""Name of the row with what a predictor without any error would score."""


def show(title: str, found: Mapping[str, Any]) -> None:
    """Print the results of a platform, of one seed or pooled over several."""
    passes = f"{found['passes']} passes of each"
    doubt = found["standard_error_percent"]
    error = "" if doubt is None else f", standard error of their mean {doubt} % (median)"
    print(
        f"\n{title}: {found['networks']} networks of {found['families']} families; {passes}{error}"
    )
    print(f"{'':<22} {'RMSPE':>7} {'MAPE':>7} {'+-5 %':>21} {'+-10 %':>21}  latfarm is ahead by")
    for name, row in found["table"].items():
        lead = found["leads"].get(name.partition(" (")[0])
        shown = f"{row['rmspe']:>7} {row['mean_ape']:>7} {share(row, 5):>21} {share(row, 10):>21}"
        print(f"{name:<22} {shown}  {'' if name == OURS or lead is None else ahead(lead)}")
    ideal = found["perfect"]
    if ideal:
        shown = f"{'':>7} {'':>7} {share(ideal, 5):>21} {share(ideal, 10):>21}"
        print(f"{PERFECT:<22} {shown}")
    said = "ahead" if found["ahead_of_all"] else "not ahead"
    parts = ", ".join(sorted(OWN_PARTS))
    print(
        f"latfarm is {said} of every baseline by more than the paired error ({parts}: no baseline)"
    )
    _show_classes(found)
    _show_families(found)
    _show_missing(found)
    print("worst:", "; ".join(f"{n} {m} as {o}" for n, m, o in found["worst"][:5]))


def share(row: Mapping[str, Any], within: int) -> str:
    """A share in per cent with its binomial interval."""
    low, high = row[f"within{within}_interval"]
    return f"{row[f'within{within}']} ({low} to {high})"


def ahead(lead: Mapping[str, Any]) -> str:
    """A lead in points with its interval, and a mark where it may be chance."""
    low, high = lead["interval"]
    mark = "" if lead["ahead"] else ", may be chance"
    return f"{lead['points']:+} ({low:+} to {high:+}){mark}"


def _show_classes(found: Mapping[str, Any]) -> None:
    """Accuracy and coverage of each class of networks, where both classes judge."""
    for name, row in found.get("by_class", {}).items():
        ideal = row["perfect"]
        best = f", a perfect predictor {share(ideal, 10)}" if ideal else ""
        low, high = row["shipped"]["interval"]
        print(
            f"{row['networks']} {name}: {share(row['table'][OURS], 10)} within 10 %{best}; "
            f"{row['shipped']['percent']} % ({low} to {high}) inside, median width "
            f"{row['shipped']['median_width_percent']} %"
        )


def _show_families(found: Mapping[str, Any]) -> None:
    """Accuracy and coverage of each family, beside a perfect predictor and recalibration."""
    shipped = found["shipped"]["by_family_percent"]
    again = (found.get("coverage") or {}).get("by_family_percent", {})
    print(
        f"{'family':<22} {'networks':>8} {'+-5 %':>7} {'+-10 %':>21} {'perfect, both':>14}", end=""
    )
    print(f" {'inside, shipped':>16} {'recalibrated':>13}")
    for name, row in found["by_family"].items():
        best = row["perfect"]
        ideal = f"{best['within5']}, {best['within10']}" if best else "-"
        print(
            f"{name:<22} {row['networks']:>8} {row['within5']:>7} {share(row, 10):>21} {ideal:>14} "
            f"{shipped[name]:>16} {again.get(name, '-'):>13}"
        )
    low, high = found["shipped"]["interval"]
    print(
        f"90 % intervals as shipped: {found['shipped']['percent']} % inside ({low} to {high}), "
        f"median width {found['shipped']['median_width_percent']} %"
    )
    spread = found.get("coverage")
    if spread:
        print(
            f"recalibrated with 20 judged networks: {spread['mean_percent']} % over "
            f"{spread['recalibrations']} recalibrations, median width "
            f"{spread['median_width_percent']} %; the paper's convolution "
            f"{spread['convolution_percent']} %, {spread['convolution_width_percent']} %"
        )


def _show_missing(found: Mapping[str, Any]) -> None:
    for family, (count, of) in found["cannot_run"].items():
        print(f"not measured, and in no share: {count} of {of} networks of family {family}")


def show_seed(found: Mapping[str, Any]) -> None:
    """Print what is told of a single seed alone: fusion, related families, speed and load."""
    for place, told in found["fusion"].items():
        if told:
            print(
                f"fusion by times, {place}: precision {_ratio(told['precision'])}, recall "
                f"{_ratio(told['recall'])} ({told['fused']} fused pairs of {told['pairs']})"
            )
    related = found["related_families"]
    print(
        f"families of judged lineages in the draws of kernels and of calibration: {len(related)}"
        + (f" ({', '.join(related)})" if related else "")
    )
    promise = found.get("guarantee")
    if promise:  # results of earlier versions have none
        print(f"calibration networks drawn as {found['calibration_draw']}: {promise['sentence']}")
    print(f"{found['predict_per_s']} predictions/s, single {found['predict_single_ms']} ms")
    load = found["load"]
    print(
        f"load of the board while the networks were measured: median {load['median_1m']}, most "
        f"{load['most_1m']}, stolen time at most {load['most_steal_share']}; load of this host "
        f"before and after: {load['host_before_and_after_1m']}"
    )


def _ratio(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"
