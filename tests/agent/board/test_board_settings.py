"""Governors, clocks and power mode on boards made of files: outcomes tell what was read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent import cli
from latfarm_agent.board.settings import FileSetting, Settled, Wanted, apply, read_wanted
from latfarm_agent.errors import AgentUsageError

GOVERNOR = FileSetting("governor", "/sys/cpufreq/policy*/scaling_governor", "performance")
LOWEST = FileSetting("lowest clock", "/sys/cpufreq/policy*/min_freq", value_of="max_freq")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, highest in ((0, "1800"), (4, "2400")):
        folder = tmp_path / "root/sys/cpufreq" / f"policy{number}"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text("schedutil\n")
        (folder / "min_freq").write_text("300\n")
        (folder / "max_freq").write_text(f"{highest}\n")
    return tmp_path / "root"


def governors(root: Path) -> list[str]:
    return [
        path.read_text().strip() for path in sorted(root.glob("sys/cpufreq/*/scaling_governor"))
    ]


def test_sets_and_reads_back_each_file(root: Path) -> None:
    outcomes = apply(Wanted(files=(GOVERNOR, LOWEST)), root=root)
    assert [(o.state, o.before, o.found) for o in outcomes] == [
        (Settled.CHANGED, "schedutil", "performance"),
        (Settled.CHANGED, "schedutil", "performance"),
        (Settled.CHANGED, "300", "1800"),
        (Settled.CHANGED, "300", "2400"),
    ]
    again = apply(Wanted(files=(GOVERNOR, LOWEST)), root=root)
    assert {o.state for o in again} == {Settled.KEPT}


def test_a_check_changes_nothing(root: Path) -> None:
    outcomes = apply(Wanted(files=(GOVERNOR,)), root=root, change="check")
    assert {o.state for o in outcomes} == {Settled.DIFFERS}
    assert governors(root) == ["schedutil", "schedutil"]


def test_undo_puts_back_what_was_first(root: Path, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    wanted = Wanted(files=(GOVERNOR,))
    apply(wanted, before, root=root)
    (root / "sys/cpufreq/policy0/scaling_governor").write_text("powersave\n")
    apply(wanted, before, root=root)
    apply(wanted, before, root=root, change="undo")
    assert governors(root) == ["schedutil", "schedutil"]


def test_undo_puts_back_what_a_run_changed_that_was_cut_short(root: Path, tmp_path: Path) -> None:
    before, board = tmp_path / "before.json", Jetson(mode=2)

    def cut(arguments: list[str], data: str = "") -> str:
        if arguments == ["jetson_clocks"]:
            raise KeyboardInterrupt
        return board(arguments, data)

    wanted = Wanted(files=(GOVERNOR,), power_mode=0, jetson_clocks=True)
    with pytest.raises(KeyboardInterrupt):
        apply(wanted, before, root=root, run=cut)
    assert (governors(root), board.mode) == (["performance", "performance"], 0)
    apply(wanted, before, root=root, run=board)
    apply(wanted, before, root=root, run=board, change="undo")
    assert (governors(root), board.mode) == (["schedutil", "schedutil"], 2)
    assert not board.locked


def test_undo_puts_back_what_a_kernel_changed_to_a_value_of_its_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write = tmp_path / "before.json", Path.write_text

    def clamp(path: Path, text: str, *rest: Any, **named: Any) -> int:
        clamped = path.name == "min_freq" and text == "1800"
        return write(path, "1500" if clamped else text, *rest, **named)

    monkeypatch.setattr(Path, "write_text", clamp)
    outcomes = apply(Wanted(files=(LOWEST,)), before, root=root)
    assert [(o.state, o.found) for o in outcomes] == [
        (Settled.FAILED, "1500"),
        (Settled.CHANGED, "2400"),
    ]
    apply(Wanted(files=(LOWEST,)), before, root=root, change="undo")
    lowest = sorted(root.glob("sys/cpufreq/*/min_freq"))
    assert [path.read_text().strip() for path in lowest] == ["300", "300"]


def test_what_is_absent_is_told_and_counts_where_it_is_required(tmp_path: Path) -> None:
    for required, state in ((False, Settled.ABSENT), (True, Settled.FAILED)):
        wanted = Wanted(required, (GOVERNOR,), power_mode=0, jetson_clocks=True)

        def nothing(arguments: list[str], data: str = "") -> str:
            raise FileNotFoundError(arguments[0])

        outcomes = apply(wanted, root=tmp_path, run=nothing)
        assert [o.state for o in outcomes] == [state] * 3
        assert "there is no nvpmodel" in str(outcomes[1])
        assert "read nothing" in str(outcomes[0])


def test_a_kernel_that_keeps_its_own_value_is_found_out(root: Path) -> None:
    # A link to /dev/null stands for a driver that accepts a value and keeps another one.
    target = root / "sys/cpufreq/policy0/scaling_governor"
    target.unlink()
    target.symlink_to("/dev/null")
    outcomes = apply(Wanted(files=(GOVERNOR,)), root=root)
    assert [o.state for o in outcomes] == [Settled.FAILED, Settled.CHANGED]
    assert "wanted performance, read nothing" in str(outcomes[0])


class Jetson:
    """Doubles of nvpmodel and jetson_clocks, with lines as in the vendor's documentation."""

    def __init__(self, mode: int = 2, stubborn: bool = False) -> None:
        self.mode, self.locked, self.stubborn = mode, False, stubborn
        self.stored_in_mode: int | None = None

    def __call__(self, arguments: list[str], data: str = "") -> str:
        if arguments[0] == "nvpmodel":
            if arguments[1] == "-m" and not self.stubborn:
                assert data == "no\n"
                self.mode = int(arguments[2])
            return f"NV Power Mode: MODE_{self.mode}\n{self.mode}\n"
        if len(arguments) == 1:
            self.locked = True
        elif arguments[1] == "--store":
            self.stored_in_mode = self.mode
            Path(arguments[2]).write_text("locked" if self.locked else "free")
        elif arguments[1] == "--restore":
            self.locked = Path(arguments[2]).read_text() == "locked"
        low = 1300500000 if self.locked else 114750000
        return f"GPU MinFreq={low} MaxFreq=1300500000 CurrentFreq={low}\n"


