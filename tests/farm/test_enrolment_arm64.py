"""An arm64 board joins like any other, by real wheels for aarch64, and measures; in emulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from latfarm_predictors.graph_builder import GraphBuilder

from tests.farm import enrolment
from tests.farm.conftest import cannot
from tests.farm.enrolment import Controller
from tests.farm.rack import Rack
from tests.farm.virtual_board import VirtualBoard

pytestmark = [pytest.mark.farm, pytest.mark.timeout(1200)]

SETTINGS = {"sessions": 1, "warmup_ms": 1.0, "min_runs": 3, "max_runs": 5, "max_ms": 50.0}

SPACES = ("PrivateUsers", "PrivateDevices", "PrivateIPC", "PrivateNetwork")
EMULATED = "[Service]\n" + "".join(f"{name}=no\n" for name in SPACES)
"""An emulated process cannot make these name spaces for a service: they are tested on amd64."""


def test_an_arm64_board_joins_and_measures(
    arm64_rack: Rack, own_wheels: list[Path], tmp_path: Path
) -> None:
    reason = enrolment.lacks()
    if reason:
        cannot(reason)
    with VirtualBoard("imx8-1", "arm64", rack=arm64_rack) as board:
        controller = Controller(
            *(tmp_path, own_wheels[0].parent, [board]),
            latfarm_compile=False,  # under emulation that takes minutes
            latfarm_health_timeout_s=300,
        )
        for unit in ("latfarm-agent", "latfarm-worker"):
            board.write(f"/etc/systemd/system/{unit}.service.d/emulated.conf", EMULATED)
        played = controller.play("enroll.yml")
        assert played.well, played.out
        assert board.run("uname -m").stdout == "aarch64\n"
        library = board.run("find /opt/latfarm -name 'onnxruntime_pybind11_state*.so'").stdout
        assert "aarch64" in library
        well = controller.latfarm("boards", "check", board.name, "--timeout", "300", "--json")
        (name,) = (each for each in well["platforms"] if each.endswith("-fp32-1t"))

        builder = GraphBuilder("net")
        into = builder.input((1, 3, 16, 16))
        graph = builder.build([builder.relu(builder.conv(into, 8, 3))])
        config = json.dumps({"graphs": [graph.to_json()], "settings": SETTINGS})
        words = ("campaign", "run", "networks", "-p", name, "--config", config, "--json")
        assert controller.latfarm(*words)["state"] == "done"
        found = controller.latfarm("results", "--limit", "0", "--purpose", "network", "--json")
        assert [each["outcome"] for each in found] == ["ok"]
