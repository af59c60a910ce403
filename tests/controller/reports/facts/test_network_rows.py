"""Rows of unseen networks: their errors, their noise, and the summary over all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from latfarm_controller.reports.facts.network_rows import AccuracySummary, NetworkRow
from latfarm_predictors.predict.answer import Answer


def row(
    measured_ms: float,
    predicted_ms: float,
    interval_ms: tuple[float, float],
    passes_ms: Sequence[float] = (),
    baseline_ms: float = 0.0,
) -> NetworkRow:
    answer = Answer("n", "p", predicted_ms, interval_ms, 0.9, True, ())
    baselines = {"forest": baseline_ms} if baseline_ms else {}
    return NetworkRow(
        "n", measured_ms, measured_ms * 1.5, passes_ms or [measured_ms], answer, baselines
    )


def test_an_error_has_the_sign_of_the_prediction_less_the_corrected_latency() -> None:
    assert row(10.0, 12.0, (9.0, 13.0)).error == pytest.approx(0.2)
    assert row(10.0, 8.0, (7.0, 9.0)).error == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("measured_ms", "inside"), [(9.0, True), (13.0, True), (8.99, False), (13.01, False)]
)
def test_the_ends_of_an_interval_belong_to_it(measured_ms: float, inside: bool) -> None:
    assert row(measured_ms, 12.0, (9.0, 13.0)).inside is inside


def test_a_single_pass_tells_nothing_of_the_noise() -> None:
    single = row(10.0, 12.0, (9.0, 13.0))
    assert single.noise is None
    assert single.standard_error_ms is None
    summary = AccuracySummary.of([single])
    assert (summary.noise, summary.perfect, summary.standard_error) == (None, None, None)


def test_the_noise_compares_the_last_pass_with_the_first() -> None:
    assert row(10.0, 12.0, (9.0, 13.0), [10.0, 30.0, 9.0]).noise == pytest.approx(0.1)


def test_summary_counts_and_medians() -> None:
    rows = [
        row(10.0, 10.5, (9.0, 12.0), [10.0, 10.2], 20.0),
        row(100.0, 80.0, (70.0, 90.0), [100.0, 102.0], 200.0),
    ]
    summary = AccuracySummary.of(rows)
    assert summary.networks == 2
    assert summary.inside == 1
    assert summary.median_error == pytest.approx((0.05 + 0.2) / 2)
    assert summary.worst_error == pytest.approx(0.2)
    assert summary.noise == pytest.approx(0.02)
    assert (summary.within5.share, summary.within10.share) == (0.5, 0.5)
    assert summary.perfect is not None
    assert summary.perfect.within5.share == 1.0
    # Two passes that differ by 2 % of the first: half of that is the standard error of their mean.
    assert summary.standard_error == pytest.approx((0.01 + 0.01) / 2)
    assert summary.baseline_median_error["forest"] == pytest.approx(1.0)


def test_a_baseline_that_only_some_networks_have_is_judged_on_these() -> None:
    rows = [row(10.0, 10.0, (9.0, 11.0)), row(10.0, 10.0, (9.0, 11.0), baseline_ms=13.0)]
    assert AccuracySummary.of(rows).baseline_median_error == {"forest": pytest.approx(0.3)}


def test_a_summary_is_plain_data() -> None:
    summary = AccuracySummary.of([row(10.0, 10.5, (9.0, 12.0), [10.0, 10.2])])
    assert json.loads(json.dumps(summary.to_json()))["networks"] == 1
