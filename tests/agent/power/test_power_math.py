"""Energy from readings, compared with values that are computed by hand."""

from __future__ import annotations

import math
import random

import pytest
from latfarm_agent.power.integration import (
    COUNTER,
    POWER,
    EnergyUnavailable,
    Record,
    Span,
    energy_between,
    figure,
)

IDLE_MW, WORK_MW = 2000.0, 5000.0
SPANS = [
    Span(1.0, 2.0, 0),
    Span(3.0, 3.5, 50, 0.5),
    Span(3.5, 4.0, 50, 0.5),
    Span(4.0, 4.5, 50, 0.5),
    Span(5.5, 6.5, 0),
]
"""Rest, three spans of 50 runs, and rest; the model runs from 2.5 s to 5.0 s."""


def power_mw(moment: float) -> float:
    """Power of the board at a moment."""
    return WORK_MW if 2.5 <= moment < 5.0 else IDLE_MW


def energy_mj(moment: float) -> float:
    """Energy of the board from time 0 to a moment."""
    busy_s = min(max(moment - 2.5, 0.0), 2.5)
    return IDLE_MW * moment + (WORK_MW - IDLE_MW) * busy_s


def times(period_s: float = 0.02, end_s: float = 7.0) -> list[float]:
    return [index * period_s for index in range(round(end_s / period_s) + 1)]


def counter(period_s: float = 0.02, update_s: float = 0.001, step_mj: float = 0.0) -> Record:
    """A counter that is updated every `update_s` and read every `period_s`."""
    moments = times(period_s)
    values = [energy_mj(math.floor(moment / update_s + 1e-9) * update_s) for moment in moments]
    if step_mj:
        values = [math.floor(value / step_mj) * step_mj for value in values]
    return Record("rapl:package-0", COUNTER, moments, values, step=step_mj)


def power(period_s: float = 0.02, noise_mw: float = 20.0, update_s: float = 0.0) -> Record:
    draw = random.Random(1)
    moments = times(period_s)
    values: list[float] = []
    for moment in moments:
        seen = math.floor(moment / update_s) * update_s if update_s else moment
        renewed = not values or not update_s or moment - seen < period_s / 2
        values.append(power_mw(seen) + draw.gauss(0, noise_mw) if renewed else values[-1])
    return Record("ina3221:VDD_IN", POWER, moments, values)


def test_a_counter_is_read_between_its_samples() -> None:
    found = energy_between(counter(), 3.005, 4.005)
    assert found.value == pytest.approx(WORK_MW, rel=1e-3)
    assert 0 < found.sigma < 0.02 * found.value


def test_power_is_integrated_from_end_to_end() -> None:
    found = energy_between(power(), 1.0, 2.0)
    assert found.value == pytest.approx(IDLE_MW, rel=0.01)
    assert found.sigma > 0
    ramp = Record("r", POWER, [0.0, 0.2, 0.6], [0.0, 100.0, 300.0])
    # The integral of a power that grows by 500 mW per second, from 0.1 s to 0.5 s.
    assert energy_between(ramp, 0.1, 0.5).value == pytest.approx(250.0 * (0.25 - 0.01))


@pytest.mark.parametrize(
    "record",
    [counter(), counter(step_mj=5.0), counter(update_s=0.1), power(), power(noise_mw=400.0)],
    ids=["counter", "coarse counter", "slow counter", "power", "noisy power"],
)
def test_an_inference_costs_what_it_adds_to_rest(record: Record) -> None:
    found = figure([record], SPANS, None)
    assert found.runs == 150
    assert found.spans == (3, 3)
    assert found.span_ms == pytest.approx(1500.0)
    assert found.energy_mj == pytest.approx(30.0, abs=3 * found.spread_mj + 0.2)
    assert found.gross_mj == pytest.approx(50.0, rel=0.03)
    assert found.idle_mw == pytest.approx(IDLE_MW, abs=3 * found.idle_spread_mw + 10)
    assert 0 < found.spread_mj < 0.25 * found.energy_mj


def test_the_spread_covers_what_sampling_leaves_open() -> None:
    """Nine of ten energies lie within two of their standard deviations of the true one."""
    inside = 0
    for seed in range(40):
        draw = random.Random(seed)
        moments = times()
        values = [max(0.0, power_mw(moment) + draw.gauss(0, 300.0)) for moment in moments]
        found = figure([Record("noisy", POWER, moments, values)], SPANS, None)
        inside += abs(found.energy_mj - 30.0) <= 2 * found.spread_mj
    assert inside >= 36


def test_rails_that_do_not_overlap_add_up() -> None:
    found = figure([counter(), power()], SPANS, None)
    assert found.energy_mj == pytest.approx(60.0, rel=0.03)
    assert found.idle_mw == pytest.approx(2 * IDLE_MW, rel=0.02)


