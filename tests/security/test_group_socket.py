"""The socket that a controller opens to a group: who may use it, as whom, and for what."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.api.connect import connected
from latfarm_controller.api.group_socket import SocketGroup, checked_place
from latfarm_controller.api.home_socket import HomeSocket, SocketUser, owns_home
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.audit import AuditLog, unix_user
from latfarm_controller.config import ControllerConfig, load_config
from latfarm_controller.errors import ControllerError, UsageError

from tests.security.conftest import Home

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes other users")

BECOME = """
import os, sys
from latfarm_controller.api import database_client
from latfarm_controller.api.connect import connected
from latfarm_controller.config import load_config
uid, gid, *groups = map(int, os.environ["BECOME"].split())
os.setgroups(groups)
os.setgid(gid)
os.setuid(uid)
"""
"""Reads its modules, which other users may not be able to read, and then becomes another user."""
DRAIN = """
with connected(load_config()) as client:
    client.drain_board("toy", "by a member")
"""
SNAPSHOT = """
address = os.environ["LATFARM_CONTROLLER"]
database_client.ask_server(address, "snapshot", {"folder": sys.argv[1]})
"""


def a_member() -> tuple[pwd.struct_passwd, grp.struct_group]:
    """An ordinary user of this machine and the user's primary group."""
    user = pwd.getpwnam("nobody")
    return user, grp.getgrgid(user.pw_gid)


def a_stranger() -> pwd.struct_passwd:
    """A user who is not in that group."""
    return pwd.getpwnam("daemon")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, for the socket of the group."""
    folder = Path(tempfile.mkdtemp(prefix="latfarm-group-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def opened_to(home: Home, group: str, place: Path) -> ControllerConfig:
    changes = {"group_socket": place / "controller.sock", "socket_group": group}
    return home.config.model_copy(update=changes)


def served(config: ControllerConfig, look: Callable[[ControllerServer], Any]) -> Any:
    """Run `look` in a thread beside a controller that everybody of the group may use."""

    async def play() -> Any:
        server = await ControllerServer.open(config, public=True)
        try:
            return await asyncio.to_thread(look, server)
        finally:
            await server.close()

    return asyncio.run(play())


def as_user(
    user: pwd.struct_passwd, config: ControllerConfig, program: Sequence[str], groups: Sequence[int]
) -> subprocess.CompletedProcess[str]:
    """Run a Python program as another user of this machine, who uses the group's socket."""
    variables = {
        "LATFARM_CONTROLLER": f"unix:{config.group_socket}",
        "LATFARM_HOME": "/nonexistent",
        "BECOME": " ".join(map(str, (user.pw_uid, user.pw_gid, *groups))),
    }
    text, *words = program
    return subprocess.run(
        [sys.executable, "-c", BECOME + text, *words],
        env={**os.environ, **variables},
        cwd="/",
        capture_output=True,
        text=True,
    )


@needs_root
def test_a_member_works_under_their_own_name(own_home: Home, place: Path) -> None:
    user, group = a_member()
    config = opened_to(own_home, group.gr_name, place)

    def look(_server: ControllerServer) -> subprocess.CompletedProcess[str]:
        assert config.group_socket is not None
        found = config.group_socket.stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (group.gr_gid, 0o660)
        assert stat.S_IMODE(config.socket_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(config.home.stat().st_mode) == 0o700
        return as_user(user, config, [DRAIN], [])

    done = served(config, look)
    assert done.returncode == 0, done.stderr
    (entry,) = AuditLog(config.audit_file).entries()
    assert (entry.actor, entry.action) == (unix_user(user.pw_uid), "board.drained")
    assert entry.details == {"reason": "by a member"}
    assert not (place / "controller.sock").exists()


@needs_root
def test_a_member_does_not_use_the_files_of_the_controller(own_home: Home, place: Path) -> None:
    """The store's own service reads and writes files with the rights of the controller."""
    user, group = a_member()
    config = opened_to(own_home, group.gr_name, place)
    target = place / "snapshot"
    done = served(config, lambda _: as_user(user, config, [SNAPSHOT, str(target)], []))
    assert "only the account of the controller may use latfarm db" in done.stderr
    assert not target.exists()
    as_root = pwd.getpwuid(0)
    done = served(config, lambda _: as_user(as_root, config, [SNAPSHOT, str(target)], []))
    assert done.returncode == 0, done.stderr
    assert target.exists()


@needs_root
def test_strangers_are_kept_away(
    own_home: Home, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, group = a_member()
    config = opened_to(own_home, group.gr_name, place)
    stranger = a_stranger()
    done = served(config, lambda _: as_user(stranger, config, [DRAIN], []))
    assert "you may not use the controller at" in done.stderr
    # A session that began before the user left the group: the kernel lets it connect.
    done = served(config, lambda _: as_user(stranger, config, [DRAIN], [group.gr_gid]))
    assert done.returncode != 0
    assert f"unix:{stranger.pw_name} was refused: not a member of the group" in caplog.text
    assert AuditLog(config.audit_file).entries() == []


def test_who_counts_as_a_member() -> None:
    user, group = a_member()
    open_to = SocketGroup.named(group.gr_name)
    assert open_to.admits(user.pw_uid)
    assert open_to.admits(os.geteuid())
    assert open_to.admits(0)
    assert not open_to.admits(a_stranger().pw_uid)
    assert not open_to.admits(3_999_999_999)


def test_the_owner_alone_may_have_the_store_read_and_written() -> None:
    me, uid = SocketUser("unix:me", 1, 1, owner=True), os.getuid()
    assert owns_home(me)
    assert not owns_home(me._replace(owner=False, uid=uid))
    assert owns_home(None) is not hasattr(socket, "SO_PEERCRED")


def test_the_group_and_the_place_must_be_safe(own_home: Home, place: Path) -> None:
    mine = grp.getgrgid(os.getgid()).gr_name
    for changes, says in (
        ({"socket_group": "no-such-group"}, "no group 'no-such-group'"),
        ({"socket_group": ""}, "group_socket needs socket_group"),
        ({"group_socket": place / "none" / "s"}, "the folder .* cannot be used"),
    ):
        config = opened_to(own_home, mine, place).model_copy(update=changes)
        with pytest.raises(UsageError, match=says):
            served(config, lambda _: None)
    place.chmod(0o777)
    with pytest.raises(UsageError, match="others could exchange the socket"):
        checked_place(place / "s")
    place.chmod(0o755)
    assert checked_place(place / "s") == place / "s"


def test_a_command_that_hosts_a_controller_opens_nothing(own_home: Home, place: Path) -> None:
    mine = grp.getgrgid(os.getgid()).gr_name
    config = opened_to(own_home, mine, place)
    with connected(config) as client:
        assert [board.name for board in client.boards()] == ["toy"]
        assert list(place.iterdir()) == []


def test_the_address_of_the_socket_is_a_setting(place: Path) -> None:
    address = f"unix:{place / 's'}"
    config = load_config({"controller": address}, {"LATFARM_HOME": str(place / "home")})
    with pytest.raises(ControllerError, match="no controller listens at"), connected(config):
        pass
    with pytest.raises(UsageError, match="controller"):
        load_config({"controller": "unix:relative"}, {})


def test_connections_that_ended_are_forgotten_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latfarm_controller.api.home_socket.REMEMBERED", 2)
    known = HomeSocket(tmp_path / "s")
    for number in range(5):
        known._users[str(number)] = SocketUser("unix:me", 1, 1, owner=True)
        known._forget_later(str(number))
    assert [name for name in map(str, range(5)) if known.user(name)] == ["3", "4"]
    asyncio.run(known.close())