def test_power_mode_and_clocks_of_a_jetson(tmp_path: Path) -> None:
    board = Jetson()
    wanted = Wanted(True, power_mode=0, jetson_clocks=True)
    assert [o.state for o in apply(wanted, root=tmp_path, run=board, change="check")] == [
        Settled.DIFFERS,
        Settled.DIFFERS,
    ]
    mode, clocks = apply(wanted, root=tmp_path, run=board)
    assert (mode.state, mode.before, mode.found) == (Settled.CHANGED, "2", "0")
    assert (clocks.state, clocks.before, clocks.found) == (Settled.CHANGED, "free", "locked")
    assert {o.state for o in apply(wanted, root=tmp_path, run=board)} == {Settled.KEPT}


def test_undo_puts_back_power_mode_and_clocks_of_a_jetson(tmp_path: Path) -> None:
    board, before = Jetson(mode=2), tmp_path / "before.json"
    wanted = Wanted(True, power_mode=0, jetson_clocks=True)
    for _ in range(2):  # the second run must keep the values from before the first one
        apply(wanted, before, root=tmp_path, run=board)
        assert (board.mode, board.locked) == (0, True)
    assert board.stored_in_mode == 2
    outcomes = apply(wanted, before, root=tmp_path, run=board, change="undo")
    assert [(o.name, o.state, o.found) for o in outcomes] == [
        ("power mode", Settled.CHANGED, "2"),
        ("clocks", Settled.CHANGED, "free"),
    ]
    assert (board.mode, board.locked) == (2, False)


def test_undo_leaves_a_jetson_alone_that_was_as_wanted(tmp_path: Path) -> None:
    board, before = Jetson(mode=0), tmp_path / "before.json"
    board.locked = True
    wanted = Wanted(True, power_mode=0, jetson_clocks=True)
    apply(wanted, before, root=tmp_path, run=board)
    assert apply(wanted, before, root=tmp_path, run=board, change="undo") == []
    assert (board.mode, board.locked) == (0, True)


def test_a_mode_that_cannot_be_put_back_without_a_reboot_is_told(tmp_path: Path) -> None:
    board, before = Jetson(mode=2), tmp_path / "before.json"
    apply(Wanted(power_mode=0), before, root=tmp_path, run=board)
    board.stubborn = True
    (mode,) = apply(Wanted(power_mode=0), before, root=tmp_path, run=board, change="undo")
    assert (mode.state, mode.wanted, mode.found) == (Settled.FAILED, "2", "0")
    assert "reboot" in str(mode)


