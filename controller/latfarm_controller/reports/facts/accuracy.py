"""Accuracy of predictions of networks, by family of networks, compared with every baseline.

The columns are those of Table 8 of the nn-Meter paper: RMSPE, MAPE, and the shares within 5 % and
10 %. Latencies are corrected for the slowdown of the core, like those that the predictor learned
from; each network's latency as timed stands beside it. What a predictor without any error would
score stands beside them; `latfarm_predictors.judging` tells it from the differences between the
passes of each network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import exp
from statistics import median
from typing import TYPE_CHECKING, Any

from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.errors import NoBaselineError
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.judging import (
    RepeatedLatency,
    binomial_interval,
    hits,
    paired_difference,
    perfect_predictor,
)
from latfarm_predictors.predict.baseline_sums import BaselineSums
from latfarm_predictors.predict.predictor import PlatformPredictor

from latfarm_controller import zoo
from latfarm_controller.reports.facts.platform_record import (
    PlatformRecord,
    RefusedNetwork,
    SeenNetwork,
)

if TYPE_CHECKING:
    from latfarm_controller.reports.facts.kernel_baselines import FittedKernelBaseline

OURS = "latfarm"
"""Name of our own predictions among the methods."""
COVERAGE = 0.9
"""Coverage of the intervals in the report."""
OTHER = "other models"
"""Family of networks that are not of the zoo."""
_NUMBERED = re.compile(r"-\d+$")
"""The number at the end of the name of a variant."""


def network_family(name: str) -> str:
    """The lineage of a network of the zoo, by its name; `OTHER` for all other networks."""
    plain = _NUMBERED.sub("", name)
    for wanted in (name, plain):
        fits = [
            key
            for key in zoo.families()
            if wanted == key or wanted.startswith((f"{key}-x", f"{key}-", f"{key}@"))
        ]
        if fits:
            lineage = zoo.families()[max(fits, key=len)].lineage
            return sorted(lineage)[-1]
    return OTHER


def scores(predicted_ms: Sequence[float], measured_ms: Sequence[float]) -> dict[str, Any]:
    """The columns of Table 8 as shares, with binomial 95 % intervals, and the number of rows."""
    found = evaluate(predicted_ms, measured_ms)
    return {
        "count": found.count,
        "rmspe": found.rmspe,
        "mape": found.mean_ape,
        "within5": found.within5,
        "within10": found.within10,
        "within5_interval": list(binomial_interval(found.within5, found.count)),
        "within10_interval": list(binomial_interval(found.within10, found.count)),
    }


def interval_scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Share of measurements inside their interval, and the median relative width of intervals."""
    told = [row for row in rows if row.get("interval_ms")]
    if not told:
        return {"inside": None, "width": None}
    held = [row["interval_ms"][0] <= row["measured_ms"] <= row["interval_ms"][1] for row in told]
    widths = [(row["interval_ms"][1] - row["interval_ms"][0]) / row["predicted_ms"] for row in told]
    return {"inside": sum(held) / len(told), "width": median(widths)}


def repeat_scores(passes: Iterable[Sequence[float]]) -> dict[str, Any] | None:
    """The scores of the last pass as a prediction of the first; None if nothing has two passes.

    This is no limit of any predictor; see `perfect_scores`.
    """
    pairs = [(p[-1], p[0]) for p in passes if len(p) > 1 and min(p[0], p[-1]) > 0]
    return scores([p[0] for p in pairs], [p[1] for p in pairs]) if pairs else None


def perfect_scores(passes: Iterable[Sequence[float]]) -> dict[str, Any] | None:
    """What a predictor without any error would score; None if nothing has two passes."""
    found = perfect_predictor(p for p in passes if len(p) > 1 and min(p) > 0)
    if found is None:
        return None
    return {
        "count": found.within10.count,
        "passes": found.passes,
        "median_difference": found.median_difference,
        "within5": found.within5.share,
        "within10": found.within10.share,
        "within5_interval": [found.within5.low, found.within5.high],
        "within10_interval": [found.within10.low, found.within10.high],
    }