def test_a_drifting_rest_is_taken_in_the_middle_and_doubted() -> None:
    moments = times()
    drifting = [power_mw(moment) + 100.0 * moment for moment in moments]
    steady = [power_mw(moment) + 375.0 for moment in moments]
    found = figure([Record("r", POWER, moments, drifting)], SPANS, None)
    known = figure([Record("r", POWER, moments, _touched(steady))], SPANS, None)
    assert found.rests_mw == pytest.approx((IDLE_MW + 150.0, IDLE_MW + 600.0), rel=0.01)
    assert found.energy_mj == pytest.approx(known.energy_mj, rel=0.01)
    assert found.idle_spread_mw > 5 * known.idle_spread_mw


def _touched(values: list[float]) -> list[float]:
    """The last digit of the readings changes, as with any rail."""
    return [value + index % 2 for index, value in enumerate(values)]


def busy(extra_cores: float, begin_s: float, end_s: float) -> Record:
    """CPU seconds of all cores: those of the runs, and of another load between two moments."""
    moments = times()
    values = []
    for moment in moments:
        own = min(max(moment - 2.5, 0.0), 2.5)
        other = min(max(moment - begin_s, 0.0), end_s - begin_s)
        values.append(own + extra_cores * other)
    return Record("busy", COUNTER, moments, values)


def test_a_span_beside_another_load_does_not_count() -> None:
    disturbed = counter()
    values = [
        value + 4000.0 * min(max(moment - 3.5, 0.0), 0.5)
        for moment, value in zip(disturbed.times_s, disturbed.values)
    ]
    record = Record("rapl", COUNTER, disturbed.times_s, values)
    found = figure([record], SPANS, busy(1.0, 3.5, 4.0))
    assert found.spans == (2, 3)
    assert found.runs == 100
    assert found.energy_mj == pytest.approx(30.0, rel=0.05)
    # Without the load's CPU time, the spans contradict each other.
    with pytest.raises(EnergyUnavailable, match="cannot tell"):
        figure([record], SPANS, None)


def test_a_load_beside_most_of_the_runs_leaves_nothing() -> None:
    with pytest.raises(EnergyUnavailable, match=r"another load ran beside 2 of 3 spans.*1\.\d\d"):
        figure([counter()], SPANS, busy(1.0, 3.0, 4.0))


def test_a_load_while_the_board_rests_leaves_nothing() -> None:
    with pytest.raises(EnergyUnavailable, match="while the board rested"):
        figure([counter()], SPANS, busy(0.6, 0.0, 7.0))
    one_rest = figure([counter()], SPANS, busy(1.0, 5.2, 7.0))
    assert len(one_rest.rests_mw) == 1
    assert one_rest.energy_mj == pytest.approx(30.0, rel=0.02)


def test_the_runs_own_time_is_no_other_load() -> None:
    found = figure([counter()], SPANS, busy(0.1, 0.0, 7.0))
    assert found.spans == (3, 3)


def test_a_rail_that_is_too_slow_says_so() -> None:
    gauge = power(update_s=2.3, noise_mw=5.0)
    with pytest.raises(EnergyUnavailable, match=r"ina3221:VDD_IN cannot tell: .* longer"):
        figure([gauge], SPANS, None)


def test_nothing_above_rest_is_no_energy_of_zero() -> None:
    draw = random.Random(3)
    moments = times()
    flat = [IDLE_MW + draw.gauss(0, 50.0) for _ in moments]
    with pytest.raises(EnergyUnavailable, match="cannot tell"):
        figure([Record("r", POWER, moments, flat)], SPANS, None)


def test_a_rail_that_never_moves_is_none() -> None:
    moments = times()
    with pytest.raises(EnergyUnavailable, match="does not move"):
        figure([Record("stuck", POWER, moments, [3000.0] * len(moments))], SPANS, None)


@pytest.mark.parametrize("gone", [(0.0, 1.5), (5.0, 7.1), (2.0, 4.2)])
def test_a_rail_that_could_not_be_read_is_none(gone: tuple[float, float]) -> None:
    whole = counter()
    kept = [
        (moment, value)
        for moment, value in zip(whole.times_s, whole.values)
        if not gone[0] <= moment < gone[1]
    ]
    record = Record("r", COUNTER, [m for m, _ in kept], [v for _, v in kept])
    with pytest.raises(EnergyUnavailable, match="could not be read"):
        figure([record], SPANS, None)


def test_an_exact_account_is_taken_as_it_is() -> None:
    ends = sorted({moment for span in SPANS for moment in (span.begin_s, span.end_s)})
    record = Record("own", COUNTER, ends, [energy_mj(moment) for moment in ends], exact=True)
    found = figure([record], SPANS, None)
    assert found.energy_mj == pytest.approx(30.0, rel=1e-12)
    assert found.spread_mj == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([], "missing"),
        ([Span(1.0, 2.0, 0)], "missing"),
        ([Span(3.0, 3.5, 5)], "missing"),
        ([Span(1.0, 1.0, 0), Span(3.0, 3.5, 5)], "no time passed"),
    ],
)
def test_spans_that_make_no_sense(spans: list[Span], says: str) -> None:
    with pytest.raises(EnergyUnavailable, match=says):
        figure([counter()], spans, None)
    with pytest.raises(EnergyUnavailable, match="no rail"):
        figure([], spans, None)
