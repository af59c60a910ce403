"""A board with an NVIDIA GPU: its settings, and its present values."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from latfarm_agent.board.conditions import Sensors
from latfarm_agent.nvidia.gpu import GpuReading, NvidiaBoard, run_tool
from latfarm_agent.nvidia.nvml import Nvml, open_nvml

TOOLS = {
    "nvpmodel": "NV Power Mode: MAXN\n0\n",
    "jetson_clocks": "GPU MinFreq=306000000 MaxFreq=1300500000 CurrentFreq=306000000\n"
    "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=1\n",
}


def tool(command: Sequence[str]) -> str:
    """The output of a Jetson's tools when root runs them."""
    return TOOLS.get(command[0], "")


def lay_out(root: Path, files: dict[str, str]) -> None:
    """Write files below a root folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(name="jetson")
def _jetson(tmp_path: Path) -> Path:
    lay_out(
        tmp_path,
        {
            "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic",
            "etc/nvpmodel.conf": "< POWER_MODEL ID=1 NAME=MODE_15W >",
            "var/lib/nvpmodel/status": "pmode:0001",
            "sys/class/devfreq/17000000.ga10b/min_freq": "1300500000\n",
            "sys/class/devfreq/17000000.ga10b/max_freq": "1300500000\n",
            "sys/class/devfreq/17000000.ga10b/cur_freq": "1300500000\n",
            "sys/class/hwmon/hwmon3/name": "soctherm_oc\n",
            "sys/class/hwmon/hwmon3/oc3_event_cnt": "27\n",
        },
    )
    return tmp_path


def no_nvml() -> Nvml | None:
    return None


def test_a_board_without_a_gpu(tmp_path: Path) -> None:
    board = NvidiaBoard(tmp_path)
    assert board.policy() == {}
    assert board.read() == GpuReading()
    assert not board.locked()
    assert board.index_of("0000:65:00.0") == 0
    board.close()


def test_what_is_set_on_a_jetson(jetson: Path) -> None:
    board = NvidiaBoard(jetson, nvml=no_nvml, tool=tool)
    assert board.policy() == {
        "jetson_linux": "R36.4.3",
        "power_mode": "MAXN (0)",
        "gpu_clock_min_mhz": "1300.5",
        "gpu_clock_max_mhz": "1300.5",
        "gpu_clock_locked": "yes",
        "memory_clock_min_mhz": "204",
        "memory_clock_max_mhz": "3199",
        "memory_clock_locked": "yes",
    }
    assert board.locked()


def test_a_jetson_whose_tools_do_not_answer(jetson: Path) -> None:
    (jetson / "sys/class/devfreq/17000000.ga10b/min_freq").write_text("306000000\n")
    board = NvidiaBoard(jetson)
    told = board.policy()
    assert told["power_mode"] == "MODE_15W (1)"
    assert told["gpu_clock_locked"] == "no"
    assert not any(name.startswith("memory") for name in told)
    assert not board.locked()


def test_it_is_part_of_a_boards_policy(jetson: Path, tmp_path: Path) -> None:
    told = Sensors((), jetson).policy()
    assert told["power_mode"] == "MODE_15W (1)"
    assert told["gpu_clock_max_mhz"] == "1300.5"
    assert told["governor"] == "unknown"
    assert "jetson_linux" not in Sensors((), tmp_path / "elsewhere").policy()


def test_a_jetson_now(jetson: Path, tmp_path: Path) -> None:
    line = "EMC_FREQ 3%@2133 GR3D_FREQ 88%@[1299] gpu@52.5C VDD_IN 9000mW/8000mW"
    command = tmp_path / "tegrastats"
    pid_file = tmp_path / "pid"
    text = f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\nprint({line!r}, flush=True)"
    forever = "while True: time.sleep(60)"
    command.write_text(f"#!{sys.executable}\nimport os, time\n{text}\n{forever}\n")
    command.chmod(0o755)
    board = NvidiaBoard(jetson, nvml=no_nvml, tegrastats=str(command))
    try:
        reading = board.read()
        while reading.power_mw is None:  # the tool takes its time to print its first line
            reading = board.read()
        assert reading == GpuReading(1300.5, 2133.0, 52.5, 9000.0, 27)
        pid = int(pid_file.read_text())
        os.kill(pid, 0)
        board.rest()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert board.read().clock_mhz == 1300.5
    finally:
        board.close()


def test_a_jetson_without_tegrastats(jetson: Path) -> None:
    board = NvidiaBoard(jetson, nvml=no_nvml, tegrastats="no-such-tool-anywhere")
    assert board.read() == board.read() == GpuReading(clock_mhz=1300.5, throttles=27)


def test_a_board_with_nvml(
    tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATFARM_NVML_REASONS", "0x24")
    board = NvidiaBoard(tmp_path, nvml=lambda: open_nvml(str(nvml_library)))
    assert board.policy() == {
        "gpu_driver": "560.35.03",
        "gpu_clock_max_mhz": "1980",
        "gpu_application_clock_mhz": "1410",
        "gpu_power_limit_mw": "700000",
        "gpu_persistence": "on",
    }
    assert board.read() == GpuReading(
        1410.0,
        2619.0,
        47.0,
        71500.0,
        1,
        ("software power cap", "software thermal slowdown"),
        throttled=True,
    )
    assert board.index_of("0000:65:00.0") == 0
    board.close()
    assert board.read() == GpuReading()


def test_a_jetson_with_a_part_of_nvml(
    jetson: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATFARM_NVML_PART", "1")
    board = NvidiaBoard(jetson, nvml=lambda: open_nvml(str(nvml_library)))
    assert board.read() == GpuReading(clock_mhz=1300.5, temperature_c=47.0, throttles=27)
    assert board.policy()["gpu_clock_locked"] == "yes"
    board.close()


def test_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a command prints does not depend on how long a busy host takes to start it.
    monkeypatch.setattr("latfarm_agent.nvidia.gpu.TOOL_TIMEOUT_S", 250.0)
    assert run_tool(["no-such-tool-anywhere"]) == ""
    monkeypatch.setattr("latfarm_agent.nvidia.gpu.TOOL_TIMEOUT_S", 120.0)
    assert run_tool([sys.executable, "-c", "print('told')"]) == "told\n"
    assert run_tool([sys.executable, "-c", "raise SystemExit(3)"]) == ""
    monkeypatch.setattr("latfarm_agent.nvidia.gpu.TOOL_TIMEOUT_S", 0.05)
    assert run_tool([sys.executable, "-c", "input(); import time; time.sleep(60)"]) == ""
    assert run_tool([sys.executable, "-c", "import time; time.sleep(60)"]) == ""
