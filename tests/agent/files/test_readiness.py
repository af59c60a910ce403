"""Waiting for open files, also for those with numbers that select(2) does not take."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from latfarm_agent.files.readiness import readable

HIGH = 1500
"""A descriptor above 1,023."""


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process have more than 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= 2 * HIGH:
        pytest.skip(f"this host allows a process {hard} open files")
    if soft != resource.RLIM_INFINITY and soft <= 2 * HIGH:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * HIGH, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_only_what_can_be_read_is_told() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        assert readable([ours, theirs], 0.0) == []
        theirs.sendall(b"!")
        assert readable([ours, theirs], 0.0) == [ours.fileno()]
        assert readable([ours.fileno()]) == [ours.fileno()]


def test_the_end_of_the_other_side_is_told() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours):
        theirs.close()
        assert readable([ours]) == [ours.fileno()]


def test_a_closed_file_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs):
        ours.close()
        with pytest.raises(ValueError, match="negative"):
            readable([ours], 0.0)


def test_a_high_number_is_no_obstacle(many_files: None) -> None:
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, HIGH)
    try:
        assert high >= HIGH
        assert readable([high], 0.0) == []
        os.write(writer, b"!")
        assert readable([high]) == [high]
    finally:
        for file in (high, reader, writer):
            os.close(file)
