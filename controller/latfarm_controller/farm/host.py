"""The host that the controller runs on."""

from __future__ import annotations

from pathlib import Path


def host_boot_id() -> str:
    """Identity of this host since it was booted; empty where the system does not tell it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