def leads(
    ours_ms: Sequence[float], others_ms: Mapping[str, Sequence[float]], measured_ms: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """The lead over each method in the share within 10 %, with the paired error."""
    ours = hits(ours_ms, measured_ms, 0.10)
    return {
        name: paired_difference(ours, hits(theirs, measured_ms, 0.10)).to_json()
        for name, theirs in others_ms.items()
    }


def network_accuracy(
    record: PlatformRecord, baselines: Sequence[FittedKernelBaseline]
) -> dict[str, Any]:
    """Accuracy for networks that the predictor never saw, and for its calibration networks.

    Each calibration network is left out of the correction that predicts it. For unseen networks all
    `BASELINES` of the bundle are judged. The bundle's baselines were fitted to kernels of the
    calibration networks, so for these networks they are judged by sums of kernels that each
    baseline did not see.

    Args:
        record: what is known about the platform.
        baselines: baselines of kernels with out-of-fold predictions; empty where the bundle holds
            no measurements.
    """
    predictor = record.predictor
    refused = refused_families(record)
    if predictor is None:
        return {"unseen": None, "calibration": None, "refused": refused}
    return {
        "unseen": _table(_rows(predictor, record.unseen)),
        "calibration": _table(_left_out(record, predictor, baselines)),
        "refused": refused,
    }


def refused_families(record: PlatformRecord) -> list[dict[str, Any]]:
    """The families with networks that the platform could not run; no accuracy speaks of these.

    For each family it tells the names of these networks, how many networks of the family were
    tried, and the first reason.
    """
    ran = [network_family(n.graph.name) for n in (*record.unseen, *record.calibration)]
    found: dict[str, list[RefusedNetwork]] = {}
    for network in record.refused:
        found.setdefault(network_family(network.graph.name), []).append(network)
    return [
        {
            "family": family,
            "networks": sorted(network.graph.name for network in networks),
            "tried": len(networks) + ran.count(family),
            "reason": networks[0].reason,
        }
        for family, networks in sorted(found.items())
    ]


def promise(predictor: PlatformPredictor) -> dict[str, Any]:
    """What intervals promise for the platform: expected coverage, and its 5 to 95 % range.

    Where other predictors of networks than the corrected sum of kernels were tried, `corrector`
    tells which of them is shipped, and why or why not.
    """
    promised = predictor.guarantee(COVERAGE)
    told = {**promised.to_json(), "sentence": promised.sentence}
    if predictor.shipping is not None:
        tried = predictor.shipping.all
        told["corrector"] = " ".join(f"{each.method}: {each.sentence}" for each in tried)
    return told


def _rows(predictor: PlatformPredictor, networks: Sequence[SeenNetwork]) -> list[dict[str, Any]]:
    answers = predictor.predict_many([network.graph for network in networks], COVERAGE)
    by_baseline = _baselines(predictor, [network.graph for network in networks])
    rows = []
    for place, (network, answer) in enumerate(zip(networks, answers, strict=True)):
        if network.passes_ms:
            others = {name: told[place] for name, told in by_baseline.items()}
            judged_by = RepeatedLatency.of(network.passes_ms)
            rows.append(
                _row(network, judged_by.mean_ms, answer.latency_ms, others)
                | {"interval_ms": list(answer.interval_ms), "unsupported": list(answer.unsupported)}
            )
    return rows


def _baselines(predictor: PlatformPredictor, graphs: Sequence[Graph]) -> dict[str, list[float]]:
    """Latencies of the networks in milliseconds, by each baseline of the bundle."""
    if not graphs:
        return {}
    asked = BaselineSums(predictor, graphs)
    found = {}
    for name in BASELINES:
        try:
            found[name] = asked.latency_ms(name)
        except NoBaselineError:  # an older version made the bundle, or it had too few measurements
            continue
    return found


def _left_out(
    record: PlatformRecord, predictor: PlatformPredictor, baselines: Sequence[FittedKernelBaseline]
) -> list[dict[str, Any]]:
    """Predictions of calibration networks from the correction's own leave-one-out residuals.

    A residual is the logarithm of corrected over predicted latency. The interval of each network is
    calibrated by the others: with its own score among those that calibrate it, no interval of nine
    networks could miss.
    """
    correction = predictor.correction
    residuals, scores = correction.residuals.tolist(), correction.scores.tolist()
    chosen = _calibrated_with(record, len(residuals))
    sums: dict[str, dict[str, float]] = {}
    if baselines and predictor.confidence is not None:
        from latfarm_controller.reports.facts.kernel_baselines import network_sums

        samples = [s for each in chosen if each is not None and (s := each.sample) is not None]
        told = network_sums(predictor, predictor.confidence, baselines, samples)
        sums = {hash_of(s.graph): each for s, each in zip(samples, told, strict=True)}
    rows = []
    for place, network in enumerate(chosen):
        sample = None if network is None else network.sample
        if network is None or sample is None:
            continue
        predicted_ms = sample.latency_ms * exp(-residuals[place])
        beside = sums.get(hash_of(network.graph), {})
        row = _row(network, sample.latency_ms, predicted_ms, beside)
        # A score is the absolute residual divided by its standard deviation.
        factor, _ = correction.calibration.without(place).factor(COVERAGE)
        sigma = abs(residuals[place]) / scores[place] if scores[place] > 0 else 0.0
        reach = factor * sigma
        interval = [predicted_ms * exp(-reach), predicted_ms * exp(reach)] if reach else None
        rows.append(row | {"interval_ms": interval, "unsupported": []})
    return rows


def _calibrated_with(record: PlatformRecord, count: int) -> list[SeenNetwork | None]:
    """The networks that the bundle was calibrated with, in the order of their residuals.

    It is None for a network that was not measured here in the campaign on show. Networks are found
    by their hashes, because those of other seeds have the same names. Bundles of older versions
    tell the names alone.

    Args:
        record: what is known about the platform.
        count: number of residuals; without as many networks, there are none to tell.
    """
    told = record.provenance.get("network_hashes")
    if told is None:
        by_name = {network.graph.name: network for network in record.calibration}
        found = [by_name.get(name) for name in record.provenance.get("networks", ())]
    else:
        by_hash = {network_hash_of(network.graph): network for network in record.calibration}
        found = [by_hash.get(key) for key in told]
    return found if len(found) == count else []


def _row(
    network: SeenNetwork,
    corrected_ms: float,
    predicted_ms: float,
    baseline_ms: Mapping[str, float],
) -> dict[str, Any]:
    return {
        "network": network.graph.name,
        "hash": hash_of(network.graph),
        "family": network_family(network.graph.name),
        "corrected_ms": corrected_ms,
        "timed_ms": network.timed_ms,
        "measured_ms": corrected_ms,  # the older name of "corrected_ms"
        "passes_ms": network.passes_ms,
        "standard_error_ms": RepeatedLatency.of(network.passes_ms).standard_error_ms,
        "predicted_ms": predicted_ms,
        "error": predicted_ms / corrected_ms - 1.0,
        "baseline_ms": dict(baseline_ms),
    }


def _table(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """All facts about a set of networks; None if it is empty."""
    if not rows:
        return None
    measured = [row["corrected_ms"] for row in rows]
    families = sorted({row["family"] for row in rows})
    ours = [row["predicted_ms"] for row in rows]
    others = {n: [row["baseline_ms"][n] for row in rows] for n in _told_of_all(rows)}
    return {
        "methods": {
            OURS: scores(ours, measured),
            **{name: scores(theirs, measured) for name, theirs in others.items()},
        },
        "leads": leads(ours, others, measured),
        "perfect": perfect_scores(row["passes_ms"] for row in rows),
        "repeat": repeat_scores(row["passes_ms"] for row in rows),
        "coverage": COVERAGE,
        **interval_scores(rows),
        "families": [
            {"family": name, **_family([row for row in rows if row["family"] == name])}
            for name in families
        ],
        "networks": sorted(rows, key=lambda row: -abs(row["error"])),
    }


def _family(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    measured = [row["corrected_ms"] for row in rows]
    by_baseline = {
        name: scores([row["baseline_ms"][name] for row in rows], measured)["within10"]
        for name in _told_of_all(rows)
    }
    return {
        **scores([row["predicted_ms"] for row in rows], measured),
        **interval_scores(rows),
        "perfect": perfect_scores(row["passes_ms"] for row in rows),
        "repeat": repeat_scores(row["passes_ms"] for row in rows),
        "baseline_within10": by_baseline,
    }


def _told_of_all(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The baselines that predict all of these networks, in the order of the first network."""
    return [n for n in rows[0]["baseline_ms"] if all(n in row["baseline_ms"] for row in rows)]
