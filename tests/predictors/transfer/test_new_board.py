"""A new board from few probes, on made-up boards whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.errors import NotEnoughDataError, TransferError
from latfarm_predictors.transfer.deviations import deviations, typical_ms
from latfarm_predictors.transfer.left_out import LeaveOut, configurations_of, folds, left_out, loss
from latfarm_predictors.transfer.model import TransferModel
from latfarm_predictors.transfer.new_board import NewBoard, TransferOptions
from latfarm_predictors.transfer.siblings import averaged, relative_table
from latfarm_predictors.transfer.table import LatencyTable, Transferred, TransferSettings

from tests.predictors.transfer.boards import made_table

FEW = TransferOptions(LeaveOut(probes=6, folds=4), (TransferSettings(likeness=0.0),))
"""Options with which a fit takes a moment."""


def held_out(table: LatencyTable, board: str) -> tuple[LatencyTable, LatencyTable]:
    """The rows of other boards, and those of one."""
    mine = np.array([name == board for name in table.boards])
    return table.kept(~mine), table.kept(mine)


def test_probes_tell_about_all_other_networks() -> None:
    others, mine = held_out(made_table(), "b5")
    truth = mine.latencies_ms[0]
    board = NewBoard.fit(others, "cpu", FEW)
    probes = board.plan(6)
    assert probes == board.plan(6)
    assert len(set(probes)) == 6
    measured = {name: float(truth[others.networks.index(name)]) for name in probes}
    found = board.predict(measured)
    unknown = ~found.measured
    assert unknown.sum() == 14
    errors = np.abs(np.log(found.latency_ms / truth))
    typical = np.log(truth / typical_ms(others.latencies_ms, np.ones(23)))
    assert errors[unknown].mean() < 0.3 * np.abs(typical - typical.mean())[unknown].mean()
    assert (found.low_ms[unknown] < found.latency_ms[unknown]).all()
    assert (found.latency_ms[unknown] < found.high_ms[unknown]).all()
    assert found.latency_ms[~unknown] == pytest.approx(truth[~unknown])
    assert found.low_ms[~unknown] == pytest.approx(truth[~unknown])
    assert found.calibrated


def test_intervals_cover_what_they_promise() -> None:
    table = made_table(1, boards=60, missing=0.1)
    inside = total = 0
    for board in [f"b{number}" for number in range(0, 60, 6)]:
        others, mine = held_out(table, board)
        fitted = NewBoard.fit(others, "cpu", FEW)
        truth = mine.latencies_ms[0]
        allowed = [n for n, value in zip(table.networks, truth, strict=True) if value == value]
        probes = fitted.plan(6, allowed)
        places = [table.networks.index(name) for name in probes]
        found = fitted.predict(dict(zip(probes, truth[places].tolist(), strict=True)))
        judged = ~found.measured & ~np.isnan(truth)
        within = (found.low_ms <= truth) & (truth <= found.high_ms)
        inside, total = inside + int(within[judged].sum()), total + int(judged.sum())
    assert 0.82 < inside / total < 0.97


def test_other_configurations_of_the_board_make_it_more_precise() -> None:
    table = made_table(2, configurations=2)
    settings = TransferSettings(likeness=0.0)
    alone = list(left_out(table, "cpu", settings, LeaveOut(4, 4)))
    beside = list(left_out(table, "cpu", settings, LeaveOut(4, 4, siblings=True)))
    assert len(alone) == len(beside) == 48
    assert loss(beside) < 0.7 * loss(alone)


def test_ratios_of_configurations() -> None:
    table = made_table(3, boards=3, configurations=2)
    ratios = relative_table(table)
    assert ratios.platforms[:2] == ("b0-c0 / b0-c1", "b0-c1 / b0-c0")
    assert ratios.latencies_ms[0] * ratios.latencies_ms[1] == pytest.approx(np.ones(20))
    assert len(relative_table(made_table(boards=3)).platforms) == 0
    assert configurations_of(table, 2)[0] == pytest.approx(table.latencies_ms[3])


def test_averages_ignore_what_an_expectation_does_not_know() -> None:
    nan = np.nan
    first = Transferred(np.array([1.0, 1.0, nan]), np.array([0.1, 0.1, nan]))
    second = Transferred(np.array([2.0, nan, nan]), np.array([0.1, nan, nan]))
    found = averaged([first, second])
    assert found.log_ms[:2] == pytest.approx([1.5, 1.0])
    assert np.isnan(found.log_ms[2])


def test_boards_like_the_new_one_correct_the_rest() -> None:
    rng = np.random.default_rng(5)
    table = made_table(5, boards=80, noise=0.01)
    # boards of four makes; what a make adds has a sign that the factors of all boards cannot tell
    logs = np.log(table.latencies_ms)
    cause = (logs - logs.mean(axis=1, keepdims=True))[:, 3]
    sign = np.sign(cause - np.median(cause))[:, None]
    make = rng.integers(0, 4, 80)
    added = rng.normal(0.0, 0.15, (4, 20))[make] * sign
    table = replace(table, latencies_ms=table.latencies_ms * np.exp(added))
    how = LeaveOut(6, 8)
    plain = loss(list(left_out(table, "cpu", TransferSettings(likeness=0.0), how)))
    alike = loss(list(left_out(table, "cpu", TransferSettings(likeness=0.6), how)))
    assert alike < 0.9 * plain


def test_amounts_of_work_explain_networks_whose_times_add_up() -> None:
    rng = np.random.default_rng(5)
    amounts = np.column_stack([np.ones(200), rng.integers(0, 5, (200, 3))]).astype(float)
    costs = rng.uniform(0.5, 2.0, (8, 4)) * np.exp(rng.normal(size=(8, 1)))
    latencies = costs @ amounts.T * np.exp(rng.normal(0.0, 0.05, (8, 200)))
    names = tuple(f"d{number}" for number in range(8))
    networks = tuple(f"n{number}" for number in range(200))
    table = LatencyTable(names, names, names, ("device",) * 8, networks, latencies, amounts)
    others, mine = held_out(table, "d3")
    board = NewBoard.fit(others, "device", TransferOptions(LeaveOut(12, 7)))
    assert board.settings.ratio
    truth = mine.latencies_ms[0]
    probes = board.plan(12)
    places = [networks.index(name) for name in probes]
    found = board.predict(dict(zip(probes, truth[places].tolist(), strict=True)))
    assert np.mean(np.abs(found.latency_ms / (costs[3] @ amounts.T) - 1.0)) < 0.05


def test_typical_latencies_ignore_the_speed_of_boards() -> None:
    latencies = np.array([[1.0, 2.0, np.nan], [10.0, np.nan, 30.0], [np.nan, 200.0, 300.0]])
    typical = typical_ms(latencies, np.ones(3))
    assert typical / typical[0] == pytest.approx([1.0, 2.0, 3.0], rel=0.05)
    found = deviations(latencies, np.ones(3), np.zeros((0, 0)), ratio=True)
    assert np.nanmax(np.abs(found.rest)) < 0.1


def test_folds_keep_groups_together() -> None:
    table = made_table(boards=7)
    parts = folds(table, "cpu", LeaveOut(folds=3, seed=1))
    assert sorted(len(part) for part in parts) == [2, 2, 3]
    assert set().union(*parts) == set(table.groups)
    assert folds(table, "gpu", LeaveOut()) == [set()]


def test_too_little_data_is_told() -> None:
    table = made_table(boards=4)
    with pytest.raises(NotEnoughDataError, match="kind 'gpu'"):
        TransferModel.fit(table, "gpu", TransferSettings())
    board = NewBoard.fit(table, "cpu", FEW)
    with pytest.raises(NotEnoughDataError, match="measure more"):
        board.predict({"n1": 1.0, "n2": 2.0})


def test_networks_that_no_other_board_measured_stay_unknown() -> None:
    table = made_table(boards=6)
    latencies = table.latencies_ms.copy()
    latencies[:, 7] = np.nan
    board = NewBoard.fit(replace(table, latencies_ms=latencies), "cpu", FEW)
    found = board.predict({"n1": 1.0, "n2": 2.0, "n3": 1.5, "n7": 4.0})
    assert "n7" not in board.plan(19)
    assert found.latency_ms[7] == 4.0
    assert np.isnan(board.predict({"n1": 1.0, "n2": 2.0, "n3": 1.5}).latency_ms[7])


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_probes_without_a_latency_are_refused(value: float) -> None:
    board = NewBoard.fit(made_table(boards=4), "cpu", FEW)
    with pytest.raises(TransferError, match="not positive"):
        board.predict({"n1": 1.0, "n2": 1.0, "n3": value})
    with pytest.raises(TransferError, match="has measured other"):
        board.predict({"other": 1.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boards": ("a",)}, "needs a board"),
        ({"latencies_ms": np.ones((3, 3))}, "do not fit"),
        ({"latencies_ms": np.zeros((4, 20))}, "not positive"),
        ({"latencies_ms": np.full((4, 20), np.inf)}, "not positive"),
        ({"amounts": np.ones((3, 2))}, "do not fit"),
        ({"amounts": np.full((20, 2), np.nan)}, "not finite"),
        ({"networks": ("n",) * 20}, "twice"),
    ],
)
def test_tables_that_contradict_themselves_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(TransferError, match=message):
        replace(made_table(boards=4), **changes)  # type: ignore[arg-type]
