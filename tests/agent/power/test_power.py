"""The rails of boards that are made of files, and the choice among them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.agent_config import read_config
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.power.hwmon import find_hwmon, whole_of
from latfarm_agent.power.integration import COUNTER, POWER
from latfarm_agent.power.rails import PowerConfig, Rails, Recorder
from latfarm_agent.power.rapl import find_rapl
from latfarm_agent.power.supply import find_power_supplies

XAVIER_NX = {"1": ("VDD_IN", 4976, 1200), "2": ("VDD_CPU_GPU_CV", 4976, 300)}
ORIN = {"1": ("VDD_GPU_SOC", 19000, 200), "2": ("VDD_CPU_CV", 19000, 100)}
ORIN_SECOND = {"1": ("NC", 0, 0), "2": ("VDDQ_VDD2_1V8AO", 1100, 50), "3": ("VIN_SYS_5V0", 5000, 9)}


def put(root: Path, path: str, values: Mapping[str, object]) -> Path:
    """Write small files into one folder."""
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def put_zone(root: Path, zone: str, name: str, energy_uj: int, size_uj: int = 262143328850) -> None:
    put(
        root,
        f"sys/class/powercap/{zone}",
        {"name": name, "energy_uj": energy_uj, "max_energy_range_uj": size_uj},
    )


def put_ina3221(root: Path, hwmon: str, channels: Mapping[str, tuple[str, int, int]]) -> None:
    values: dict[str, object] = {"name": "ina3221", "in4_input": 80, "curr4_input": 5000}
    for channel, (label, millivolts, milliamperes) in channels.items():
        values[f"in{channel}_label"] = label
        values[f"in{channel}_input"] = millivolts
        values[f"curr{channel}_input"] = milliamperes
    put(root, f"sys/class/hwmon/{hwmon}", values)


def names(rails: Any) -> list[str]:
    return [rail.name for rail in rails]


class FakeNvml:
    """A double of NVML with GPUs, each with (power in mW, energy in mJ)."""

    def __init__(self, *gpus: tuple[float | None, float | None]) -> None:
        self.gpus = gpus

    def power_mw(self, index: int) -> float | None:
        return self.gpus[index][0] if index < len(self.gpus) else None

    def energy_mj(self, index: int) -> float | None:
        return self.gpus[index][1] if index < len(self.gpus) else None


def test_rapl_adds_packages_and_memory_and_not_what_lies_within(tmp_path: Path) -> None:
    put_zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    put_zone(tmp_path, "intel-rapl:0:0", "core", 3_000_000)
    put_zone(tmp_path, "intel-rapl:0:1", "dram", 700_000)
    put_zone(tmp_path, "intel-rapl:1", "package-1", 2_000_000)
    put_zone(tmp_path, "intel-rapl:1:0", "dram", 300_000)
    put_zone(tmp_path, "intel-rapl:2", "psys", 9_000_000)
    put_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)
    rails = find_rapl(tmp_path)
    assert rails[0].name == "rapl:package-0+package-1+dram@0+dram@1"
    assert rails[0].read() == pytest.approx(8000.0)
    assert names(rails[1:]) == [
        "rapl:package-0", "rapl:core", "rapl:dram@0", "rapl:package-1", "rapl:dram@1", "rapl:psys"
    ]  # fmt: skip
    assert {rail.kind for rail in rails} == {COUNTER}


def test_a_counter_of_rapl_goes_on_where_it_starts_over(tmp_path: Path) -> None:
    size_uj = 1_000_000
    put_zone(tmp_path, "intel-rapl:0", "package-0", 900_000, size_uj)
    rail = find_rapl(tmp_path)[0]
    told = []
    for energy_uj in (900_000, 990_000, 40_000, 500_000, 20_000):
        put_zone(tmp_path, "intel-rapl:0", "package-0", energy_uj, size_uj)
        told.append(rail.read())
    assert told == [900.0, 990.0, 1040.0, 1500.0, 2020.0]


def test_a_counter_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    put_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    file = tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj"
    file.unlink()
    file.mkdir()  # what even root cannot read
    rails, why = Rails(tmp_path).chosen({})
    assert rails == []
    assert "may not be read" in why
    assert "root" in why


def test_the_input_of_a_jetson_goes_before_its_parts(tmp_path: Path) -> None:
    put_ina3221(tmp_path, "hwmon3", XAVIER_NX)
    rails = find_hwmon(tmp_path)
    assert names(rails) == ["ina3221:VDD_IN", "ina3221:VDD_CPU_GPU_CV"]
    whole = whole_of(rails)
    assert whole is not None
    assert (whole.name, whole.kind) == ("ina3221:VDD_IN", POWER)
    assert whole.read() == pytest.approx(4.976 * 1200)


def test_a_board_without_such_an_input_is_the_sum_of_its_rails(tmp_path: Path) -> None:
    put_ina3221(tmp_path, "hwmon0", ORIN)
    put_ina3221(tmp_path, "hwmon1", ORIN_SECOND)
    whole = whole_of(find_hwmon(tmp_path))
    assert whole is not None
    # Without channels that are not connected, rails that another rail feeds, and a chip's own sums.
    assert whole.name == "ina3221:VDD_GPU_SOC+VDD_CPU_CV+VIN_SYS_5V0"
    assert whole.read() == pytest.approx(3800.0 + 1900.0 + 45.0)
    (tmp_path / "sys/class/hwmon/hwmon1/curr3_input").unlink()
    assert whole.read() is None
    assert "VIN_SYS_5V0 cannot be read" in whole.obstacle()


def test_jetsons_before_release_35_tell_by_iio(tmp_path: Path) -> None:
    folder = "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    put(
        tmp_path,
        folder,
        {
            "rail_name_0": "POM_5V_IN",
            "rail_name_1": "POM_5V_GPU",
            "in_power0_input": 2345,
            "in_power1_input": 82,
            "in_power0_trigger_input": 1,
        },
    )
    whole = whole_of(find_hwmon(tmp_path))
    assert whole is not None
    assert (whole.name, whole.read()) == ("ina3221:POM_5V_IN", 2345.0)


def test_other_chips_tell_power_or_energy(tmp_path: Path) -> None:
    put(tmp_path, "sys/class/hwmon/hwmon2", {"name": "ina226", "power1_input": 1_500_000})
    put(
        tmp_path,
        "sys/class/hwmon/hwmon10",
        {"name": "scmi_sensors", "energy1_input": 7_000_000, "energy1_label": "SYS"},
    )
    put(tmp_path, "sys/class/hwmon/hwmon4", {"name": "amdgpu", "power1_average": 9_000_000})
    put(tmp_path, "sys/class/hwmon/hwmon5", {"name": "nvme", "temp1_input": 40_000})
    put(tmp_path, "sys/class/hwmon/hwmon6", {"name": "ina3221", "in1_input": 1, "in1_enable": 0})
    rails = {rail.name: rail for rail in find_hwmon(tmp_path)}
    assert list(rails) == ["ina226:1", "amdgpu:1", "scmi_sensors:SYS"]
    assert rails["ina226:1"].read() == 1500.0
    assert (rails["scmi_sensors:SYS"].kind, rails["scmi_sensors:SYS"].read()) == (COUNTER, 7000.0)
    assert rails["amdgpu:1"].read() == 9000.0
    assert names(Rails(tmp_path).chosen({})[0]) == ["ina226:1"]


def test_a_battery_tells_only_while_it_feeds_the_board(tmp_path: Path) -> None:
    battery = put(
        tmp_path,
        "sys/class/power_supply/battery",
        {
            "type": "Battery",
            "status": "Discharging",
            "current_now": -250_000,
            "voltage_now": 4_000_000,
        },
    )
    put(
        tmp_path,
        "sys/class/power_supply/mouse",
        {"type": "Battery", "scope": "Device", "power_now": 1},
    )
    put(tmp_path, "sys/class/power_supply/usb", {"type": "USB", "online": 0})
    rails = find_power_supplies(tmp_path)
    assert names(rails) == ["power_supply:battery"]
    assert rails[0].read() == pytest.approx(1000.0)
    assert rails[0].obstacle() == ""
    for status in ("Charging", "Full", "Not charging"):
        (battery / "status").write_text(status)
        assert rails[0].read() is None
        assert f"is {status.lower()}" in rails[0].obstacle()
        assert Rails(tmp_path).chosen({}) == ([], rails[0].obstacle())


def test_a_board_without_battery_may_measure_its_input(tmp_path: Path) -> None:
    supply = put(
        tmp_path,
        "sys/class/power_supply/axp20x-usb",
        {"type": "USB", "online": 1, "current_now": 400_000, "voltage_now": 5_000_000},
    )
    (rail,) = find_power_supplies(tmp_path)
    assert rail.read() == pytest.approx(2000.0)
    (supply / "online").write_text("0")
    assert "not plugged in" in rail.obstacle()


def test_what_is_there_decides(tmp_path: Path) -> None:
    rails = Rails(tmp_path)
    found, why = rails.chosen({})
    assert found == []
    assert "no power rail" in why
    put(
        tmp_path,
        "sys/class/power_supply/BAT0",
        {"type": "Battery", "status": "Discharging", "power_now": 9_000_000},
    )
    assert names(rails.chosen({})[0]) == ["power_supply:BAT0"]
    put_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    assert names(rails.chosen({})[0]) == ["rapl:package-0"]
    put_ina3221(tmp_path, "hwmon0", XAVIER_NX)
    assert names(rails.chosen({})[0]) == ["ina3221:VDD_IN"]
    assert list(rails.found()) == [
        "rapl:package-0", "ina3221:VDD_IN", "ina3221:VDD_CPU_GPU_CV", "power_supply:BAT0"
    ]  # fmt: skip


def test_a_gpu_counts_for_the_platforms_that_use_it(tmp_path: Path) -> None:
    put_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    gpu = {"provider": "CUDAExecutionProvider"}
    counting = Rails(tmp_path, nvml=lambda: FakeNvml((90_000.0, 123_456.0), (1.0, 1.0)))
    assert names(counting.chosen({})[0]) == ["rapl:package-0"]
    found = counting.chosen(gpu)[0]
    assert names(found) == ["rapl:package-0", "nvml:0"]
    assert (found[1].kind, found[1].read()) == (COUNTER, 123_456.0)
    older = Rails(tmp_path, nvml=lambda: FakeNvml((90_000.0, None)))
    assert [(rail.kind, rail.read()) for rail in older.chosen(gpu)[0]][1] == (POWER, 90_000.0)
    silent, why = Rails(tmp_path, nvml=lambda: FakeNvml((None, None))).chosen(gpu)
    assert silent == []
    assert "NVML" in why


def test_a_configuration_chooses_rails(tmp_path: Path) -> None:
    put_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    put_zone(tmp_path, "intel-rapl:0:0", "core", 1_000_000)
    put_ina3221(tmp_path, "hwmon0", XAVIER_NX)

    def chosen(*wanted: str) -> tuple[list[str], str]:
        found, why = Rails(tmp_path, PowerConfig(wanted)).chosen({})
        return names(found), why

    assert chosen("rapl:core") == (["rapl:core"], "")
    assert chosen("rapl") == (["rapl:package-0"], "")
    assert chosen("ina3221:VDD_CPU_GPU_CV", "rapl:core")[0] == [
        "ina3221:VDD_CPU_GPU_CV", "rapl:core"
    ]  # fmt: skip
    assert chosen("none")[1].endswith("switches energy off")
    missing, why = chosen("ina3221:VDD_OUT")
    assert missing == []
    assert "no rail 'ina3221:VDD_OUT'" in why
    assert "ina3221:VDD_IN" in why


def test_the_agents_configuration_file_names_rails(tmp_path: Path) -> None:
    file = tmp_path / "agent.json"
    file.write_text('{"power": {"rails": ["rapl", "nvml:0"], "hz": 100}}')
    assert read_config(file).power == PowerConfig(("rapl", "nvml:0"), 100.0)
    file.write_text('{"power": {"rails": "none"}}')
    assert read_config(file).power == PowerConfig(("none",))
    file.write_text("{}")
    assert read_config(file).power == PowerConfig()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ([], "must be an object"),
        ({"rail": "rapl"}, "unknown key 'rail'; known: rails, hz"),
        ({"rails": []}, "list of names"),
        ({"rails": [1]}, "list of names"),
        ({"rails": ["auto", "rapl"]}, "stand alone"),
        ({"hz": "often"}, "number of samples"),
        ({"hz": True}, "number of samples"),
        ({"hz": 0.1}, "from 5 to 1000"),
    ],
)
def test_a_wrong_configuration_is_named(entry: object, says: str) -> None:
    with pytest.raises(AgentUsageError, match=says):
        PowerConfig.from_json(entry)


class Counting:
    """A rail that remembers how often it was read, and on which cores."""

    kind = COUNTER
    step = 0.0
    name = "counting"

    def __init__(self, gaps: bool = False) -> None:
        self.count = 0
        self.gaps = gaps
        self.cores: set[int] = set()
        self.read_often = threading.Event()

    def read(self) -> float | None:
        self.count += 1
        self.cores |= os.sched_getaffinity(0)
        if self.count >= 20:
            self.read_often.set()
        return None if self.gaps and self.count % 2 else float(self.count)

    def obstacle(self) -> str:
        return ""


def test_rails_are_sampled_until_the_end_and_off_the_measuring_core() -> None:
    rail, gaps = Counting(), Counting(gaps=True)
    cores = os.sched_getaffinity(0)
    measuring = min(cores)
    recorder = Recorder([rail, gaps], lambda: 1.0, 500.0, avoid=[measuring])
    assert rail.read_often.wait(30.0)
    records, busy = recorder.stop()
    again, _ = recorder.stop()
    assert again == records
    assert rail.cores == (cores - {measuring} or cores)
    assert os.sched_getaffinity(0) == cores
    assert list(records[0].values) == [float(n + 1) for n in range(rail.count)]
    assert list(records[0].times_s) == sorted(records[0].times_s)
    assert list(records[1].values) == [float(n) for n in range(2, gaps.count + 1, 2)]
    assert busy is not None
    assert len(busy.values) == rail.count
    assert Recorder([], lambda: None, 500.0).stop() == ([], None)
