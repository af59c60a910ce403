"""Pip is started for the wheels of boards, whatever the present folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_controller.enrolment import wheels
from latfarm_controller.errors import WheelError


def test_pip_imports_no_modules_of_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pip", "logging", "ssl"):
        text = "raise SystemExit('a planted module')\n"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WheelError, match="nowhere"):
        wheels.build([tmp_path / "nowhere"], tmp_path / "wheels")
