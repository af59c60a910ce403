"""The token file and the lock of the state directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from latfarm_agent import errors
from latfarm_agent.service.tokens import StateLock, TokenFile


def test_a_token_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert TokenFile(path).load() == 0
    for token in (1, 2, 2**64 - 1):
        TokenFile(path).store(token)
        assert TokenFile(path).load() == token
    assert [child.name for child in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("content", [b"", b"-1", b"1.5", b"\xff\x00", b"12 13"])
def test_a_damaged_token_file_is_not_guessed_at(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(errors.StateError, match="damaged"):
        TokenFile(tmp_path / "token").load()


def test_a_token_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(errors.StateError, match="cannot write"):
        TokenFile(tmp_path / "missing" / "token").store(1)


def test_one_agent_a_state_directory(tmp_path: Path) -> None:
    process = f"process {os.getpid()}"
    with StateLock(tmp_path), pytest.raises(errors.StateBusyError, match=process):
        StateLock(tmp_path)
    with StateLock(tmp_path):
        pass


def test_a_state_directory_that_cannot_be_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StateError, match="cannot use the state directory"):
        StateLock(tmp_path / "file")
