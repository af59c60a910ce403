"""Sensors of boards that are made of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent.board.conditions import (
    CoreTicks,
    SensorReading,
    Sensors,
    Shares,
    fingerprint,
    shares,
    shown,
    spoiled_by,
    thermally_steady,
    throttled_throughout,
)
from latfarm_agent.worker import caches
from latfarm_agent.worker.caches import CacheFlusher

CPU = "sys/devices/system/cpu"


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_board_without_sensors_knows_nothing_and_says_so(tmp_path: Path) -> None:
    sensors = Sensors([1], tmp_path)
    assert sensors.read() == SensorReading(None, None, None)
    assert set(sensors.policy().values()) == {"unknown"}
    assert sensors.ticks() is None
    assert sensors.load() == "unknown"
    assert sensors.boot_id() == "unknown"
    assert sensors.hardware()["cpu"] == "unknown"
    assert sensors.hardware()["memory_bytes"] == "unknown"
    assert sensors.software()["os"]
    assert sensors.software()["kernel"]


def test_an_arm_board(tmp_path: Path) -> None:
    put(tmp_path, f"{CPU}/cpu2/cpufreq/scaling_cur_freq", "1512000\n")
    put(tmp_path, f"{CPU}/cpu2/cpufreq/scaling_governor", "performance\n")
    put(tmp_path, f"{CPU}/cpu2/cpufreq/scaling_max_freq", "1800000\n")
    put(tmp_path, f"{CPU}/cpu2/cpufreq/scaling_min_freq", "600000\n")
    for zone, milli in enumerate(("47250", "-273000", "127000", "51000")):
        put(tmp_path, f"sys/class/thermal/thermal_zone{zone}/temp", milli)
    put(tmp_path, "sys/class/thermal/cooling_device0/type", "thermal-cpufreq-0\n")
    put(tmp_path, "sys/class/thermal/cooling_device0/cur_state", "2\n")
    put(tmp_path, "sys/class/thermal/cooling_device1/type", "pwm-fan\n")
    put(tmp_path, "sys/class/thermal/cooling_device1/cur_state", "4\n")
    put(tmp_path, "sys/devices/platform/soc/soc:firmware/get_throttled", "50005\n")
    put(tmp_path, "var/lib/nvpmodel/status", "pmode:0002\n")
    put(tmp_path, "sys/class/power_supply/usb/online", "0\n")
    put(tmp_path, "proc/cpuinfo", "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd05\n")
    put(tmp_path, "proc/device-tree/model", "A Board\0")
    put(tmp_path, "proc/device-tree/serial-number", "1000000012345678\0")
    put(tmp_path, "proc/meminfo", "MemTotal:        1024 kB\nMemFree: 1 kB\n")
    put(tmp_path, "etc/os-release", 'ID=x\nPRETTY_NAME="An OS 12"\n')
    put(tmp_path, "proc/sys/kernel/random/boot_id", "abc\n")
    put(tmp_path, "proc/loadavg", "0.25 0.1 0.0 1/100 5\n")
    sensors = Sensors([2, 3], tmp_path)
    assert sensors.read() == SensorReading(1512.0, 51.0, 2 + 0x5, throttled=True)
    assert sensors.policy() == {
        "governor": "performance",
        "clock_max_khz": "1800000",
        "clock_min_khz": "600000",
        "power_mode": "pmode:0002",
        "power_source": "battery",
    }
    assert sensors.hardware()["cpu"] == "arm 0x41 part 0xd05"
    assert sensors.hardware()["model"] == "A Board"
    assert sensors.hardware()["memory_bytes"] == str(1024 * 1024)
    assert sensors.software()["os"] == "An OS 12"
    assert sensors.boot_id() == "abc"
    assert sensors.load() == "0.25"


def test_an_x86_host_with_hwmon_only(tmp_path: Path) -> None:
    put(tmp_path, "sys/class/hwmon/hwmon0/name", "nvme\n")
    put(tmp_path, "sys/class/hwmon/hwmon0/temp1_input", "90000\n")
    put(tmp_path, "sys/class/hwmon/hwmon1/name", "coretemp\n")
    put(tmp_path, "sys/class/hwmon/hwmon1/temp1_input", "61000\n")
    put(tmp_path, f"{CPU}/cpu0/thermal_throttle/core_throttle_count", "3\n")
    put(tmp_path, f"{CPU}/cpu0/thermal_throttle/package_throttle_count", "4\n")
    put(tmp_path, "proc/cpuinfo", "model name\t: A CPU @ 2 GHz\nflags : x\n")
    assert Sensors([0], tmp_path).read() == SensorReading(None, 61.0, 7)
    assert Sensors((), tmp_path).hardware()["cpu"] == "A CPU @ 2 GHz"


def test_ticks_are_those_of_the_measuring_cores(tmp_path: Path) -> None:
    text = (
        "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 10 0 0 90 0 0 0 0 0 0\nintr 5\n"
    )
    put(tmp_path, "proc/stat", text)
    assert Sensors([0], tmp_path).ticks() == CoreTicks(busy=19, idle=45, steal=8)
    assert Sensors([1], tmp_path).ticks() == CoreTicks(busy=10, idle=90, steal=0)
    assert Sensors((), tmp_path).ticks() == CoreTicks(busy=29, idle=135, steal=8)
    assert Sensors([7], tmp_path).ticks() is None


def test_shares() -> None:
    before, after = CoreTicks(100, 100, 0), CoreTicks(130, 160, 10)
    assert shares(before, after) == Shares(busy=0.3, steal=0.1)
    assert shares(before, before) == Shares(None, None)
    assert shares(None, after) == Shares(None, None)


def test_the_board_id_is_stable_and_kept_where_there_is_none(tmp_path: Path) -> None:
    bare, state, other = tmp_path / "bare", tmp_path / "state", tmp_path / "other"
    for folder in (bare, state, other):
        folder.mkdir()
    first = Sensors((), bare).board_id(state)
    assert Sensors((), bare).board_id(state) == first
    assert Sensors((), bare).board_id(other) != first
    put(bare, "etc/machine-id", "0123\n")
    by_machine = Sensors((), bare).board_id(other)
    assert by_machine == Sensors((), bare).board_id(state) != first
    put(bare, "proc/device-tree/serial-number", "42\0")
    assert Sensors((), bare).board_id(state) not in (first, by_machine)
    assert len(first) == 32


def test_this_machine_can_be_read() -> None:
    sensors = Sensors(sorted(os.sched_getaffinity(0))[-1:])
    reading = sensors.read()
    assert reading.clock_mhz is None or 10 < reading.clock_mhz < 10_000
    assert reading.temperature_c is None or 1 <= reading.temperature_c <= 125
    ticks = sensors.ticks()
    assert ticks is not None
    assert ticks.total > 0
    assert int(sensors.hardware()["memory_bytes"]) > 1 << 20


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1, max_size=5))
def test_the_fingerprint_depends_on_content_alone(parts: dict[str, str]) -> None:
    assert fingerprint(parts) == fingerprint(dict(reversed(list(parts.items()))))
    changed = dict(parts, extra="x") if "extra" not in parts else dict(parts, more="x")
    assert fingerprint(changed) != fingerprint(parts)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(None, 3, "unknown"), (0.0, 3, "0"), (1.25, 3, "1.25"), (100.0, 0, "100"), (1 / 3, 2, "0.33")],
)
def test_shown(value: float | None, digits: int, text: str) -> None:
    assert shown(value, digits) == text


def test_thermal_gate() -> None:
    steady = [(float(second), 45.0 + 0.01 * second) for second in range(31)]
    assert thermally_steady(steady, idle_c=44.0)
    assert not thermally_steady(steady[:20], idle_c=44.0), "not watched for long enough"
    assert not thermally_steady(steady, idle_c=40.0), "too hot"
    drifting = [(float(second), 45.0 + 0.02 * second) for second in range(31)]
    assert not thermally_steady(drifting, idle_c=44.0)
    assert not thermally_steady([], idle_c=44.0)


def test_what_spoils_a_measurement() -> None:
    calm, hot = SensorReading(2000.0, 50.0, 3), SensorReading(2000.0, 50.0, 4)
    dropped = SensorReading(1950.0, 50.0, 3)
    none = SensorReading(None, None, None)
    assert spoiled_by(calm, [calm], calm, clock=True) is None
    assert spoiled_by(none, [none], none, clock=True) is None
    assert "throttled" in (spoiled_by(calm, [], hot, clock=False) or "")
    assert "throttled" in (spoiled_by(calm, [hot], calm, clock=False) or "")
    assert "1950" in (spoiled_by(calm, [calm, dropped], calm, clock=True) or "")
    assert spoiled_by(calm, [calm, dropped], calm, clock=False) is None
    almost = SensorReading(1961.0, 50.0, 3)
    assert spoiled_by(calm, [calm, almost], calm, clock=True) is None


def test_a_board_that_throttles_all_the_time() -> None:
    calm, hot = (SensorReading(2000.0, 50.0, 3, throttled=each) for each in (False, True))
    none = SensorReading(2000.0, 50.0, 3)
    assert throttled_throughout(hot, [hot, none], hot) is True
    assert spoiled_by(hot, [hot], hot, clock=True) is None, "nothing has changed"
    for readings in ((calm, [hot], hot), (hot, [calm], hot), (hot, [], calm), (calm, [], calm)):
        assert throttled_throughout(*readings) is False
    assert throttled_throughout(hot, [], none) is None
    assert throttled_throughout(none, [], none) is None


@pytest.mark.parametrize(("told", "throttled"), [("e0000", False), ("50005", True)])
def test_firmware_that_throttles_now(tmp_path: Path, told: str, throttled: bool) -> None:
    """The upper bits of a Raspberry Pi tell what has happened since it was started."""
    put(tmp_path, "sys/devices/platform/soc/soc:firmware/get_throttled", f"{told}\n")
    assert Sensors([0], tmp_path).read().throttled is throttled


def test_a_counter_of_throttle_events_is_no_state(tmp_path: Path) -> None:
    put(tmp_path, f"{CPU}/cpu0/thermal_throttle/core_throttle_count", "3\n")
    assert Sensors([0], tmp_path).read() == SensorReading(None, None, 3, throttled=None)


def test_the_last_level_cache(tmp_path: Path) -> None:
    assert caches.last_level_bytes(0, tmp_path) is None
    for index, (kind, size) in enumerate(
        [("Data", "32K"), ("Instruction", "64M"), ("Unified", "2M"), ("Unified", "broken")]
    ):
        put(tmp_path, f"{CPU}/cpu0/cache/index{index}/type", kind)
        put(tmp_path, f"{CPU}/cpu0/cache/index{index}/size", size)
    assert caches.last_level_bytes(0, tmp_path) == 2 << 20


# Tells how many bytes a flusher of 64 MiB has, and how many more of its process are resident. It is
# a process of its own, because threads of other tests may free memory meanwhile.
FLUSHES = """
import os
from pathlib import Path
from latfarm_agent.worker.caches import CacheFlusher

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

flusher = CacheFlusher(64 << 20)
assert flusher.size_bytes == 0
before = resident_bytes()
flusher.flush()
print(flusher.size_bytes, resident_bytes() - before)
"""


def test_the_flusher_holds_twice_the_cache_in_pages_of_its_own() -> None:
    told = subprocess.run([sys.executable, "-c", FLUSHES], capture_output=True, check=True)
    size_bytes, grown_bytes = map(int, told.stdout.split())
    assert size_bytes == 128 << 20
    assert grown_bytes > 100 << 20, "its pages must be real"
    assert CacheFlusher(None).size_bytes == 0


def test_the_flusher_of_a_servers_cache_stays_small() -> None:
    flusher = CacheFlusher(300 << 20)
    flusher.flush()
    assert flusher.size_bytes == caches.MOST_BYTES == 128 << 20
