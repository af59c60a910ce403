"""The audit log of a home: who started campaigns, changed certificates, or enrolled boards.

It is the file `audit.jsonl`, with one JSON object on each line. Lines are only ever added. Commands
write to it themselves, and the controller writes what it is asked to do. An actor is the name in a
certificate, or `unix:NAME` for a user of this machine. No name in a certificate has a colon.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfarm_controller.errors import StoreError
from latfarm_controller.private_files import FILE_MODE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line: at the Unix time `at_s`, `actor` did `action` to `subject`.

    Actions are words such as `campaign.started`; `details` depend on the action.
    """

    at_s: float
    actor: str
    action: str
    subject: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return {
            "at_s": self.at_s,
            "actor": self.actor,
            "action": self.action,
            "subject": self.subject,
            "details": dict(self.details),
        }


class AuditLog:
    """The log in a file. Several processes may write to it at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, actor: str, action: str, subject: str, **details: Any) -> None:
        """Add an entry; if the file cannot be written, the log of the program says so.

        What the entry tells has been done already, so this raises no error.
        """
        entry = AuditEntry(time.time(), actor, action, subject, details)
        line = json.dumps(entry.to_json(), default=str) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self.path, flags | os.O_NONBLOCK, FILE_MODE)
            try:
                os.write(descriptor, line.encode())  # one call, so that lines do not mix
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.warning(
                "%s: cannot be written (%s); not in the audit log: %s of %s by %s",
                self.path,
                error.strerror,
                action,
                subject,
                actor,
            )

    def entries(self) -> list[AuditEntry]:
        """All entries, the oldest first; lines that are no entries are left out with a warning.

        Raises:
            StoreError: the file exists and cannot be read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise StoreError(f"{self.path}: is no file; move it away")
                lines = file.readlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read: {error.strerror}") from error
        found = []
        for number, line in enumerate(lines, start=1):
            entry = _entry(line)
            if entry is None:
                logger.warning("%s: line %d is no entry of an audit log", self.path, number)
            else:
                found.append(entry)
        return found


def unix_user(uid: int) -> str:
    """A user of this machine as an actor."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return f"unix:{name}"


def _entry(line: str) -> AuditEntry | None:
    try:
        data = json.loads(line)
        details = data["details"]
        if not isinstance(details, dict):
            return None
        actor, action, subject = (str(data[key]) for key in ("actor", "action", "subject"))
        return AuditEntry(float(data["at_s"]), actor, action, subject, details)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
