"""Who may use the socket that a controller opens to a group of users of its machine.

The home and its own socket belong to one account alone. So that people need not become that
account, `latfarm serve` can listen on a second socket outside of the home (the settings
`group_socket` and `socket_group`). The kernel lets members of the group open it, because the socket
has that group and the mode 0660. Besides, each connection is checked: the kernel tells which user
has connected (SO_PEERCRED), and the user database must count that user to the group at that
moment, so that nobody who left the group stays in through an old session. Members may do what an
operator may do from another machine (`roles.METHODS`); the rest is for the owner of the home.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from latfarm_controller.errors import UsageError

GROUP_MODE = 0o660
"""Permissions of the socket: its owner and the group may connect."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class SocketGroup:
    """The group of users that a socket is open to.

    Attributes:
        name: of the group.
        gid: its number.
    """

    name: str
    gid: int

    @classmethod
    def named(cls, name: str) -> SocketGroup:
        """The group of that name.

        Raises:
            UsageError: this machine has no such group.
        """
        try:
            return cls(name, grp.getgrnam(name).gr_gid)
        except KeyError as error:
            raise UsageError(
                f"socket_group: this machine has no group {name!r}; make it with: groupadd {name}"
            ) from error

    def admits(self, uid: int) -> bool:
        """Whether a user is a member, or owns the controller. It may ask the network for users."""
        if is_owner(uid):
            return True
        try:
            user = pwd.getpwuid(uid)
        except KeyError:
            return False
        return self.gid in os.getgrouplist(user.pw_name, user.pw_gid)

    def give(self, path: Path) -> None:
        """Let the group use a socket that has just been made.

        Raises:
            UsageError: this account may not give it to the group.
        """
        try:
            os.chown(path, -1, self.gid, follow_symlinks=False)
            path.chmod(GROUP_MODE)
        except OSError as error:
            raise UsageError(
                f"group_socket: {path} cannot be given to the group {self.name} "
                f"({error.strerror}); the account of the controller must be a member of it, and a "
                "service must be allowed to call chown"
            ) from error


def is_owner(uid: int) -> bool:
    """Whether a user is the account of this controller, or root, who can become it."""
    return uid in (0, os.geteuid())


def checked_place(path: Path) -> Path:
    """The path of a socket for a group, in a folder where nobody else can exchange it.

    Raises:
        UsageError: there is no such folder, or others may write in it.
    """
    try:
        found = path.parent.stat()
    except OSError as error:
        raise UsageError(
            f"group_socket: the folder {path.parent} cannot be used ({error.strerror}); make it, "
            "or let systemd make it with RuntimeDirectory="
        ) from error
    if not is_owner(found.st_uid) or found.st_mode & _OTHERS_WRITE:
        raise UsageError(
            f"group_socket: others could exchange the socket, because they may write in "
            f"{path.parent}; name a folder that only the account of the controller may write"
        )
    return path
