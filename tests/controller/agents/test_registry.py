from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)
from latfarm_controller.agents.registry import BoardEntry, Registry
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.board_hooks import BoardHooks, Hook
from latfarm_controller.errors import IdentityError, UsageError
from latfarm_protos.trust.contexts import TlsFileError


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "home" / "boards.json")


def test_no_file_is_no_boards(registry: Registry) -> None:
    assert registry.list() == []
    assert not registry.path.parent.exists()


def test_add_list_get_remove(registry: Registry) -> None:
    tls = ControllerTlsFiles(Path("/ca.pem"), Path("/c.pem"), Path("/k.pem"), "pixel4")
    pixel = registry.add("pixel4", "192.0.2.7:50051", tls)
    jetson = registry.add("jetson", "[2001:db8::1]:50051")
    assert registry.list() == [jetson, pixel]
    assert Registry(registry.path).get("pixel4") == pixel
    assert registry.remove("jetson") == jetson
    assert registry.list() == [pixel]
    assert {path.name for path in registry.path.parent.iterdir()} == {
        "boards.json",
        "boards.json.lock",
    }


def test_names_and_addresses_are_taken_once(registry: Registry) -> None:
    registry.add("a", "h:1")
    with pytest.raises(UsageError, match="known already, at h:1"):
        registry.add("a", "h:2")
    with pytest.raises(UsageError, match="is board 'a' already"):
        registry.add("b", "h:1")
    moved = registry.add("a", "h:2", replace=True)
    assert registry.list() == [moved]


def test_an_id_is_noted_once_and_belongs_to_one_board(registry: Registry) -> None:
    registry.add("a", "h:1")
    registry.add("b", "h:2")
    assert registry.get("a").board_id == ""
    assert registry.pin("a", "id-a").board_id == "id-a"
    assert registry.pin("a", "id-a") == Registry(registry.path).get("a")
    with pytest.raises(IdentityError, match=r"it was id-a.*latfarm boards accept a"):
        registry.pin("a", "id-x")
    with pytest.raises(IdentityError, match=r"that of board a.*latfarm boards remove a"):
        registry.pin("b", "id-a")
    with pytest.raises(IdentityError, match="that of board a"):
        registry.pin("b", "id-a", again=True)
    assert registry.add("a", "h:3", replace=True).board_id == "id-a"
    assert registry.pin("a", "id-x", again=True).board_id == "id-x"
    assert registry.pin("b", "id-a").board_id == "id-a"
    with pytest.raises(UsageError, match="no board 'c'"):
        registry.pin("c", "id-c")


def test_an_inventory_without_ids_is_read_and_keeps_its_entries(registry: Registry) -> None:
    registry.path.parent.mkdir()
    old: dict[str, dict[str, object]] = {
        "a": {"address": "h:1"},
        "b": {"address": "h:2", "insecure": True},
    }
    registry.path.write_text(json.dumps({"version": 1, "boards": old}))
    registry.pin("b", "id-b")
    old["b"]["board_id"] = "id-b"
    assert json.loads(registry.path.read_text()) == {"version": 1, "boards": old}


def test_unknown_boards_name_the_known(registry: Registry) -> None:
    with pytest.raises(UsageError, match="there are: none"):
        registry.get("a")
    registry.add("b", "h:1")
    registry.add("c", "h:2")
    for call in (registry.get, registry.remove):
        with pytest.raises(UsageError, match=r"no board 'a'.*: b, c"):
            call("a")


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "ä", "a" * 64])
def test_bad_names(registry: Registry, name: str) -> None:
    with pytest.raises(UsageError, match="board name"):
        registry.add(name, "h:1")


@pytest.mark.parametrize(
    "address", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "a b:1", "::1:1"]
)
def test_bad_addresses(registry: Registry, address: str) -> None:
    with pytest.raises(UsageError, match="must be host:port"):
        registry.add("a", address)
    assert registry.list() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version": 2}',
        '{"version": 1, "boards": []}',
        '{"version": 1, "boards": {"a": "h:1"}}',
        '{"version": 1, "boards": {"a": {}}}',
        '{"version": 1, "boards": {"a": {"address": 1}}}',
        '{"version": 1, "boards": {"a": {"address": "h"}}}',
        '{"version": 1, "boards": {"a": {"address": "h:1", "board_id": 7}}}',
        '{"version": 1, "boards": {"a": {"address": "h:1", "board_id": "\\u001b"}}}',
        '{"version": 1, "boards": {"a": {"address": "h:1", "tls": {"ca": "x"}}}}',
        '{"version": 1, "boards": {"a": {"address": "h:1", "tls": "yes"}}}',
        "\u00e4".encode("latin-1").decode("latin-1"),
    ],
)
def test_a_malformed_file_is_named_and_kept(registry: Registry, text: str) -> None:
    registry.path.parent.mkdir()
    registry.path.write_text(text)
    with pytest.raises(UsageError, match=str(registry.path)):
        registry.list()
    with pytest.raises(UsageError, match=str(registry.path)):
        registry.add("b", "h:2")
    assert registry.path.read_text() == text


