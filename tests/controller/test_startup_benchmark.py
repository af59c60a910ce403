"""The table of `make bench-startup`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.startup import commands


def test_medians_are_compared_with_what_was_promised() -> None:
    quick, slow, *others = commands.start_ups(Path("model.onnx"), "toy")
    assert [(c.words[0], c.serves, c.most_s) for c in others] == [
        ("boards", False, 2.0),
        ("platforms", False, 2.0),
        ("boards", True, 1.0),
        ("platforms", True, 1.0),
    ]
    quick.taken_s = [0.1, 0.2, 9.0]
    slow.taken_s = [0.9]
    told = quick.to_json()
    assert (told["median_s"], told["kept"], told["rounds"]) == (0.2, True, 3)
    assert slow.to_json()["kept"] is False
    host = {"cores": 2, "load": [0.1, 0.2, 0.3], "steal": 0.01, "python": "3.11"}
    found = {"commands": [quick.to_json(), slow.to_json()], "host": host}
    lines = commands.table(found).splitlines()
    assert lines[1].split() == [
        "latfarm",
        "--help",
        "0.200",
        f"{told['ninth_decile_s']:.3f}",
        "0.3",
    ]
    assert lines[2].endswith("not kept")
    assert "steal 1.0%" in lines[-1]


def test_the_environment_of_a_command_is_that_of_the_benchmarks_home(tmp_path: Path) -> None:
    found = commands.BenchHome(tmp_path, local=False).environment()
    assert found["LATFARM_HOME"] == str(tmp_path)
    assert found["LATFARM_LOCAL_AGENT"] == "false"
    assert {name for name in found if name.startswith("LATFARM_")} == {
        "LATFARM_HOME",
        "LATFARM_LOCAL_AGENT",
    }
