"""The output of Jetsons' tools, in the formats of several JetPacks.

The lines are ours, written after the "Jetson Linux Developer Guide"; each names its release.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from latfarm_agent.nvidia import tegra
from latfarm_agent.nvidia.tegra import Clocks, Stats, Tegrastats

NANO_4_6 = (
    "RAM 1521/3964MB (lfb 310x4MB) SWAP 0/1982MB (cached 0MB) IRAM 0/252kB(lfb 252kB) "
    "CPU [12%@1479,8%@1479,off,off] EMC_FREQ 4%@1600 GR3D_FREQ 99%@921 APE 25 PLL@31C CPU@34.5C "
    "PMIC@100C GPU@33C AO@40.5C thermal@33.75C POM_5V_IN 4210/3550 POM_5V_GPU 1100/800 "
    "POM_5V_CPU 700/650"
)
XAVIER_5_1 = (
    "07-09-2024 13:31:31 RAM 3168/6851MB (lfb 2x4MB) SWAP 161/3426MB (cached 0MB) "
    "CPU [23%@1397,17%@1192,16%@1190,13%@1190,off,off] EMC_FREQ 2%@204 GR3D_FREQ 7%@[114] "
    "VIC_FREQ 115 APE 150 AUX@45C CPU@46.5C thermal@45.6C AO@45C GPU@45.5C PMIC@50C "
    "VDD_IN 2763mW/2846mW VDD_CPU_GPU_CV 650mW/670mW VDD_SOC 650mW/711mW"
)
ORIN_6_2 = (
    "05-09-2026 18:42:06 RAM 18207/62841MB (lfb 466x4MB) SWAP 86/31420MB (cached 0MB) "
    "CPU [14%@2188,5%@2112,8%@2035,14%@2201] EMC_FREQ 3%@2133 GR3D_FREQ 88%@[1300,1299] NVENC off "
    "NVDEC off VIC off OFA off NVDLA0 off PVA0_FREQ off APE 174 cpu@52.562C soc2@48.437C "
    "CV0@-256C tj@52.562C soc1@49.656C VDD_GPU_SOC 2412mW/2412mW VDD_CPU_CV 1607mW/1607mW "
    "VIN_SYS_5V0 4707mW/4707mW"
)
# Without root, the tool prints neither clock.
ORIN_6_2_USER = "RAM 1224/15368MB (lfb 8x4MB) CPU [1%@729,off] EMC_FREQ 0% GR3D_FREQ 0%"


def test_stats_of_several_releases() -> None:
    nano, xavier, orin = map(tegra.read_stats, (NANO_4_6, XAVIER_5_1, ORIN_6_2))
    assert (nano.gpu_load, nano.gpu_mhz, nano.memory_mhz) == (0.99, 921.0, 1600.0)
    assert (nano.gpu_c, nano.power_mw) == (33.0, 4210.0)
    assert nano.rails_mw["POM_5V_GPU"] == 1100.0
    assert (xavier.gpu_load, xavier.gpu_mhz, xavier.memory_mhz) == (0.07, 114.0, 204.0)
    assert (xavier.gpu_c, xavier.power_mw) == (45.5, 2763.0)
    assert (orin.gpu_load, orin.gpu_mhz, orin.memory_mhz) == (0.88, 1300.0, 2133.0)
    assert (orin.gpu_c, orin.power_mw) == (52.562, 4707.0)
    assert "cv0" not in orin.temperatures_c


def test_stats_that_are_not_there() -> None:
    user = tegra.read_stats(ORIN_6_2_USER)
    assert (user.gpu_load, user.gpu_mhz, user.memory_mhz) == (0.0, None, None)
    assert (user.gpu_c, user.power_mw) == (None, None)
    assert tegra.read_stats("") == tegra.read_stats("no such line 12/13MB") == Stats()
    asleep = tegra.read_stats("GR3D_FREQ 0%@[0,0] gpu@48C")
    assert (asleep.gpu_mhz, asleep.gpu_c) == (None, 48.0)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("NV Power Mode: MAXN\n0\n", "MAXN (0)"),
        ("NVPM WARN: fan mode is not set!\nNV Power Mode: MAXN\n0\n", "MAXN (0)"),
        ("NV Fan Mode:quiet\nNV Power Mode: MODE_15W_6CORE\n2\n", "MODE_15W_6CORE (2)"),
        ("NV Power Mode: 25W\n1\n", "25W (1)"),
        ("NV Power Mode: MAXN_SUPER", "MAXN_SUPER"),
        ("NVPM ERROR: failed to read PARAM\n", None),
        ("", None),
    ],
)
def test_power_mode(text: str, mode: str | None) -> None:
    assert tegra.read_mode(text) == mode


def test_power_mode_from_its_files(tmp_path: Path) -> None:
    assert tegra.saved_mode(tmp_path) is None
    status = tmp_path / "var/lib/nvpmodel/status"
    status.parent.mkdir(parents=True)
    status.write_text("pmode:0002 fmode:quiet\n")
    assert tegra.saved_mode(tmp_path) == "(2)"
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nvpmodel.conf").write_text(
        "< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=MODE_30W >\n"
    )
    assert tegra.saved_mode(tmp_path) == "MODE_30W (2)"


def test_release(tmp_path: Path) -> None:
    assert tegra.read_release(tmp_path) is None
    (tmp_path / "etc").mkdir()
    for text, release in (
        ("# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref", "R32.7.1"),
        ("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic", "R36.4.3"),
        ("something else", None),
    ):
        (tmp_path / "etc/nv_tegra_release").write_text(text)
        assert tegra.read_release(tmp_path) == release


def test_clocks_of_several_releases() -> None:
    loose = tegra.read_clocks(
        "SOC family:tegra194  Machine:Jetson-AGX\n"
        "cpu0: Online=1 Governor=schedutil MinFreq=1190400 MaxFreq=2265600 CurrentFreq=1574400 "
        "IdleStates: C1=1 c6=1\n"
        "GPU MinFreq=114750000 MaxFreq=1377000000 CurrentFreq=114750000\n"
        "EMC MinFreq=204000000 MaxFreq=2133000000 CurrentFreq=2133000000 FreqOverride=0\n"
        "NV Power Mode: MAXN\n"
    )
    assert loose == {"gpu": Clocks(114.75, 1377.0, False), "memory": Clocks(204.0, 2133.0, False)}
    locked = tegra.read_clocks(
        "GPU MinFreq=1300500000 MaxFreq=1300500000 CurrentFreq=1300500000\n"
        "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=1\n"
    )
    assert locked == {"gpu": Clocks(1300.5, 1300.5, True), "memory": Clocks(204.0, 3199.0, True)}
    thor = tegra.read_clocks(
        "gpu-gpc-0 MinFreq=1575000000 MaxFreq=1575000000 CurrentFreq=1575000000\n"
        "gpu-nvd-0 MinFreq=315000000 MaxFreq=1692000000 CurrentFreq=315000000\n"
        "EMC MinFreq=4266000000 MaxFreq=4266000000 CurrentFreq=4266000000 FreqOverride=0\n"
    )
    assert thor["gpu"] == Clocks(1575.0, 1575.0, True)
    assert thor["memory"].locked
    assert tegra.read_clocks("Error: run as root") == {}


def test_devfreq_of_the_gpu(tmp_path: Path) -> None:
    assert tegra.gpu_devfreq(tmp_path) is None
    for name in ("15340000.vic", "17000000.ga10b", "something"):
        (tmp_path / "sys/class/devfreq" / name).mkdir(parents=True)
    found = tegra.gpu_devfreq(tmp_path)
    assert found is not None
    assert found.name == "17000000.ga10b"


def test_throttle_events(tmp_path: Path) -> None:
    assert (tegra.over_currents(tmp_path), tegra.cooling_states(tmp_path)) == ([], [])
    for path, text in {
        "hwmon/hwmon0/name": "ina3221",
        "hwmon/hwmon0/oc9_event_cnt": "1000",
        "hwmon/hwmon3/name": "soctherm_oc",
        "hwmon/hwmon3/oc1_event_cnt": "2",
        "hwmon/hwmon3/oc3_event_cnt": "15",
        "hwmon/hwmon3/oc3_throt_en": "1",
        "thermal/cooling_device0/type": "pwm-fan",
        "thermal/cooling_device0/cur_state": "3",
        "thermal/cooling_device1/type": "gpu-throttle-alert",
        "thermal/cooling_device1/cur_state": "1",
        "thermal/cooling_device2/type": "devfreq-17000000.ga10b",
        "thermal/cooling_device2/cur_state": "4",
    }.items():
        file = tmp_path / "sys/class" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert sorted(tegra.over_currents(tmp_path)) == [2, 15]
    assert sorted(tegra.cooling_states(tmp_path)) == [1, 4]


def script(path: Path, text: str) -> str:
    """A script that takes the place of tegrastats."""
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_running_tegrastats(tmp_path: Path) -> None:
    lines = [XAVIER_5_1, ORIN_6_2, ORIN_6_2[:40]]
    pid_file = tmp_path / "pid"
    note = f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    text = f"{note}\nos.write(1, {os.linesep.join(lines).encode()!r})"
    tool = Tegrastats(script(tmp_path / "tegrastats", f"{text}\ntime.sleep(60)"))
    try:
        stats = tool.latest()
        while stats is None:  # the tool takes its time to start
            stats = tool.latest()
        # An incomplete line does not count.
        assert stats == tegra.read_stats(ORIN_6_2)
        assert tool.latest() == tegra.read_stats(ORIN_6_2)
    finally:
        tool.close()
        tool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_tegrastats_that_ends_or_is_missing(tmp_path: Path) -> None:
    tool = Tegrastats(script(tmp_path / "tegrastats", "pass"))
    assert tool.latest() is None
    tool.close()
    with pytest.raises(OSError, match="no-such-tool"):
        Tegrastats(str(tmp_path / "no-such-tool"))
