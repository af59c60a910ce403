"""Hooks: how they are written, and what is refused."""

from __future__ import annotations

import pytest
from latfarm_controller.board_hooks import HOOK_NAMES, BoardHooks, Hook
from latfarm_controller.errors import UsageError


def test_a_command_line_becomes_arguments_and_nothing_of_a_shell() -> None:
    hook = Hook.of_text("ssh pdu 'reboot 3' $HOME; rm -rf *")
    assert hook.command == ("ssh", "pdu", "reboot 3", "$HOME;", "rm", "-rf", "*")
    assert Hook.of_json(hook.to_json()) == hook
    assert Hook.of_text(str(hook)) == hook


def test_a_url_is_called() -> None:
    hook = Hook.of_text("http://192.0.2.5:80/outlet/4/cycle")
    assert hook.url == "http://192.0.2.5:80/outlet/4/cycle"
    assert hook.command == ()
    assert Hook.of_json(hook.to_json()) == hook


@pytest.mark.parametrize(
    "text",
    ["", "   ", "'unclosed", "-rf x", "http://", "http://host:99999/", "http://a b/", "a\x00b"],
)
def test_what_is_no_hook_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Hook.of_text(text)


@pytest.mark.parametrize("data", [7, None, ["a", 1], [], {"a": 1}, "ftp://host/", [""], ["x"] * 65])
def test_what_is_no_hook_of_the_inventory_is_refused(data: object) -> None:
    with pytest.raises(UsageError):
        Hook.of_json(data)


def test_hooks_of_a_board_go_there_and_back() -> None:
    data = {"reboot": ["ssh", "orin", "reboot"], "power_cycle": "https://pdu.example/4"}
    hooks = BoardHooks.of_json(data)
    assert hooks.to_json() == data
    assert [name for name in HOOK_NAMES if hooks.named(name)] == ["reboot", "power_cycle"]
    assert BoardHooks.of_json({}) == BoardHooks()


@pytest.mark.parametrize("data", [[], {"explode": ["x"]}, {"reboot": 3}])
def test_malformed_hooks_of_a_board_name_what_is_wrong(data: object) -> None:
    with pytest.raises(UsageError, match="hook"):
        BoardHooks.of_json(data)