def test_tls_files_are_relative_to_the_inventory(registry: Registry) -> None:
    registry.path.parent.mkdir()
    tls = {"ca": "ca.pem", "cert": "/etc/c.pem", "key": "k.pem"}
    boards = {"a": {"address": "h:1", "tls": tls}}
    registry.path.write_text(json.dumps({"version": 1, "boards": boards}))
    folder = registry.path.parent
    assert registry.get("a").tls == ControllerTlsFiles(
        folder / "ca.pem", Path("/etc/c.pem"), folder / "k.pem"
    )


def test_hooks_are_set_kept_and_removed_one_by_one(registry: Registry) -> None:
    registry.add("orin", "h:1")
    cycle, reboot = Hook(url="http://192.0.2.5/4"), Hook(("ssh", "orin", "reboot"))
    registry.set_hooks("orin", {"power_cycle": cycle})
    entry = registry.set_hooks("orin", {"reboot": reboot})
    assert entry.hooks == BoardHooks(reboot=reboot, power_cycle=cycle)
    assert registry.get("orin") == entry
    moved = registry.add("orin", "h:2", replace=True)
    assert moved.hooks == entry.hooks, "with a new address it still hangs on the same outlet"
    assert registry.set_hooks("orin", {"reboot": None}).hooks == BoardHooks(power_cycle=cycle)
    with pytest.raises(UsageError, match="no board 'jetson'"):
        registry.set_hooks("jetson", {"reboot": reboot})


def test_malformed_hooks_name_the_file(registry: Registry) -> None:
    entry = {"address": "h:1", "hooks": {"reboot": 7}}
    registry.path.parent.mkdir()
    registry.path.write_text(json.dumps({"version": 1, "boards": {"orin": entry}}))
    with pytest.raises(UsageError, match=r"boards.json: hook reboot: a hook must be"):
        registry.list()


def test_missing_tls_files_are_named(tmp_path: Path) -> None:
    files = ControllerTlsFiles(tmp_path / "ca.pem", tmp_path / "c.pem", tmp_path / "k.pem")
    with pytest.raises(TlsFileError, match=r"TLS file .*c\.pem"):
        files.files.stamp()


def test_threads_do_not_lose_each_others_boards(registry: Registry) -> None:
    def add(thread: int) -> None:
        for i in range(5):
            Registry(registry.path).add(f"b{thread}-{i}", f"h{thread}:{i + 1}")

    threads = [threading.Thread(target=add, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.list()) == 20


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True), st.integers(1, 65535))
def test_entries_are_what_was_given(name: str, port: int) -> None:
    entry = BoardEntry(name, f"host.example:{port}")
    assert entry.to_json() == {"address": f"host.example:{port}"}


class RegistryMachine(RuleBasedStateMachine):
    """The file agrees with a dictionary, whatever is done to it."""

    names = st.sampled_from(["a", "b", "c"])
    addresses = st.sampled_from(["h:1", "h:2", "h:3"])

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.registry = Registry(Path(self.folder.name) / "boards.json")
        self.model: dict[str, str] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(name=names, address=addresses, replace=st.booleans())
    def add(self, name: str, address: str, replace: bool) -> None:
        taken = any(other == address and key != name for key, other in self.model.items())
        if taken or (name in self.model and not replace):
            with pytest.raises(UsageError):
                self.registry.add(name, address, replace=replace)
        else:
            self.registry.add(name, address, replace=replace)
            self.model[name] = address

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name in self.model:
            assert self.registry.remove(name).address == self.model.pop(name)
        else:
            with pytest.raises(UsageError):
                self.registry.remove(name)

    @invariant()
    def agrees(self) -> None:
        listed = {entry.name: entry.address for entry in Registry(self.registry.path).list()}
        assert listed == self.model


RegistryMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=10, deadline=None)
TestRegistry = RegistryMachine.TestCase
