"""A farm's measurements as rows of a transfer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_controller.training.transfer_rows import board_of, kind_of, rows_of, transfer_to
from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.measurement import Measurement, Outcome

from tests.predictors.transfer.boards import made_table


def measured(platform: str, network: str, latency_ms: float, **changes: object) -> Measurement:
    made = Measurement(
        f"{platform} {network}", network, platform, "query", Outcome.OK, latency_ms=latency_ms
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def farm(boards: int, *, configurations: int = 1) -> list[tuple[Measurement, str]]:
    """Boards that have measured 20 networks each."""
    table = made_table(boards=boards, configurations=configurations)
    return [
        (measured(f"{board}-ncnn1.0-fp32-{name[-1]}t", network, float(value)), f"net {network}")
        for name, board, row in zip(table.platforms, table.boards, table.latencies_ms, strict=True)
        for network, value in zip(table.networks, row, strict=True)
    ]


def test_the_newest_stable_measurement_counts() -> None:
    told = [
        (measured("a-ncnn1.0-fp32-1t", "x", 1.0, unstable=True), "X"),
        (measured("a-ncnn1.0-fp32-1t", "x", 2.0), "X"),
        (measured("a-ncnn1.0-fp32-1t", "x", 3.0), "X"),
        (measured("a-ncnn1.0-fp32-1t", "y", 4.0, unstable=True), "Y"),
        (measured("a-ncnn1.0-fp32-1t", "z", 5.0, outcome=Outcome.MODEL_ERROR), "Z"),
        (measured("a-ncnn1.0-fp32-1t", "n", float("nan")), "N"),
        (measured("b-ncnn1.0-gpu-fp32", "x", 6.0), "X"),
    ]
    found = rows_of(told)
    assert found.probes_ms("a-ncnn1.0-fp32-1t") == {"x": 2.0, "y": 4.0}
    assert found.table.networks[0] == "x"
    assert found.table.kinds == ("cpu", "gpu")
    assert found.names == {"x": "X", "y": "Y"}
    assert found.probes_ms("other") == {}
    assert found.place("other") is None


def test_kinds_and_boards_are_told_by_names() -> None:
    assert kind_of("pi5-ncnn1.0-gpu-fp32") == "gpu"
    assert kind_of("pi5-ncnn1.0-fp32-4t") == "cpu"
    assert kind_of("npu-vela4.0-int8") == "accelerator"
    assert board_of("pi5-ncnn1.0-fp32-4t") == "pi5"
    assert board_of("odd") == "odd"


def test_a_new_board_is_predicted_from_the_others() -> None:
    told = farm(8)
    platform = "b3-ncnn1.0-fp32-0t"
    mine = {m.graph_hash: m.latency_ms for m, _ in told if m.platform == platform}
    others = [each for each in told if each[0].platform != platform]
    transfer = transfer_to(rows_of(others), platform, 6)
    assert transfer.others == 7
    probes = transfer.plan(6)
    with pytest.raises(NotEnoughDataError):
        transfer.predict()
    measured_now = [each for each in told if each[0].graph_hash in probes]
    kept = [each for each in measured_now if each[0].platform == platform]
    found = transfer_to(rows_of(others + kept), platform, 6).predict()
    errors = [
        abs(value / (mine[name] or 1.0) - 1.0)
        for name, value in zip(found.networks, found.latency_ms.tolist(), strict=True)
    ]
    assert float(np.mean(errors)) < 0.15
    assert found.measured.sum() == 6


def test_other_platforms_of_the_board_are_its_configurations() -> None:
    told = [e for e in farm(5, configurations=2) if e[0].platform != "b2-ncnn1.0-fp32-1t"]
    transfer = transfer_to(rows_of(told), "b2-ncnn1.0-fp32-1t", 5)
    assert transfer.configurations.shape == (1, 20)
    assert transfer.others == 9
    assert "b2" not in transfer.board.table.boards


def test_on_one_board_each_platform_counts_as_a_board() -> None:
    told = [
        (replace(m, platform=f"local-sim{m.platform[1]}.0-fp32-1t"), name) for m, name in farm(4)
    ]
    transfer = transfer_to(rows_of(told), "local-sim9.0-fp32-1t", 5)
    assert transfer.others == 4
    assert len(transfer.configurations) == 0


def test_too_few_boards_are_told_with_the_remedy() -> None:
    with pytest.raises(NotEnoughDataError, match="latfarm query"):
        transfer_to(rows_of(farm(1)), "new-ncnn1.0-fp32-1t", 5)
    with pytest.raises(NotEnoughDataError, match="kind gpu"):
        transfer_to(rows_of(farm(6)), "new-ncnn1.0-gpu-fp32", 5)
    with pytest.raises(NotEnoughDataError):
        transfer_to(rows_of([]), "new-ncnn1.0-fp32-1t", 5)
