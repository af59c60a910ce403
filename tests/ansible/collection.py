"""Where the Ansible collection `latfarm.farm` is, and how tests run Ansible."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
OLD = ROOT / "ansible"
"""The folder of the playbooks' old paths, and of what is no part of the collection."""

COLLECTIONS = OLD / "collections"
"""The folder that Ansible's `collections_path` names."""

COLLECTION = COLLECTIONS / "ansible_collections" / "latfarm" / "farm"
ROLES = COLLECTION / "roles"
PLAYBOOKS = COLLECTION / "playbooks"
BIN = Path(sys.executable).parent
NEEDS_ANSIBLE = pytest.mark.skipif(
    not (BIN / "ansible-playbook").exists(), reason="Ansible is not installed: make setup-farm"
)


def run(*words: str | Path, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's programs, which finds the programs of this environment.

    Args:
        words: the command line; the first word is a program of this environment.
        cwd: the folder in which it runs. That of the checkout has a configuration of Ansible.
        variables: further variables of its environment.
    """
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(
        [str(BIN / words[0]), *map(str, words[1:])],
        cwd=cwd,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def load(path: Path) -> Any:
    """What a file of YAML holds."""
    # yaml is installed with Ansible only, and has no type hints.
    return importlib.import_module("yaml").safe_load(path.read_text())


def needs_ansible_here() -> None:
    """Skip the module that calls this where Ansible cannot be imported into this process.

    Ansible replaces `sys.intern` when it is imported, and torch cannot be imported after that. So
    the function of Python is put back for the tests that run in this process later.
    """
    original = sys.intern
    try:
        # Not "ansible" alone: without Ansible, that is this checkout's own folder.
        pytest.importorskip("ansible.errors", reason="Ansible is not installed: make setup-farm")
    finally:
        sys.intern = original


def plugin(path: str) -> ModuleType:
    """A module of the collection that imports nothing else of it.

    Args:
        path: its path below the folder of plugins.
    """
    file = COLLECTION / "plugins" / path
    spec = importlib.util.spec_from_file_location(f"latfarm_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def specs(role: str) -> dict[str, dict[str, Any]]:
    """The options that a role declares, by its parts."""
    entries = load(ROLES / role / "meta/argument_specs.yml")["argument_specs"]
    return {part: entry.get("options") or {} for part, entry in entries.items()}


def playbook_folder(folder: Path) -> Path:
    """A folder for a playbook of a test, beside which the variables of the types of boards are."""
    folder.mkdir(exist_ok=True)
    (folder / "group_vars").symlink_to(PLAYBOOKS / "group_vars")
    return folder
