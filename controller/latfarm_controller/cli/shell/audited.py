"""What commands add to the audit log of the home."""

from __future__ import annotations

import os
from typing import Any

from latfarm_controller.audit import AuditLog, unix_user


def note(action: str, subject: str, **details: Any) -> None:
    """Add an entry for something that the user of this command has done."""
    from latfarm_controller.config import load_config

    AuditLog(load_config().audit_file).add(unix_user(os.getuid()), action, subject, **details)
