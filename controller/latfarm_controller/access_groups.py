"""Access groups: whose campaigns and questions may measure on which boards.

A board names at most one group, in the inventory; without one, everybody may measure on it. The
settings say who belongs to which group. A user is an actor as the audit log names it: the name in a
certificate, or `unix:NAME` for a user of the controller's machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from latfarm_controller.errors import UsageError

ADMINS = "admins"
"""The group whose members may use every board, as the owner of the home and root may."""
UNIX = "unix:"
"""How the names of users of the controller's machine begin."""
CERT = "cert:"
"""How a member is written who is the name in a certificate, and no user of this machine."""
ROOT = "unix:root"
"""The user who may read and write everything on the controller's machine anyway."""
MOST_MEMBERS = 1000
"""Most members of a group, and most groups."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What the name of an access group, and a tag of a board, may be."""


@dataclass(frozen=True, slots=True)
class AccessGroups:
    """Who may use which boards.

    Attributes:
        members: the members of each group. `alice` is the certificate of that name and the user of
            that name on the controller's machine; `cert:alice` and `unix:alice` are one of them.
        owner: the user whom the home belongs to, as an actor.
    """

    members: Mapping[str, Collection[str]] = field(default_factory=dict)
    owner: str = ""

    def is_admin(self, user: str) -> bool:
        """Whether a user may use every board."""
        return (bool(user) and user in (self.owner, ROOT)) or self._in(user, ADMINS)

    def refusal(self, user: str, group: str) -> str:
        """Why a user may not use the boards of a group; empty if they may.

        Args:
            user: as an actor; an empty name belongs to nobody.
            group: of the board; empty: everybody may use it.
        """
        if not group or self.is_admin(user) or self._in(user, group):
            return ""
        who = user or "a user who is not known"
        if group not in self.members:
            return f"it is for the access group {group}, which is not in latfarm.toml"
        return f"it is for the access group {group}, and {who} is no member of it"

    def _in(self, user: str, group: str) -> bool:
        members = self.members.get(group, ())
        if not user:
            return False
        if user.startswith(UNIX):
            return user in members or user.removeprefix(UNIX) in members
        return user in members or CERT + user in members


def checked_name(what: str, name: str) -> str:
    """The name of an access group or a tag, if it is one.

    Args:
        what: how an error calls it.
        name: the name.

    Raises:
        UsageError: it is none; says what a name is.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{what} {name[:80]!r}: letters, digits, '.', '_' and '-' only, at most 63, and the "
            "first one a letter or a digit"
        )
    return name


def checked_group(name: str) -> str:
    """The name of an access group, if it is one.

    Raises:
        UsageError: it is none; says what a name is.
    """
    return checked_name("access group", name)


def check_groups(groups: Mapping[str, Collection[str]]) -> None:
    """Check the groups of the settings.

    Raises:
        UsageError: there are too many, or the name of a group or of a member is malformed. A board
            can name every group that is admitted here.
    """
    if len(groups) > MOST_MEMBERS:
        raise UsageError(f"there may be at most {MOST_MEMBERS} access groups")
    for group, members in groups.items():
        checked_group(group)
        if len(members) > MOST_MEMBERS:
            raise UsageError(f"access group {group} may have at most {MOST_MEMBERS} members")
        for member in members:
            if not member.isprintable() or not 0 < len(member) <= 200:
                raise UsageError(f"access group {group}: {member!r} cannot be the name of a member")