def test_undo_restores_files_that_are_not_wanted_any_more(root: Path, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    apply(Wanted(files=(GOVERNOR,)), before, root=root)
    outcomes = apply(Wanted(), before, root=root, change="undo")
    assert {o.state for o in outcomes} == {Settled.CHANGED}
    assert governors(root) == ["schedutil", "schedutil"]


def test_a_mode_that_needs_a_reboot_has_failed(tmp_path: Path) -> None:
    (mode,) = apply(Wanted(power_mode=0), root=tmp_path, run=Jetson(stubborn=True))
    assert mode.state is Settled.FAILED
    assert "reboot" in str(mode)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"governor": "performance"},
        {"power_mode": "0"},
        {"power_mode": True},
        {"files": [{"name": "x", "paths": "/x"}]},
        {"files": [{"name": "x", "paths": "/x", "value": "1", "value_of": "y"}]},
        {"files": [{"name": "x", "paths": "sys/x", "value": "1"}]},
        {"files": [{"name": "x", "paths": "/x", "value": 1}]},
        {"files": ["x"]},
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(data))
    with pytest.raises(AgentUsageError, match=r"settings\.json"):
        read_wanted(path)


def test_the_command_tells_and_fails(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.json"
    entry = {"name": "governor", "paths": f"{root}/sys/cpufreq/*/scaling_governor", "value": "x"}
    path.write_text(json.dumps({"required": True, "files": [entry]}))
    before = tmp_path / "before.json"
    assert cli.main(["settle", str(path), "--before", str(before), "--json"]) == 0
    assert [each["state"] for each in json.loads(capsys.readouterr().out)] == ["changed"] * 2
    assert cli.main(["settle", str(path), "--check"]) == 0
    assert capsys.readouterr().out.count(": kept: wanted x, read x") == 2
    shutil.rmtree(root)
    assert cli.main(["settle", str(path)]) == 1


NVPMODEL = """\
#!/bin/sh
# Reads and sets a number in a file, with the lines of the vendor's tool.
case $1 in
  -m) read -r answer && [ "$answer" = no ] && echo "$2" >{state}/mode ;;
esac
echo "NV Power Mode: MODE_$(cat {state}/mode)"
cat {state}/mode
"""
JETSON_CLOCKS = """\
#!/bin/sh
# Locks, stores, restores and shows one clock; the vendor's tool asks before it overwrites a file.
case $1 in
  '') echo 1300500000 >{state}/low ;;
  --store) [ ! -e "$2" ] && cp {state}/low "$2" || exit 1 ;;
  --restore) cp "$2" {state}/low ;;
  --show) echo "GPU MinFreq=$(cat {state}/low) MaxFreq=1300500000 CurrentFreq=$(cat {state}/low)" ;;
  *) exit 2 ;;
esac
"""


def test_the_tools_of_a_jetson_put_back_what_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command runs stand-ins of the vendor's tools, as enrolment and leaving run it."""
    programs, state = tmp_path / "bin", tmp_path / "state"
    programs.mkdir()
    state.mkdir()
    for name, text in (("nvpmodel", NVPMODEL), ("jetson_clocks", JETSON_CLOCKS)):
        (programs / name).write_text(text.format(state=state))
        (programs / name).chmod(0o755)
    (state / "mode").write_text("2\n")
    (state / "low").write_text("114750000\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    file, before = tmp_path / "settings.json", tmp_path / "settings-before.json"
    file.write_text(json.dumps({"required": True, "power_mode": 0, "jetson_clocks": True}))
    words = ["settle", str(file), "--before", str(before)]
    assert cli.main(words) == 0
    assert cli.main(words) == 0  # as at each boot
    assert (state / "mode").read_text() == "0\n"
    assert (state / "low").read_text() == "1300500000\n"
    capsys.readouterr()
    assert cli.main([*words, "--undo"]) == 0
    assert (state / "mode").read_text() == "2\n"
    assert (state / "low").read_text() == "114750000\n"
    assert capsys.readouterr().out.count(": changed:") == 2
