"""The collection is complete: built, installed into an empty environment, and used from there."""

from __future__ import annotations

import importlib.util
import json
import re
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.registry import Registry

from tests.ansible.collection import (
    BIN,
    COLLECTION,
    NEEDS_ANSIBLE,
    OLD,
    PLAYBOOKS,
    ROLES,
    ROOT,
    load,
    run,
)

ROLE_NAMES = {
    *("agent", "board", "certificates", "controller"),
    *("host", "monitoring", "registration", "removal"),
}
BOOKS = sorted(path.stem for path in PLAYBOOKS.glob("*.yml"))
ACTIONS = ("include_role", "import_role")
CONTROLLER_PARTS = tuple(f"controller/tasks/{part}" for part in ("main", "upgrade", "restore"))

pytestmark = [NEEDS_ANSIBLE, pytest.mark.timeout(600)]


def tasks_of(entries: Any) -> Iterator[dict[str, Any]]:
    """All tasks of a list, with those in blocks."""
    for entry in entries or []:
        yield entry
        for key in ("block", "rescue", "always"):
            yield from tasks_of(entry.get(key))


def every_task() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((*ROLES.glob("*/tasks/*.yml"), *ROLES.glob("*/handlers/*.yml"))):
        for task in tasks_of(load(path)):
            yield path, task
    for path in sorted(PLAYBOOKS.glob("*.yml")):
        for play in load(path):
            for key in ("pre_tasks", "tasks", "post_tasks"):
                for task in tasks_of(play.get(key)):
                    yield path, task


def test_the_linter_finds_nothing() -> None:
    if not (BIN / "ansible-lint").exists():
        pytest.skip("ansible-lint is not installed: make setup-farm")
    done = run("ansible-lint", "--profile", "production", "--offline", "-q", "ansible")
    assert done.returncode == 0, done.stdout + done.stderr


