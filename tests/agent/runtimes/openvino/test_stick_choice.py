"""Which stick is used, its chip and temperature, and its types, on a core that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Sequence

import pytest
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.openvino import sticks


def core(devices: Sequence[str], ids: Sequence[str] = ()) -> Any:
    """A core that knows these devices; sticks have these ids."""
    return SimpleNamespace(
        available_devices=["CPU", *devices], get_metric=lambda kind, metric: list(ids)
    )


def test_the_first_stick_by_name_is_used_where_none_is_named() -> None:
    assert sticks.chosen(core(["MYRIAD.1.4-ma2480", "MYRIAD.1.2-ma2480"]), "") == (
        "MYRIAD.1.2-ma2480"
    )
    assert sticks.chosen(core([]), "") == ""


def test_a_single_stick_is_found_by_its_id_too() -> None:
    named = "MYRIAD.1.2-ma2480"
    assert sticks.chosen(core([named]), named) == named
    assert sticks.chosen(core(["MYRIAD"], ["1.2-ma2480"]), named) == named


@pytest.mark.parametrize("devices", [[], ["MYRIAD.1.4-ma2480"], ["MYRIAD"]])
def test_a_named_stick_that_is_away_is_missing(devices: Sequence[str]) -> None:
    with pytest.raises(RuntimeFailure, match="is not plugged in") as failure:
        sticks.chosen(core(devices, ["1.4-ma2480"]), "MYRIAD.1.2-ma2480")
    assert failure.value.code == "RUNTIME_MISSING"


def test_the_chip_is_the_end_of_the_id() -> None:
    assert sticks.chip(core([]), "MYRIAD.1.2-ma2480") == "ma2480"
    assert sticks.chip(core([], ["1.2-ma2085"]), "MYRIAD") == "ma2085"
    assert sticks.chip(core([]), "MYRIAD") == ""


def test_a_temperature_that_cannot_be_read_is_unknown() -> None:
    def gone(metric: str) -> float:
        raise RuntimeError("NC_ERROR")

    assert sticks.thermal(SimpleNamespace(get_metric=lambda metric: 41.46)) == "41.5"
    assert sticks.thermal(SimpleNamespace(get_metric=gone)) == "unknown"


def test_the_temperature_after_is_read_when_it_is_asked_for() -> None:
    told = iter(["40.0", "50.0", "60.0"])
    conditions = sticks.StickConditions("MYRIAD", lambda: next(told))
    assert list(conditions) == [
        "device",
        "device_temperature_c_before",
        "device_temperature_c_after",
    ]
    assert len(conditions) == 3
    assert conditions["device_temperature_c_after"] == "50.0"
    assert conditions["device_temperature_c_after"] == "60.0"
    assert conditions["device_temperature_c_before"] == "40.0"


def test_inputs_get_a_type_that_a_stick_has() -> None:
    inputs = {name: SimpleNamespace(precision=name) for name in ("I64", "BOOL", "FP16", "U8")}
    sticks.narrow_inputs(SimpleNamespace(input_info=inputs))
    assert [info.precision for info in inputs.values()] == ["I32", "I32", "FP16", "U8"]
