"""`latfarm serve` as a service of systemd: it tells when it serves."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from latfarm_controller.cli.farm.service_manager import VARIABLE, tell_ready


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"latfarm-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else name)
        monkeypatch.setenv(VARIABLE, f"@{name}" if abstract else name)
        assert tell_ready()
        assert manager.recv(100) == b"READY=1"
    assert VARIABLE not in os.environ, "child processes must not speak for the controller"


def test_without_a_service_manager_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not tell_ready()
    assert caplog.text == ""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    assert not tell_ready()
    assert "was not told that the controller serves" in caplog.text
