"""NVML through ctypes, with a double of the library that is compiled here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_agent.nvidia.nvml import POWER_CAP, Nvml, open_nvml


@pytest.fixture(name="nvml")
def _nvml(nvml_library: Path) -> Iterator[Nvml]:
    nvml = open_nvml(str(nvml_library))
    assert nvml is not None
    yield nvml
    nvml.close()


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEVICES", "REASONS", "OLD", "PART", "BROKEN", "CLOCK"):
        monkeypatch.delenv(f"LATFARM_NVML_{name}", raising=False)


def test_figures(nvml: Nvml) -> None:
    assert nvml.driver == "560.35.03"
    assert (nvml.count, nvml.name(0), nvml.index_of("0000:65:00.0")) == (1, "Double GPU", 0)
    assert (nvml.clock_mhz(0), nvml.max_clock_mhz(0)) == (1410.0, 1980.0)
    assert (nvml.memory_clock_mhz(0), nvml.application_clock_mhz(0)) == (2619.0, 1410.0)
    assert (nvml.temperature_c(0), nvml.persistence(0)) == (47.0, True)
    assert (nvml.power_mw(0), nvml.power_limit_mw(0)) == (71500.0, 700000.0)
    assert nvml.energy_mj(0) == 5000000001.0


def test_several_devices(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATFARM_NVML_DEVICES", "3")
    assert (nvml.count, nvml.index_of("0000:65:00.0")) == (3, 2)
    assert nvml.index_of("0000:01:00.0") is None
    assert nvml.clock_mhz(2) == 1410.0
    assert nvml.clock_mhz(3) is None
    assert nvml.name(3) is None
    assert nvml.throttles(3) is None
    assert nvml.energy_mj(3) is None


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    ("mask", "reasons", "throttles"),
    [
        (0x1, (), 0.0),  # idle
        (0x113, (), 0.0),  # idle, application clocks, sync boost, display
        (0x4, (POWER_CAP,), 0.0),
        (0x24, (POWER_CAP, "software thermal slowdown"), 1.0),
        (0xC8, ("hardware slowdown", "hardware thermal slowdown", "hardware power brake"), 3.0),
    ],
)
def test_throttling(
    nvml: Nvml,
    monkeypatch: pytest.MonkeyPatch,
    old: bool,
    mask: int,
    reasons: tuple[str, ...],
    throttles: float,
) -> None:
    if old:
        monkeypatch.setenv("LATFARM_NVML_OLD", "1")
    monkeypatch.setenv("LATFARM_NVML_REASONS", hex(mask))
    assert nvml.throttle_reasons(0) == reasons
    assert nvml.throttles(0) == throttles


def test_a_board_that_tells_a_part(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATFARM_NVML_PART", "1")
    assert (nvml.clock_mhz(0), nvml.power_mw(0), nvml.energy_mj(0)) == (None, None, None)
    assert (nvml.throttles(0), nvml.persistence(0)) == (None, None)
    assert nvml.temperature_c(0) == 47.0


def test_closed(nvml: Nvml) -> None:
    nvml.close()
    nvml.close()
    assert (nvml.count, nvml.clock_mhz(0), nvml.driver) == (0, None, None)


def test_what_is_missing(nvml_library: Path, driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_nvml("libno-such-nvml.so") is None
    assert open_nvml(str(driver)) is None  # a library, but not NVML
    monkeypatch.setenv("LATFARM_NVML_DEVICES", "0")
    assert open_nvml(str(nvml_library)) is None
    monkeypatch.delenv("LATFARM_NVML_DEVICES")
    monkeypatch.setenv("LATFARM_NVML_BROKEN", "1")
    assert open_nvml(str(nvml_library)) is None