def test_version_and_licence_are_those_of_the_project() -> None:
    galaxy = load(COLLECTION / "galaxy.yml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert galaxy["version"] == project["version"]
    assert galaxy["license"] == ["Apache-2.0"]
    assert (COLLECTION / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert f"## {galaxy['version']}" in (COLLECTION / "CHANGELOG.md").read_text()


def test_roles_and_playbooks_are_described() -> None:
    assert {path.name for path in ROLES.iterdir()} == ROLE_NAMES
    told = (COLLECTION / "README.md").read_text()
    for name in ROLE_NAMES:
        assert f"[{name}](roles/{name}/README.md)" in told
        role = (ROLES / name / "README.md").read_text()
        assert role.startswith(f"# Role `latfarm.farm.{name}`\n")
        assert "## Example\n" in role
        assert re.search(r"\btags?\b", role), name
    for name in BOOKS:
        assert f"`latfarm.farm.{name}`" in told


def test_the_tables_of_variables_are_those_of_the_specifications() -> None:
    spec = importlib.util.spec_from_file_location("role_tables", OLD / "role_tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    for name in ROLE_NAMES:
        text = (ROLES / name / "README.md").read_text()
        assert tables.readme(name) == text, "stale: python ansible/role_tables.py"


def test_every_role_and_module_is_named_in_full() -> None:
    roles = 0
    for path, task in every_task():
        for action in ACTIONS:
            assert action not in task, path
            if given := task.get(f"ansible.builtin.{action}"):
                assert str(given["name"]).startswith("latfarm.farm."), (path, task)
                parts = (ROLES / str(given["name"]).removeprefix("latfarm.farm.")) / "tasks"
                assert (parts / f"{given.get('tasks_from', 'main')}.yml").exists(), (path, task)
                roles += 1
        names = [key for key in task if "." in key]
        assert len(names) == (0 if {"block"} & set(task) else 1), (path, task)
    assert roles >= 40
    for path in PLAYBOOKS.glob("*.yml"):
        for play in load(path):
            assert all(role["role"].startswith("latfarm.farm.") for role in play.get("roles", []))


def test_every_play_checks_the_names_of_variables_first() -> None:
    """A playbook's first play begins with a role that checks, whatever tags are given."""
    for part in ("board/tasks/main", "monitoring/tasks/main", *CONTROLLER_PARTS):
        first = load(ROLES / f"{part}.yml")[0]
        assert "latfarm.farm.check_variables" in first, part
    for name in ROLE_NAMES - {"board", "controller", "monitoring"}:
        (needed,) = load(ROLES / name / "meta/main.yml")["dependencies"]
        assert needed == {"role": "latfarm.farm.board"}


def test_nothing_is_looked_for_outside_of_the_collection() -> None:
    for path in COLLECTION.rglob("*"):
        if path.suffix in (".yml", ".j2", ".sh"):
            text = path.read_text()
            assert "playbook_dir" not in text, path
            assert not path.is_symlink(), path


@pytest.mark.parametrize("name", BOOKS)
def test_the_old_path_of_each_playbook_leads_to_the_new_one(name: str) -> None:
    old = f"ansible/{name.replace('_', '-')}.yml"
    (entry,) = load(ROOT / old)
    assert entry["import_playbook"] == f"latfarm.farm.{name}"
    assert entry["vars"] == {"latfarm_old_path": old}


def test_the_other_old_paths_lead_to_the_collection() -> None:
    for old, new in (
        ("group_vars", PLAYBOOKS / "group_vars"),
        ("inventory_plugins/latfarm.py", COLLECTION / "plugins/inventory/boards.py"),
        ("monitoring/dashboard.json", ROLES / "monitoring/files/dashboard.json"),
    ):
        assert (OLD / old).resolve() == new.resolve()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who has installed the built collection, and nothing else."""
    home = tmp_path_factory.mktemp("user")
    config = home / "ansible.cfg"
    config.write_text("[defaults]\n")
    environment = {
        "HOME": str(home),
        "ANSIBLE_HOME": str(home / ".ansible"),
        "ANSIBLE_CONFIG": str(config),
        "ANSIBLE_COLLECTIONS_PATH": str(home / "collections"),
    }
    built = run(
        *("ansible-galaxy", "collection", "build", COLLECTION, "--output-path", home),
        cwd=home,
        **environment,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (archive,) = home.glob("latfarm-farm-*.tar.gz")
    with tarfile.open(archive) as files:
        names = set(files.getnames())
    assert {"MANIFEST.json", "LICENSE", "README.md", "meta/runtime.yml"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    done = run(
        *("ansible-galaxy", "collection", "install", "--offline", archive),
        *("--collections-path", home / "collections"),
        cwd=home,
        **environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (home / "collections/ansible_collections/latfarm/farm/MANIFEST.json").exists()
    return environment


def test_installed_playbooks_are_found_and_parse(installed: dict[str, str]) -> None:
    home = Path(installed["HOME"])
    inventory = home / "inventory.json"
    groups: dict[str, Any] = {"boards": {"hosts": {"nuc-1": {}}}}
    groups["controllers"] = {"hosts": {"hub": {}}}
    inventory.write_text(json.dumps(groups))
    books = [f"latfarm.farm.{name}" for name in BOOKS]
    done = run(
        *("ansible-playbook", "--syntax-check", "-i", str(inventory), *books), cwd=home, **installed
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"latfarm/farm/playbooks/{name}.yml" in done.stdout for name in BOOKS)


def test_installed_plugins_and_roles_are_documented(installed: dict[str, str]) -> None:
    home = Path(installed["HOME"])
    for words, told in (
        (("-t", "inventory", "latfarm.farm.boards"), "Reads the boards of a controller"),
        (("latfarm.farm.check_variables",), "latfarm_other_variables"),
        (
            ("-t", "filter", "latfarm.farm.neighbours"),
            "Boards share a machine if Ansible reaches them",
        ),
        (("-t", "role", "latfarm.farm.board"), "latfarm_runtimes"),
    ):
        done = run("ansible-doc", *words, cwd=home, **installed)
        assert done.returncode == 0, done.stderr
        assert told in " ".join(done.stdout.split()), done.stdout


def test_an_installed_playbook_takes_a_board_out_of_the_farm(
    installed: dict[str, str], tmp_path: Path
) -> None:
    """Roles, filters and the checks of variables are found, and the types of boards as well."""
    Authority(tmp_path / "home/tls").init()
    Registry(tmp_path / "home/boards.json").add("gone", "127.0.0.1:1")
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 1, "latfarm_file_sd_dir": str(tmp_path)}
    inventory = tmp_path / "inventory.json"
    inventory.write_text(
        json.dumps({"boards": {"children": {"jetson": {"hosts": {"gone": gone}}}}})
    )
    words = ("ansible-playbook", "-i", inventory, "latfarm.farm.unenroll", "--limit", "gone")
    environment = {**installed, "LATFARM_HOME": str(tmp_path / "home"), "LATFARM_LOCAL_AGENT": "0"}
    done = run(*words, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unreachable=0" in done.stdout
    assert Registry(tmp_path / "home/boards.json").list() == []
